"""All lines of a container arrive once and in order, whatever fails in between."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from containers import CollectingSink, make_launch

from gpu_flows.runtimes import output, output_buffer
from gpu_flows.runtimes.base import Launch
from gpu_flows.runtimes.docker.container_follower import LineAssembler
from gpu_flows.runtimes.output import LinesRefused, OutputSender
from gpu_flows.runtimes.output_buffer import LogLine, OutputBuffer

START_NS = 1_790_000_000_000_000_000
MS = 1_000_000
Printed = list[tuple[int, str]]


@pytest.fixture(autouse=True)
def short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "SEND_INTERVAL_S", 0.005)


def lines(count: int, step_ns: int = MS, first: int = 0) -> Printed:
    return [(START_NS + step_ns * number, f"line {number}") for number in range(first, first + count)]


def texts(printed: Printed) -> list[str]:
    return [text for _, text in printed]


def read(buffer: OutputBuffer, printed: Printed) -> None:
    """Read the output as from Docker: everything since the second that the buffer returns."""
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


def send_printed(tmp_path: Path, printed: Printed) -> CollectingSink:
    """Send these lines, and check that they arrive as they are."""
    sink, launch = CollectingSink(), make_launch("true")
    buffer = OutputBuffer(launch, tmp_path, tail_only=False)
    read(buffer, printed)
    asyncio.run(send_all(buffer, sink))
    assert sink.texts(launch) == texts(printed)
    return sink


# -- order ------------------------------------------------------------------------------------


def test_lines_arrive_in_order_and_with_their_times(tmp_path: Path) -> None:
    sink = send_printed(tmp_path, lines(2000))
    assert [line.at_us for line in sink.lines] == [(START_NS + MS * n) // 1000 for n in range(2000)]


def test_lines_of_the_same_time_get_increasing_times(tmp_path: Path) -> None:
    sink = send_printed(tmp_path, [(START_NS + number // 100, f"{number}") for number in range(1000)])
    times = [line.at_us for line in sink.lines]
    assert times == sorted(set(times))


def test_lines_with_times_out_of_order_keep_their_order(tmp_path: Path) -> None:
    send_printed(
        tmp_path, [(START_NS + 9, "err"), (START_NS, "out"), (START_NS + 5, "err"), (START_NS + 5, "")]
    )


def test_those_who_follow_the_progress_get_the_newest_lines_once(tmp_path: Path) -> None:
    buffer = OutputBuffer(make_launch("true"), tmp_path, tail_only=True)
    read(buffer, lines(1200))
    assert buffer.take_new() == texts(lines(1200))[-500:]
    assert buffer.take_new() == []


def test_a_message_of_the_worker_is_sorted_by_its_time(tmp_path: Path) -> None:
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


# -- repeated reading -------------------------------------------------------------------------


def mixed(count: int, seed: int) -> Printed:
    """Return bursts and pauses of two streams: with equal times, and times slightly out of order."""
    dice, now, printed = random.Random(seed), START_NS, []
    for number in range(count):
        now += dice.choice([0, 0, 0, 50, MS, 700 * MS])
        printed.append((now - dice.choice([0, 0, 40, 900_000]), f"line {number}"))
    return printed


@pytest.mark.parametrize("seed", range(20))
def test_a_stream_that_breaks_often_loses_and_repeats_no_line(tmp_path: Path, seed: int) -> None:
    printed, dice = mixed(300, seed), random.Random(seed)
    sink, launch = CollectingSink(), make_launch("true")
    buffer = OutputBuffer(launch, tmp_path, tail_only=False)
    for end in sorted(dice.sample(range(len(printed)), 10)):
        read(buffer, printed[:end])
    read(buffer, printed)
    read(buffer, printed)
    asyncio.run(send_all(buffer, sink))
    assert sink.texts(launch) == texts(printed)


def test_lines_that_docker_rotated_away_cost_no_later_line(tmp_path: Path) -> None:
    printed = lines(100)
    sink, launch = CollectingSink(), make_launch("true")
    buffer = OutputBuffer(launch, tmp_path, tail_only=False)
    read(buffer, printed[:50])
    read(buffer, printed[40:])  # Docker rotated its log files
    asyncio.run(send_all(buffer, sink))
    assert sink.texts(launch) == texts(printed)


# -- a killed worker --------------------------------------------------------------------------


class KilledBeforeConfirm(CollectingSink):
    """Accepts this number of batches. Then the worker is killed before it can confirm the last one."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.batches = batches

    async def send(self, lines: list[LogLine]) -> None:
        await super().send(lines)
        self.batches -= 1
        if not self.batches:
            raise asyncio.CancelledError


@pytest.mark.parametrize("batches", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_the_next_worker_continues_after_the_killed_one(tmp_path: Path, batches: int, seed: int) -> None:
    printed = mixed(1800, seed)
    launch, sink = make_launch("true"), KilledBeforeConfirm(batches)

    async def work(buffer: OutputBuffer, seen: Printed) -> None:
        read(buffer, seen)
        sender = OutputSender(sink)
        sender.add("x", buffer)
        while sink.batches and not buffer.is_empty:
            await asyncio.sleep(0.01)
        await sender.close()

    asyncio.run(work(OutputBuffer(launch, tmp_path, tail_only=False), printed[:1600]))
    assert sink.batches == 0, "the worker was killed before all lines were sent"
    sink.batches = -1  # without limit
    asyncio.run(work(OutputBuffer(launch, tmp_path, tail_only=False, adopted=True), printed))
    assert sink.texts(launch) == texts(printed)
    times = [line.at_us for line in sink.lines]
    assert times == sorted(times)


def test_lines_of_an_earlier_attempt_are_not_counted(tmp_path: Path) -> None:
    sink, first = CollectingSink(), make_launch("true")
    arrived = [LogLine(first.job.id, START_NS // 1000 - 9_000_000 + n, "earlier") for n in range(5)]
    sink.lines += arrived
    second = replace(first, attempt=2, planned=START_NS / 1e9 - 1)
    buffer = OutputBuffer(second, tmp_path, tail_only=False, adopted=True)
    read(buffer, lines(10))
    asyncio.run(send_all(buffer, sink))
    assert sink.texts(second) == ["earlier"] * 5 + texts(lines(10))


# -- a server that does not answer ------------------------------------------------------------


class LosesAnswers(CollectingSink):
    """Accepts all batches, but raises an error for every other one."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    async def send(self, lines: list[LogLine]) -> None:
        await super().send(lines)
        self.calls += 1
        if self.calls % 2:
            raise ConnectionError("the answer was lost")


def test_a_lost_answer_repeats_no_line(tmp_path: Path) -> None:
    sink, launch = LosesAnswers(), make_launch("true")
    buffer = OutputBuffer(launch, tmp_path, tail_only=False)
    read(buffer, lines(1700))
    asyncio.run(send_all(buffer, sink))
    assert sink.texts(launch) == texts(lines(1700))


def test_lines_are_sent_after_an_outage_even_if_the_job_has_ended(tmp_path: Path) -> None:
    sink, launch = CollectingSink(), make_launch("true")
    sink.fails = True

    async def outage() -> None:
        buffer, sender = OutputBuffer(launch, tmp_path, tail_only=False), OutputSender(sink)
        sender.add("x", buffer)
        read(buffer, lines(30))
        await sender.drain("x", 0.05)
        assert not sink.lines
        sender.remove("x")  # its end was recorded meanwhile
        sink.fails = False
        await sender.drain("x", 10)
        await sender.close()

    asyncio.run(outage())
    assert sink.texts(launch) == texts(lines(30))


def test_an_adopted_buffer_waits_until_the_server_can_count_its_lines(tmp_path: Path) -> None:
    class CannotCount(CollectingSink):
        calls = 0

        async def count_after(self, job_id: str, at_us: int) -> int:
            self.calls += 1
            if self.calls < 3:
                raise ConnectionError("not yet")
            return await super().count_after(job_id, at_us)

    sink, launch = CannotCount(), make_launch("true")
    sink.lines = [LogLine(launch.job.id, at_ns // 1000, text) for at_ns, text in lines(4)]
    buffer = OutputBuffer(launch, tmp_path, tail_only=False, adopted=True)
    read(buffer, lines(10))
    asyncio.run(send_all(buffer, sink))
    assert sink.texts(launch) == texts(lines(10))


# -- too many lines, and flows that log to Prefect themselves ---------------------------------


def test_too_many_lines_are_cut_at_the_start_with_a_note(tmp_path: Path) -> None:
    sink, launch = CollectingSink(), make_launch("true")
    buffer = OutputBuffer(launch, tmp_path, tail_only=False)
    read(buffer, lines(output_buffer.MOST_PENDING + 10, step_ns=1000))
    asyncio.run(send_all(buffer, sink))
    [note] = [line.text for line in sink.lines if line.from_worker]
    assert note.startswith("10,000 lines came too fast")
    assert sink.texts(launch) == texts(lines(10_010, first=10_000))


def test_the_lines_of_many_containers_are_sent_together(tmp_path: Path) -> None:
    sink, launches = CollectingSink(), [make_launch("true") for _ in range(40)]

    async def send_all_buffers() -> None:
        sender = OutputSender(sink)
        for launch in launches:
            buffer = OutputBuffer(launch, tmp_path, tail_only=False)
            read(buffer, lines(100))
            sender.add(launch.id, buffer)
        for launch in launches:
            await sender.drain(launch.id, 10)
        await sender.close()

    asyncio.run(send_all_buffers())
    assert all(sink.texts(launch) == texts(lines(100)) for launch in launches)


def send_tail_only(tmp_path: Path, then: Callable[[OutputBuffer], None]) -> tuple[CollectingSink, Launch]:
    sink, launch = CollectingSink(), make_launch("true", handles_intents=True)
    buffer = OutputBuffer(launch, tmp_path, tail_only=True)
    read(buffer, lines(200))
    then(buffer)
    asyncio.run(send_all(buffer, sink))
    return sink, launch


def test_the_output_of_a_successful_flow_is_not_sent(tmp_path: Path) -> None:
    sink, launch = send_tail_only(tmp_path, lambda buffer: None)
    assert sink.texts(launch) == []


def test_the_last_lines_of_a_failed_flow_are_sent(tmp_path: Path) -> None:
    sink, launch = send_tail_only(tmp_path, OutputBuffer.release_tail)
    assert sink.texts(launch) == texts(lines(50, first=150))


# -- lines that Docker splits -----------------------------------------------------------------


def test_the_pieces_of_a_long_line_are_joined() -> None:
    assembler, time, later = (
        LineAssembler(),
        b"2026-01-01T00:00:00.000000001Z ",
        b"2026-01-01T00:00:00.000000002Z ",
    )
    lines = [
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
    assert [text for _, text in lines] == ["err", "a" * 16384 + "b" * 10 + "c"]
    assert [text for _, text in assembler.unfinished()] == ["tail"]


def test_a_split_character_is_joined() -> None:
    assembler, time = LineAssembler(), b"2026-01-01T00:00:00Z "
    euro = "€".encode()
    assert list(assembler.add(time + euro[:1])) == []
    assert [text for _, text in assembler.add(time + euro[1:] + b"\n")] == ["€"]


def test_only_the_last_state_of_a_progress_bar_is_kept() -> None:
    [(_, text)] = LineAssembler().add(b"2026-01-01T00:00:00Z \r10%\r50%\r100%\n")
    assert text == "100%"


def test_an_endless_line_is_cut_into_pieces() -> None:
    assembler, time = LineAssembler(), b"2026-01-01T00:00:00Z "
    lines = [text for _ in range(10) for _, text in assembler.add(time + b"x" * 16384)]
    assert [len(text) for text in lines] == [output_buffer.LONGEST_LINE] * 2
    assert sum(len(text) for _, text in assembler.unfinished()) == 10 * 16384 - 2 * output_buffer.LONGEST_LINE


# -- a server that refuses --------------------------------------------------------------------


class Refuses(CollectingSink):
    """Refuses requests over a size, as proxies do, and those with the word `poison`, as a server may."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__()
        self.most_bytes, self.refusals = most_bytes, 0

    async def send(self, lines: list[LogLine]) -> None:
        if len(json.dumps([line._asdict() for line in lines])) > self.most_bytes:
            self.refusals += 1
            raise LinesRefused("HTTP 413")
        if any("poison" in line.text for line in lines):
            raise LinesRefused("HTTP 422")
        await super().send(lines)


def test_no_request_exceeds_the_limit_of_a_proxy(tmp_path: Path) -> None:
    sink, launches = Refuses(1_000_000), [make_launch("true") for _ in range(5)]
    wide = [(START_NS + n * MS, "\x01" * output_buffer.LONGEST_LINE) for n in range(8)]

    async def send_all_buffers() -> None:
        sender = OutputSender(sink)
        for launch in launches:
            buffer = OutputBuffer(launch, tmp_path, tail_only=False)
            read(buffer, wide)
            sender.add(launch.id, buffer)
        for launch in launches:
            await sender.drain(launch.id, 10)
        await sender.close()

    asyncio.run(send_all_buffers())
    assert not sink.refusals
    assert all(sink.texts(launch) == texts(wide) for launch in launches)


def test_a_refused_line_is_replaced_and_delays_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink, good, bad = Refuses(20_000), make_launch("true"), make_launch("true")
    printed = [*lines(300), (START_NS + 500 * MS, "poison"), *lines(300, first=600)]
    printed[100] = (printed[100][0], "x" * 50_000)

    async def send_both() -> None:
        sender = OutputSender(sink)
        for launch, output_lines in ((good, lines(600)), (bad, printed)):
            buffer = OutputBuffer(launch, tmp_path / launch.id, tail_only=False)
            (tmp_path / launch.id).mkdir()
            read(buffer, output_lines)
            sender.add(launch.id, buffer)
        for launch in (good, bad):
            await sender.drain(launch.id, 10)
        await sender.close()

    asyncio.run(send_both())
    assert sink.texts(good) == texts(lines(600))
    expected = texts(printed)
    expected[100] = "[gpu-flows: the server refused this line of 50,000 characters (HTTP 413)]"
    expected[300] = "[gpu-flows: the server refused this line of 6 characters (HTTP 422)]"
    assert sink.texts(bad) == expected
    assert caplog.text.count("The server refuses a line") == 1


def test_a_server_that_accepts_nothing_of_a_run_stops_no_other(tmp_path: Path) -> None:
    class Deleted(CollectingSink):
        async def send(self, lines: list[LogLine]) -> None:
            if any(line.job_id == gone.job.id for line in lines):
                raise LinesRefused("HTTP 422")
            await super().send(lines)

    sink, gone, other = Deleted(), make_launch("true"), make_launch("true")

    async def send_both() -> None:
        sender = OutputSender(sink)
        for launch in (gone, other):
            buffer = OutputBuffer(launch, tmp_path, tail_only=False)
            read(buffer, lines(20))
            sender.add(launch.id, buffer)
        await sender.drain(other.id, 10)
        await sender.drain(gone.id, 10)
        await sender.close()

    asyncio.run(send_both())
    assert sink.texts(other) == texts(lines(20))
