"""Measures how long a device is idle between two jobs while many jobs wait.

    python benchmarks/handover.py [--runs 50] [--waiting 1000] [--job-seconds 0.5] [--json FILE]

One device, and a queue of due runs that is never shorter than `--waiting`. Each run is a short command
instead of a flow, so that the start of an interpreter does not count. Measured in two ways:

    by the processes   from the time that a job writes as its last step to the time that the next job
                       writes as its first step
    by the warehouse   from attempt_ends.ended to the next attempts.started, as SQL over the facts shows,
                       with its parts

The runs are created in the state that the worker gives to waiting runs. Otherwise Prefect would mark them
as late, one by one, during the measurement.

Takes about 5 minutes, mostly to create the runs. Exit code 1 when a goal is missed.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from common import (
    SPREAD_HEADING,
    Goal,
    Spread,
    log_progress,
    make_parser,
    positive_int,
    report,
    run_benchmark,
    wait_until,
)
from live_pool import Api, private_stack

from gpu_flows.analytics.query_runner import run_query
from gpu_flows.bootstrap.local_stack import Stack, StackError
from gpu_flows.prefect_api.run_states import WAITING

JOB = """
    began=$(date +%s.%N)
    sleep "$2"
    echo "$began $(date +%s.%N)" >"$1/$GPU_FLOWS_ATTEMPT"
"""
WARM_UP = 10  # handovers that are not counted
GOAL_MS = 100.0
BATCH = 50  # runs created in one request
BETWEEN_REQUESTS_S = 2.0
LONG_S = 1800.0

TURNS = """
    select concat(job_id, '.', attempt), epoch(planned), epoch(started), epoch(ended)
    from attempts join attempt_ends using (job_id, attempt)
    order by started
"""
QUEUE = "select epoch(time), waiting from decisions where started > 0"


@dataclass(frozen=True)
class Turn:
    """One job's turn on the device. All times are seconds since the epoch."""

    planned: float  # when the policy chose it
    started: float  # when the worker launched it
    began: float  # written by the process as its first step
    finished: float  # written by the process as its last step
    ended: float  # when the worker saw its end


Gap = Callable[[Turn, Turn], float]

BY_PROCESSES: Gap = lambda a, b: b.began - a.finished  # noqa: E731
BY_WAREHOUSE: Gap = lambda a, b: b.started - a.ended  # noqa: E731
PARTS: dict[str, Gap] = {
    "process ended -> device free": lambda a, b: a.ended - a.finished,
    "device free -> next chosen": lambda a, b: b.planned - a.ended,
    "next chosen -> claimed and launched": lambda a, b: b.started - b.planned,
    "launched -> its first step": lambda a, b: b.began - b.started,
}


def main() -> int:
    parser = make_parser(__doc__ or "", runs=50, what="handovers that count (default: 50)")
    parser.add_argument("--waiting", type=positive_int, default=1000, help="waiting runs (default: 1000)")
    parser.add_argument("--job-seconds", type=float, default=0.5, help="length of a job (default: 0.5)")
    given = parser.parse_args()
    turns, waiting = measure(given.runs, given.waiting, given.job_seconds)
    handovers = list(pairwise(turns))

    def spread(gap: Gap) -> Spread:
        return Spread.of([gap(a, b) for a, b in handovers])

    print(f"A device changing hands {len(handovers)} times, {waiting:,} or more waiting, in ms\n")
    print(f"{'':<40}{SPREAD_HEADING}")
    gaps = {"by the processes": BY_PROCESSES, "by the warehouse": BY_WAREHOUSE}
    for name, gap in gaps.items():
        print(f"{name:<40}{spread(gap).text(1000, 0)}")
    print("parts")
    for name, gap in PARTS.items():
        print(f"  {name:<38}{spread(gap).text(1000, 0)}")

    goals = [
        Goal(f"device free to next launched, {name}", 1000 * spread(gap).median, GOAL_MS, " ms")
        for name, gap in gaps.items()
    ]
    return report(goals, {"waiting": waiting, "turns": [asdict(turn) for turn in turns]}, given.json)


def measure(handovers: int, waiting: int, job_seconds: float) -> tuple[list[Turn], int]:
    """Return the turns that count, one more than handovers, and the shortest length of the queue."""
    turns = WARM_UP + handovers + 1
    with private_stack("1x1") as stack:
        api, notes = Api(stack.api_url), stack.home / "notes"
        notes.mkdir()
        fill_queue(api, deploy(stack, api, notes, job_seconds), turns + waiting)
        stack.start_worker()
        log_progress(f"watching {handovers} handovers, after {WARM_UP} to warm up")
        wait_until(lambda: len(list(notes.iterdir())) >= turns, "the jobs have run", LONG_S)
        time.sleep(2)  # until the worker has recorded the last end
        stack.stop_worker()  # a stopping worker writes all facts to the warehouse
        counted = read_turns(stack, notes)[WARM_UP:turns]
        return counted, shortest_queue(stack, counted)


def deploy(stack: Stack, api: Api, notes: Path, job_seconds: float) -> str:
    """Create a deployment whose runs are the job above, and return its id."""
    script = stack.home / "job.sh"
    script.write_text(textwrap.dedent(JOB))
    flow = api.post("/flows/", {"name": "handover"})["id"]
    deployment = {
        "name": "handover",
        "flow_id": flow,
        "entrypoint": "none.py:none",  # not used: the command runs instead
        "work_pool_name": stack.pool,
        "job_variables": {"command": f"sh '{script}' '{notes}' {job_seconds}"},
    }
    return str(api.post("/deployments/", deployment)["id"])


def fill_queue(api: Api, deployment: str, runs: int) -> None:
    """Create this number of due runs, and repeat those that the server could not create.

    SQLite has one writer at a time, and the server also writes an event for each run: hence the pauses.
    """
    log_progress(f"creating {runs:,} due runs")
    due = {"scheduled_time": datetime.now(UTC).isoformat()}
    run = {"state": {"type": "SCHEDULED", "name": WAITING, "state_details": due}}
    deadline = time.monotonic() + LONG_S
    while runs > 0:
        wanted = [run] * min(BATCH, runs)
        results = api.post(f"/deployments/{deployment}/create_flow_run/bulk", wanted)["results"]
        refused = [result["error"] for result in results if result["status"] != "CREATED"]
        runs -= len(results) - len(refused)
        if refused and time.monotonic() > deadline:
            raise StackError(f"The server refuses {runs} runs: {refused[0].splitlines()[0]}")
        time.sleep(BETWEEN_REQUESTS_S)


def read_turns(stack: Stack, notes: Path) -> list[Turn]:
    """Return the turns in their order, with the times of the processes and of the worker."""
    turns = []
    for attempt, planned, started, ended in query(stack, TURNS):
        began, finished = map(float, (notes / attempt).read_text().split())
        turns.append(Turn(planned, started, began, finished, ended))
    return turns


def shortest_queue(stack: Stack, turns: list[Turn]) -> int:
    """Return the lowest number of runs that waited when one of these turns was planned."""
    planned = {turn.planned for turn in turns}
    return min(int(waiting) for time, waiting in query(stack, QUEUE) if time in planned)


def query(stack: Stack, question: str) -> list[tuple[Any, ...]]:
    return run_query(stack.home / "warehouse.duckdb", question).rows


if __name__ == "__main__":
    run_benchmark(main)
