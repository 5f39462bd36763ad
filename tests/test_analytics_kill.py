"""Facts are loaded exactly once, also when recorders are killed while they write and load."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from analytics_store import Store, run_and_kill

from gpu_flows.analytics.query_runner import QueryError, run_query

ROUNDS = 12

# Writes numbered jobs and samples until it is killed. Prints after each flush up to which number.
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
def test_every_flushed_fact_is_loaded_exactly_once(tmp_path: Path) -> None:
    store, dice = Store(tmp_path), random.Random(7)
    firsts = range(0, ROUNDS * 1_000_000, 1_000_000)  # rounds never write the same numbers
    flushed = [range(first, write_until_killed(store, first, dice.uniform(0.02, 0.6))) for first in firsts]
    store.recorder().drain()
    for table, number in (("jobs", "job_id[5:]::bigint"), ("samples", "epoch(time)::bigint")):
        found = [row[0] for row in store.query(f"select {number} from {table}")]
        assert len(found) == len(set(found)), f"{table} are there twice"
        lost = {number for numbers in flushed for number in numbers} - set(found)
        assert not lost, f"{table} lost {len(lost)}"
    assert store.spooled() == []


@pytest.mark.parametrize(
    "moment",
    ["rename", "read_text", "unlink"],
    ids=["before the file is ready", "with the warehouse open", "committed but not removed"],
)
def test_a_kill_at_a_critical_moment_loses_and_repeats_nothing(tmp_path: Path, moment: str) -> None:
    """The process is killed in place of the call that a drain makes next for a spool file."""
    store = Store(tmp_path)
    run_and_kill(
        store,
        "recorder.drain()\n"
        "recorder.write(*facts); recorder.flush()\n"
        f"Path.{moment} = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)\n"
        "recorder.drain()",
    )
    assert len(store.spooled()) == 1
    for _ in range(2):
        assert store.recorder().drain()
    assert (store.count("jobs"), store.count("samples")) == (1, 1)
    assert store.spooled() == []


@pytest.mark.slow
def test_another_process_reads_while_facts_are_loaded(tmp_path: Path) -> None:
    store = Store(tmp_path)
    counts: list[tuple[int, int]] = []
    with worker(store, first=0, drain_every=0.2) as process:
        try:
            while len(counts) < 8 or counts[-1] == counts[0]:
                with suppress(QueryError):  # the warehouse is not there yet
                    counts += run_query(
                        store.database, "select count(*), (from samples select count(*)) from jobs"
                    ).rows
        finally:
            process.kill()
    assert all(jobs == samples for jobs, samples in counts), "a query saw half a transaction"
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


def worker(store: Store, first: int, drain_every: float) -> subprocess.Popen[str]:
    arguments = [str(store.database), str(store.spool), str(first), str(drain_every)]
    return subprocess.Popen([sys.executable, "-c", WORKER, *arguments], stdout=subprocess.PIPE, text=True)


def write_until_killed(store: Store, first: int, after_s: float) -> int:
    """Kill the worker after some time. Returns the number up to which it reported facts as flushed."""
    with worker(store, first, drain_every=0.001) as process:
        assert process.stdout is not None
        reported = [process.stdout.readline()]
        time.sleep(after_s)
        process.kill()
        reported += [line for line in process.stdout if line.endswith("\n")]
    return int(reported[-1])
