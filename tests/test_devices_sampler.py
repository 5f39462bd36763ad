"""The sampler reads at its interval, whether or not the source or the callback fails."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from gpu_flows.devices.base import Reading
from gpu_flows.devices.sampler import Sampler, next_sample_time
from gpu_flows.schedulers.model import Node

LIMIT_S = 30.0  # only ends a test that would hang


class Scripted:
    """A source whose nth reading the test defines."""

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


class Callback:
    """Keeps the readings it receives; `satisfied` is set once there are enough."""

    def __init__(self, enough: int) -> None:
        self.received: list[tuple[float, list[Reading]]] = []
        self.satisfied = threading.Event()
        self._enough = enough

    def __call__(self, at: float, readings: list[Reading]) -> None:
        self.received.append((at, readings))
        if len(self.received) >= self._enough:
            self.satisfied.set()


def test_readings_arrive_repeatedly_and_the_newest_are_kept() -> None:
    callback = Callback(enough=3)
    source = Scripted(lambda number: [Reading("a", utilization=float(number)), Reading("b")])

    with Sampler(source, 0.01, callback) as sampler:
        assert callback.satisfied.wait(LIMIT_S)

    times = [at for at, _ in callback.received]
    assert times == sorted(times)
    assert [readings[0].utilization for _, readings in callback.received[:3]] == [1.0, 2.0, 3.0]
    assert sampler.latest().keys() == {"a", "b"}
    assert sampler.latest()["a"].utilization == source.reads


def test_the_first_reading_is_taken_immediately() -> None:
    callback = Callback(enough=1)
    with Sampler(Scripted(lambda number: []), 3600, callback):
        assert callback.satisfied.wait(LIMIT_S)


def test_a_failing_source_is_read_again() -> None:
    def fails_at_first(number: int) -> list[Reading]:
        if number <= 2:
            raise OSError("not now")
        return [Reading("a")]

    callback = Callback(enough=1)
    with Sampler(Scripted(fails_at_first), 0.01, callback):
        assert callback.satisfied.wait(LIMIT_S)
    assert callback.received[0][1] == [Reading("a")]


def test_a_failing_callback_does_not_end_the_sampling() -> None:
    again = threading.Event()

    def fails(at: float, readings: list[Reading]) -> None:
        if source.reads >= 3:
            again.set()
        raise ValueError("a bug")

    source = Scripted(lambda number: [Reading("a")])
    with Sampler(source, 0.01, fails) as sampler:
        assert again.wait(LIMIT_S)
        assert sampler.latest() == {"a": Reading("a")}


def test_a_slow_reading_blocks_neither_latest_nor_close() -> None:
    slow, finish = threading.Event(), threading.Event()

    def slow_at_second(number: int) -> list[Reading]:
        if number == 2:
            slow.set()
            finish.wait(LIMIT_S)
        return [Reading("a", utilization=float(number))]

    sampler = Sampler(Scripted(slow_at_second), 0.01, lambda at, readings: None)
    assert slow.wait(LIMIT_S)
    assert sampler.latest()["a"].utilization == 1.0  # while the second is being taken
    sampler.close(patience_s=0.01)  # returns although the reading has not
    finish.set()
    sampler.close()


def test_a_slow_reading_skips_samples() -> None:
    assert next_sample_time(last=100.0, now=100.2, every_s=1.0) == 101.0
    assert next_sample_time(last=100.0, now=103.5, every_s=1.0) == 104.0
    assert (
        next_sample_time(last=100.0, now=99.9, every_s=1.0) == 101.0
    )  # woken a little early: no second sample


def test_closing_waits_for_the_thread_to_end() -> None:
    callback = Callback(enough=1)
    sampler = Sampler(Scripted(lambda number: []), 0.001, callback)
    assert callback.satisfied.wait(LIMIT_S)

    sampler.close()

    assert not [thread for thread in threading.enumerate() if thread.name == "sampler-scripted"]


def test_a_callback_may_close_the_sampler() -> None:
    closed = threading.Event()

    def close(at: float, readings: list[Reading]) -> None:
        ready.wait(LIMIT_S)
        sampler.close()
        closed.set()

    ready = threading.Event()
    sampler = Sampler(Scripted(lambda number: []), 0.01, close)
    ready.set()
    assert closed.wait(LIMIT_S)


def test_an_interval_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        Sampler(Scripted(lambda number: []), 0, lambda at, readings: None)
