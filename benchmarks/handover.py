"""How long a device stands idle between two jobs, because of us, with a long line waiting.

    python benchmarks/handover.py [--runs 50] [--waiting 1000] [--job-seconds 0.5] [--json FILE]

One device, and a line of due runs that is never shorter than `--waiting`. Each run is a short
command instead of a flow, so no interpreter's start is counted. Told in two ways:

    by the processes   a job's last act notes the time, and so does the next job's first act: what
                       somebody watching the device would see
    by the warehouse   from attempt_ends.ended to the next attempts.started, which is what SQL
                       over the facts shows, and where that time goes

The runs are created in the state that our worker gives a waiting run, because this is about a line
that stands, not about one that has just come and that Prefect still marks as late, run by run.

Takes about 5 minutes, most of them to create the runs. Exit code 1 when a goal is missed.
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
    Api,
    Goal,
    Spread,
    arguments,
    at_least_one,
    carry_out,
    conclude,
    private_stack,
    say,
    wait_until,
)

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
AT_ONCE = 50  # runs created in one request
BETWEEN_REQUESTS_S = 2.0
LONG_S = 1800.0

TURNS = """
    select concat(job_id, '.', attempt), epoch(planned), epoch(started), epoch(ended)
    from attempts join attempt_ends using (job_id, attempt)
    order by started
"""
LINE = "select epoch(time), waiting from decisions where started > 0"


@dataclass(frozen=True)
class Turn:
    """One job's turn on the device. All times are seconds since the epoch."""

    planned: float  # the policy chose it
    started: float  # the worker says it was launched
    began: float  # its process' first act
    finished: float  # its process' last act
    ended: float  # the worker says it has ended


Gap = Callable[[Turn, Turn], float]

SEEN: Gap = lambda a, b: b.began - a.finished  # noqa: E731
TOLD: Gap = lambda a, b: b.started - a.ended  # noqa: E731
PARTS: dict[str, Gap] = {
    "process gone -> noticed, device free": lambda a, b: a.ended - a.finished,
    "device free -> next chosen": lambda a, b: b.planned - a.ended,
    "next chosen -> claimed and launched": lambda a, b: b.started - b.planned,
    "launched -> its first act": lambda a, b: b.began - b.started,
}


def main() -> int:
    parser = arguments(__doc__ or "", runs=50, what="handovers that count (default: 50)")
    parser.add_argument("--waiting", type=at_least_one, default=1000, help="runs in line (default: 1000)")
    parser.add_argument("--job-seconds", type=float, default=0.5, help="length of a job (default: 0.5)")
    given = parser.parse_args()
    turns, waiting = measure(given.runs, given.waiting, given.job_seconds)
    handovers = list(pairwise(turns))

    def spread(gap: Gap) -> Spread:
        return Spread.of([gap(a, b) for a, b in handovers])

    print(f"A device changing hands {len(handovers)} times, {waiting:,} or more waiting, in ms\n")
    print(f"{'':<40}{SPREAD_HEADING}")
    for name, gap in {"by the processes": SEEN, "by the warehouse": TOLD}.items():
        print(f"{name:<40}{spread(gap).text(1000, 0)}")
    print("where it goes")
    for name, gap in PARTS.items():
        print(f"  {name:<38}{spread(gap).text(1000, 0)}")

    goals = [
        Goal("device free to next launched, by the processes", 1000 * spread(SEEN).median, GOAL_MS, " ms"),
        Goal("device free to next launched, by the warehouse", 1000 * spread(TOLD).median, GOAL_MS, " ms"),
    ]
    return conclude(goals, {"waiting": waiting, "turns": [asdict(turn) for turn in turns]}, given.json)


def measure(handovers: int, waiting: int, job_seconds: float) -> tuple[list[Turn], int]:
    """The turns that count, one more than there are handovers, and how long the line was at least."""
    turns = WARM_UP + handovers + 1
    with private_stack("1x1") as stack:
        api, notes = Api(stack.api_url), stack.home / "notes"
        notes.mkdir()
        fill_line(api, deploy(stack, api, notes, job_seconds), turns + waiting)
        stack.start_worker()
        say(f"watching {handovers} handovers, after {WARM_UP} to warm up")
        wait_until(lambda: len(list(notes.iterdir())) >= turns, "the jobs have run", LONG_S)
        time.sleep(2)  # for the paperwork on the last one
        stack.stop_worker()  # which brings every fact to the warehouse
        counted = read_turns(stack, notes)[WARM_UP:turns]
        return counted, shortest_line(stack, counted)


def deploy(stack: Stack, api: Api, notes: Path, job_seconds: float) -> str:
    """A deployment whose runs are the job above. Its id."""
    script = stack.home / "job.sh"
    script.write_text(textwrap.dedent(JOB))
    flow = api.post("/flows/", {"name": "handover"})["id"]
    deployment = {
        "name": "handover",
        "flow_id": flow,
        "entrypoint": "none.py:none",  # never looked at: the command runs instead
        "work_pool_name": stack.pool,
        "job_variables": {"command": f"sh '{script}' '{notes}' {job_seconds}"},
    }
    return str(api.post("/deployments/", deployment)["id"])


def fill_line(api: Api, deployment: str, runs: int) -> None:
    """Create that many due runs. SQLite lets one writer in, and the server also writes the events of
    what it just created: it is given the time to, and what it could not create is asked for again."""
    say(f"creating {runs:,} due runs")
    due = {"scheduled_time": datetime.now(UTC).isoformat()}
    run = {"state": {"type": "SCHEDULED", "name": WAITING, "state_details": due}}
    deadline = time.monotonic() + LONG_S
    while runs > 0:
        wanted = [run] * min(AT_ONCE, runs)
        results = api.post(f"/deployments/{deployment}/create_flow_run/bulk", wanted)["results"]
        refused = [each["error"] for each in results if each["status"] != "CREATED"]
        runs -= len(results) - len(refused)
        if refused and time.monotonic() > deadline:
            raise StackError(f"The server refuses {runs} runs: {refused[0].splitlines()[0]}")
        time.sleep(BETWEEN_REQUESTS_S)


def read_turns(stack: Stack, notes: Path) -> list[Turn]:
    """What the jobs noted beside what the worker did, in the order of the turns."""
    turns = []
    for attempt, planned, started, ended in ask(stack, TURNS):
        began, finished = map(float, (notes / attempt).read_text().split())
        turns.append(Turn(planned, started, began, finished, ended))
    return turns


def shortest_line(stack: Stack, turns: list[Turn]) -> int:
    """The fewest runs that waited when one of these turns was planned."""
    planned = {turn.planned for turn in turns}
    return min(int(waiting) for time, waiting in ask(stack, LINE) if time in planned)


def ask(stack: Stack, question: str) -> list[tuple[Any, ...]]:
    return run_query(stack.home / "warehouse.duckdb", question).rows


if __name__ == "__main__":
    carry_out(main)
