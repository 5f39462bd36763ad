"""What a container prints arrives in order, once, and all of it: whatever breaks on the way."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from containers import CollectingSink, make_launch

from gpu_flows.runtimes.base import Launch
from gpu_flows.runtimes.docker import output
from gpu_flows.runtimes.docker.container_follower import LineAssembler
from gpu_flows.runtimes.docker.output import LogLine, OutputBuffer, OutputSender

START_NS = 1_790_000_000_000_000_000
MS = 1_000_000
Printed = list[tuple[int, str]]


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "SEND_INTERVAL_S", 0.005)


def lines(count: int, step_ns: int = MS, first: int = 0) -> Printed:
    return [(START_NS + step_ns * number, f"line {number}") for number in range(first, first + count)]


def texts(printed: Printed) -> list[str]:
    return [text for _, text in printed]


def read(buffer: OutputBuffer, printed: Printed) -> None:
    """As Docker would be asked: everything since the second that the buffer names."""
    since = buffer.start_reading()
    for at_ns, text in printed:
        if at_ns // 1_000_000_000 >= since:
            buffer.add_line(at_ns, text)


async def send_all(buffer: OutputBuffer, sink: CollectingSink) -> None:
    sender = OutputSender(sink)
    sender.add("x", buffer)
    await sender.drain("x", 10)
    await sender.close()
    assert buffer.is_empty


def arrive(tmp_path: Path, printed: Printed) -> CollectingSink:
    sink, launch = CollectingSink(), make_launch("true")
    buffer = OutputBuffer(launch, tmp_path, tail_only=False)
    read(buffer, printed)
    asyncio.run(send_all(buffer, sink))
    assert sink.texts(launch) == texts(printed)
    return sink


# -- order ------------------------------------------------------------------------------------


def test_lines_arrive_in_order_and_with_their_times(tmp_path: Path) -> None:
    sink = arrive(tmp_path, lines(2000))
    assert [line.at_us for line in sink.lines] == [(START_NS + MS * n) // 1000 for n in range(2000)]


def test_lines_of_the_same_moment_get_rising_times_and_keep_their_order(tmp_path: Path) -> None:
    sink = arrive(tmp_path, [(START_NS + number // 100, f"{number}") for number in range(1000)])
    times = [line.at_us for line in sink.lines]
    assert times == sorted(set(times))


def test_lines_that_overtook_each_other_stay_as_they_were_printed(tmp_path: Path) -> None:
    arrive(tmp_path, [(START_NS + 9, "err"), (START_NS, "out"), (START_NS + 5, "err"), (START_NS + 5, "")])


def test_a_word_of_ours_stands_where_it_was_said(tmp_path: Path) -> None:
    sink, launch = CollectingSink(), make_launch("true")
    buffer = OutputBuffer(launch, tmp_path, tail_only=False)
    buffer.add_note("Pulling.", START_NS // 1000)
    read(buffer, lines(2))
    asyncio.run(send_all(buffer, sink))
    assert [(line.text, line.from_worker) for line in sorted(sink.lines, key=lambda line: line.at_us)] == [
        ("Pulling.", True),
        ("line 0", False),
        ("line 1", False),
    ]


# -- read again -------------------------------------------------------------------------------


def mixed(count: int, seed: int) -> Printed:
    """Bursts and pauses on two streams: equal times, and times that go back a little."""
    dice, now, printed = random.Random(seed), START_NS, []
    for number in range(count):
        now += dice.choice([0, 0, 0, 50, MS, 700 * MS])
        printed.append((now - dice.choice([0, 0, 40, 900_000]), f"line {number}"))
    return printed


@pytest.mark.parametrize("seed", range(20))
def test_a_stream_that_breaks_again_and_again_loses_and_doubles_nothing(tmp_path: Path, seed: int) -> None:
    printed, dice = mixed(300, seed), random.Random(seed)
    sink, launch = CollectingSink(), make_launch("true")
    buffer = OutputBuffer(launch, tmp_path, tail_only=False)
    for end in sorted(dice.sample(range(len(printed)), 10)):
        read(buffer, printed[:end])
    read(buffer, printed)
    read(buffer, printed)
    asyncio.run(send_all(buffer, sink))
    assert sink.texts(launch) == texts(printed)


def test_what_docker_has_thrown_away_meanwhile_costs_nothing_that_comes_after(tmp_path: Path) -> None:
    printed = lines(100)
    sink, launch = CollectingSink(), make_launch("true")
    buffer = OutputBuffer(launch, tmp_path, tail_only=False)
    read(buffer, printed[:50])
    read(buffer, printed[40:])  # the files were rotated: its first lines are gone
    asyncio.run(send_all(buffer, sink))
    assert sink.texts(launch) == texts(printed)


# -- a worker that was killed -----------------------------------------------------------------


class KillsBeforeNoting(CollectingSink):
    """Takes what it is sent so many times; then the worker dies before it can note that."""

    def __init__(self, takes: int) -> None:
        super().__init__()
        self.takes = takes

    async def send(self, lines: list[LogLine]) -> None:
        await super().send(lines)
        self.takes -= 1
        if not self.takes:
            raise asyncio.CancelledError


@pytest.mark.parametrize("takes", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_the_next_worker_goes_on_where_the_killed_one_was(tmp_path: Path, takes: int, seed: int) -> None:
    printed = mixed(1800, seed)
    launch, sink = make_launch("true"), KillsBeforeNoting(takes)

    async def work(buffer: OutputBuffer, seen: Printed) -> None:
        read(buffer, seen)
        sender = OutputSender(sink)
        sender.add("x", buffer)
        while sink.takes and not buffer.is_empty:
            await asyncio.sleep(0.01)
        await sender.close()

    asyncio.run(work(OutputBuffer(launch, tmp_path, tail_only=False), printed[:1600]))
    assert sink.takes == 0, "it was killed before all had been sent"
    sink.takes = -1  # for ever
    asyncio.run(work(OutputBuffer(launch, tmp_path, tail_only=False, adopted=True), printed))
    assert sink.texts(launch) == texts(printed)
    times = [line.at_us for line in sink.lines]
    assert times == sorted(times)


def test_what_an_earlier_attempt_printed_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    sink, first = CollectingSink(), make_launch("true")
    arrived = [LogLine(first.job.id, START_NS // 1000 - 9_000_000 + n, "earlier") for n in range(5)]
    sink.lines += arrived
    second = replace(first, attempt=2, planned=START_NS / 1e9 - 1)
    buffer = OutputBuffer(second, tmp_path, tail_only=False, adopted=True)
    read(buffer, lines(10))
    asyncio.run(send_all(buffer, sink))
    assert sink.texts(second) == ["earlier"] * 5 + texts(lines(10))


# -- a server that is away --------------------------------------------------------------------


class AnswersGetLost(CollectingSink):
    """Every other time it takes what it is sent, and the sender hears of an error."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    async def send(self, lines: list[LogLine]) -> None:
        await super().send(lines)
        self.calls += 1
        if self.calls % 2:
            raise ConnectionError("the answer got lost")


def test_an_answer_that_gets_lost_doubles_nothing(tmp_path: Path) -> None:
    sink, launch = AnswersGetLost(), make_launch("true")
    buffer = OutputBuffer(launch, tmp_path, tail_only=False)
    read(buffer, lines(1700))
    asyncio.run(send_all(buffer, sink))
    assert sink.texts(launch) == texts(lines(1700))


def test_a_server_that_comes_back_gets_everything_even_of_a_job_that_is_over(tmp_path: Path) -> None:
    sink, launch = CollectingSink(), make_launch("true")
    sink.fails = True

    async def outage() -> None:
        buffer, sender = OutputBuffer(launch, tmp_path, tail_only=False), OutputSender(sink)
        sender.add("x", buffer)
        read(buffer, lines(30))
        await sender.drain("x", 0.05)
        assert not sink.lines
        sender.remove("x")  # its end was noted meanwhile
        sink.fails = False
        await sender.drain("x", 10)
        await sender.close()

    asyncio.run(outage())
    assert sink.texts(launch) == texts(lines(30))


def test_a_resumed_feed_waits_until_the_server_can_tell_what_arrived(tmp_path: Path) -> None:
    class CannotTell(CollectingSink):
        asked = 0

        async def count_after(self, job_id: str, at_us: int) -> int:
            self.asked += 1
            if self.asked < 3:
                raise ConnectionError("not yet")
            return await super().count_after(job_id, at_us)

    sink, launch = CannotTell(), make_launch("true")
    sink.lines = [LogLine(launch.job.id, at_ns // 1000, text) for at_ns, text in lines(4)]
    buffer = OutputBuffer(launch, tmp_path, tail_only=False, adopted=True)
    read(buffer, lines(10))
    asyncio.run(send_all(buffer, sink))
    assert sink.texts(launch) == texts(lines(10))


# -- a flood, and a flow that logs by itself --------------------------------------------------


def test_of_a_flood_the_end_is_kept_and_the_gap_is_told(tmp_path: Path) -> None:
    sink, launch = CollectingSink(), make_launch("true")
    buffer = OutputBuffer(launch, tmp_path, tail_only=False)
    read(buffer, lines(output.MOST_PENDING + 10, step_ns=1000))
    asyncio.run(send_all(buffer, sink))
    [told] = [line.text for line in sink.lines if line.from_worker]
    assert told.startswith("10,000 lines came too fast")
    assert sink.texts(launch) == texts(lines(10_010, first=10_000))


def test_many_containers_are_served_together(tmp_path: Path) -> None:
    sink, launches = CollectingSink(), [make_launch("true") for _ in range(40)]

    async def all_at_once() -> None:
        sender = OutputSender(sink)
        for launch in launches:
            buffer = OutputBuffer(launch, tmp_path, tail_only=False)
            read(buffer, lines(100))
            sender.add(launch.id, buffer)
        for launch in launches:
            await sender.drain(launch.id, 10)
        await sender.close()

    asyncio.run(all_at_once())
    assert all(sink.texts(launch) == texts(lines(100)) for launch in launches)


def quiet_one(tmp_path: Path, then: Callable[[OutputBuffer], None]) -> tuple[CollectingSink, Launch]:
    sink, launch = CollectingSink(), make_launch("true", handles_intents=True)
    buffer = OutputBuffer(launch, tmp_path, tail_only=True)
    read(buffer, lines(200))
    then(buffer)
    asyncio.run(send_all(buffer, sink))
    return sink, launch


def test_a_flow_that_ended_well_is_not_repeated(tmp_path: Path) -> None:
    sink, launch = quiet_one(tmp_path, lambda buffer: None)
    assert sink.texts(launch) == []


def test_of_a_flow_that_ended_badly_the_last_words_are_shown(tmp_path: Path) -> None:
    sink, launch = quiet_one(tmp_path, OutputBuffer.release_tail)
    assert sink.texts(launch) == texts(lines(50, first=150))


# -- lines that Docker cut --------------------------------------------------------------------


def test_pieces_of_a_long_line_are_put_together_though_another_stream_comes_between() -> None:
    assembler, time, later = (
        LineAssembler(),
        b"2026-01-01T00:00:00.000000001Z ",
        b"2026-01-01T00:00:00.000000002Z ",
    )
    heard = [
        line
        for message in (
            time + b"a" * 16384,
            later + b"err\n",
            time + b"b" * 10,
            time + b"c\r\n",
            later + b"tail",
        )
        for line in assembler.add(message)
    ]
    assert [text for _, text in heard] == ["err", "a" * 16384 + "b" * 10 + "c"]
    assert [text for _, text in assembler.unfinished()] == ["tail"]


def test_a_character_that_was_cut_in_two_is_whole_again() -> None:
    assembler, time = LineAssembler(), b"2026-01-01T00:00:00Z "
    euro = "€".encode()
    assert list(assembler.add(time + euro[:1])) == []
    assert [text for _, text in assembler.add(time + euro[1:] + b"\n")] == ["€"]


def test_of_a_progress_bar_what_is_seen_last_is_shown() -> None:
    [(_, text)] = LineAssembler().add(b"2026-01-01T00:00:00Z \r10%\r50%\r100%\n")
    assert text == "100%"


def test_a_line_without_end_is_shown_in_pieces() -> None:
    assembler, time = LineAssembler(), b"2026-01-01T00:00:00Z "
    heard = [text for _ in range(10) for _, text in assembler.add(time + b"x" * 16384)]
    assert [len(text) for text in heard] == [output.LONGEST_LINE] * 2
    assert sum(len(text) for _, text in assembler.unfinished()) == 10 * 16384 - 2 * output.LONGEST_LINE
