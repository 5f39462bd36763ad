"""The beat of readings: it goes on whatever the source or the listener does."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from gpu_flows.devices.base import Reading
from gpu_flows.devices.sampler import Sampler, next_sample_time
from gpu_flows.schedulers.model import Node

SOON = 30.0  # only ends a test that would never end


class Scripted:
    """A source whose nth reading is whatever the test says."""

    name = "scripted"

    def __init__(self, reading: Callable[[int], list[Reading]]) -> None:
        self._reading = reading
        self.reads = 0

    def nodes(self) -> list[Node]:
        return []

    def read(self) -> list[Reading]:
        self.reads += 1
        return self._reading(self.reads)

    def close(self) -> None: ...


class Listener:
    """Keeps what it hears, and can be waited for."""

    def __init__(self, enough: int) -> None:
        self.heard: list[tuple[float, list[Reading]]] = []
        self.satisfied = threading.Event()
        self._enough = enough

    def __call__(self, at: float, readings: list[Reading]) -> None:
        self.heard.append((at, readings))
        if len(self.heard) >= self._enough:
            self.satisfied.set()


def test_readings_come_again_and_again_and_the_newest_is_at_hand() -> None:
    listener = Listener(enough=3)
    source = Scripted(lambda number: [Reading("a", utilization=float(number)), Reading("b")])

    with Sampler(source, 0.01, listener) as sampler:
        assert listener.satisfied.wait(SOON)

    times = [at for at, _ in listener.heard]
    assert times == sorted(times)
    assert [readings[0].utilization for _, readings in listener.heard[:3]] == [1.0, 2.0, 3.0]
    assert sampler.latest().keys() == {"a", "b"}
    assert sampler.latest()["a"].utilization == source.reads


def test_the_first_reading_does_not_wait_for_the_beat() -> None:
    listener = Listener(enough=1)
    with Sampler(Scripted(lambda number: []), 3600, listener):
        assert listener.satisfied.wait(SOON)


def test_a_failing_source_is_asked_again() -> None:
    def fails_at_first(number: int) -> list[Reading]:
        if number <= 2:
            raise OSError("not now")
        return [Reading("a")]

    listener = Listener(enough=1)
    with Sampler(Scripted(fails_at_first), 0.01, listener):
        assert listener.satisfied.wait(SOON)
    assert listener.heard[0][1] == [Reading("a")]


def test_a_failing_listener_does_not_end_the_beat() -> None:
    again = threading.Event()

    def fails(at: float, readings: list[Reading]) -> None:
        if source.reads >= 3:
            again.set()
        raise ValueError("cannot listen")

    source = Scripted(lambda number: [Reading("a")])
    with Sampler(source, 0.01, fails) as sampler:
        assert again.wait(SOON)
        assert sampler.latest() == {"a": Reading("a")}


def test_a_slow_reading_stalls_nobody() -> None:
    slow, finish = threading.Event(), threading.Event()

    def slow_at_second(number: int) -> list[Reading]:
        if number == 2:
            slow.set()
            finish.wait(SOON)
        return [Reading("a", utilization=float(number))]

    sampler = Sampler(Scripted(slow_at_second), 0.01, lambda at, readings: None)
    assert slow.wait(SOON)
    assert sampler.latest()["a"].utilization == 1.0  # at hand while the second is under way
    sampler.close(patience_s=0.01)  # comes back although the reading has not
    finish.set()
    sampler.close()


def test_a_slow_reading_skips_beats_instead_of_piling_them_up() -> None:
    assert next_sample_time(last=100.0, now=100.2, every_s=1.0) == 101.0
    assert next_sample_time(last=100.0, now=103.5, every_s=1.0) == 104.0
    assert next_sample_time(last=100.0, now=99.9, every_s=1.0) == 101.0  # woken a little early: no beat twice


def test_closing_waits_for_the_thread_to_end() -> None:
    listener = Listener(enough=1)
    sampler = Sampler(Scripted(lambda number: []), 0.001, listener)
    assert listener.satisfied.wait(SOON)

    sampler.close()

    assert not [thread for thread in threading.enumerate() if thread.name == "sampler-scripted"]


def test_a_listener_may_close_the_sampler_itself() -> None:
    closed = threading.Event()

    def close(at: float, readings: list[Reading]) -> None:
        ready.wait(SOON)
        sampler.close()
        closed.set()

    ready = threading.Event()
    sampler = Sampler(Scripted(lambda number: []), 0.01, close)
    ready.set()
    assert closed.wait(SOON)


def test_a_beat_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        Sampler(Scripted(lambda number: []), 0, lambda at, readings: None)
