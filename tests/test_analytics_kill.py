"""Exactly once: recorders are killed while they write and drain, round after round."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from analytics_store import Place, die_after

from gpu_flows.analytics.query_runner import QueryError, run_query

ROUNDS = 12

# Writes numbered jobs and samples for ever, telling after each flush how far it is safe.
WORKER = """
import sys, time
from pathlib import Path
from gpu_flows.analytics.facts import JobSubmitted, Sampled
from gpu_flows.analytics.recorder import Recorder

database, spool, first = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
recorder = Recorder(database, spool, float(sys.argv[4]))
recorder.start()
number = first
while True:
    for number in range(number, number + 20):
        recorder.write(
            JobSubmitted(f"job-{number}", "pool", "n", "f", "d", "u", "[]", 1, 0, 0, None, None, number),
            Sampled(float(number), "GPU-1", 1.0, None, None, None),
        )
    number += 1
    assert recorder.flush()
    print(number, flush=True)
    time.sleep(0.002)
"""


@pytest.mark.slow
def test_nothing_flushed_is_lost_and_nothing_comes_twice(tmp_path: Path) -> None:
    place, dice = Place(tmp_path), random.Random(7)
    firsts = range(0, ROUNDS * 1_000_000, 1_000_000)  # what one round did not tell, the next does not write
    flushed = [range(first, run_and_kill(place, first, dice.uniform(0.02, 0.6))) for first in firsts]
    place.recorder().drain()
    for table, number in (("jobs", "job_id[5:]::bigint"), ("samples", "epoch(time)::bigint")):
        found = [row[0] for row in place.ask(f"select {number} from {table}")]
        assert len(found) == len(set(found)), f"{table} came twice"
        lost = {number for numbers in flushed for number in numbers} - set(found)
        assert not lost, f"{table} lost {len(lost)}"
    assert place.count("jobs") == place.count("samples")
    assert place.spooled() == []


@pytest.mark.parametrize(
    "moment",
    ["rename", "read_text", "unlink"],
    ids=["before the file is ready", "with the warehouse open", "committed but not removed"],
)
def test_killed_at_the_worst_moment(tmp_path: Path, moment: str) -> None:
    """Each is what a drain does next with a spool file; the kill comes instead of it."""
    place = Place(tmp_path)
    die_after(
        place,
        "recorder.drain()\n"
        "recorder.write(*facts); recorder.flush()\n"
        f"Path.{moment} = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)\n"
        "recorder.drain()",
    )
    assert len(place.spooled()) == 1
    for _ in range(2):
        assert place.recorder().drain()
    assert (place.count("jobs"), place.count("samples")) == (1, 1)
    assert place.spooled() == []


@pytest.mark.slow
def test_another_process_reads_while_facts_stream_in(tmp_path: Path) -> None:
    place = Place(tmp_path)
    counts: list[tuple[int, int]] = []
    with worker(place, first=0, drain_every=0.2) as process:
        try:
            while len(counts) < 8:
                with suppress(QueryError):  # the warehouse is not there yet
                    counts += run_query(
                        place.database, "select count(*), (from samples select count(*)) from jobs"
                    ).rows
        finally:
            process.kill()
    assert all(jobs == samples for jobs, samples in counts), "an answer saw half a transaction"
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


def worker(place: Place, first: int, drain_every: float) -> subprocess.Popen[str]:
    arguments = [str(place.database), str(place.spool), str(first), str(drain_every)]
    return subprocess.Popen([sys.executable, "-c", WORKER, *arguments], stdout=subprocess.PIPE, text=True)


def run_and_kill(place: Place, first: int, after_s: float) -> int:
    """Returns the number up to which the worker said it was safe."""
    with worker(place, first, drain_every=0.001) as process:
        assert process.stdout is not None
        told = [process.stdout.readline()]
        time.sleep(after_s)
        process.kill()
        told += [line for line in process.stdout if line.endswith("\n")]
    return int(told[-1])
