"""Jobs that keep a journal of their own, and the comparison of what they did with what the pool says.

A job appends a line to the journal when it starts and when it ends, with its attempt, its devices and the
time. So the journal tells what really happened, whatever workers, server and warehouse believe.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from itertools import accumulate, combinations
from pathlib import Path
from random import Random
from typing import Any

import psutil
from live import Pool

from gpu_flows.common.retry import wait_until
from gpu_flows.prefect_api.claims import parse_claim

ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
LINE = "echo {what} $GPU_FLOWS_ATTEMPT $CUDA_VISIBLE_DEVICES $(date +%s.%N) >> {journal}"


@dataclass
class Counts:
    """What a case found. Everything but the first two must be zero."""

    rounds: int = 0
    runs: int = 0
    lost: int = 0  # still waits, although the devices are free
    stuck: int = 0  # still claimed or running, although nothing runs
    doubled: int = 0  # started more than once
    untrue: int = 0  # its final state is not how it ended
    rivals: int = 0  # started under a lease after another run had started under a newer one
    overlaps: int = 0  # pairs of jobs on the same device at the same time
    leaked: int = 0  # processes and containers that outlived their job
    escaped: int = 0  # containers that saw what they may not
    missing: int = 0  # its end is not in the warehouse, or more than once

    def faults(self) -> dict[str, int]:
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: count for name, count in found.items() if count and name not in ("rounds", "runs")}

    def __str__(self) -> str:
        return "  ".join(f"{field.name} {getattr(self, field.name)}" for field in fields(self))


@dataclass(frozen=True)
class Interval:
    """One start of a job, as its journal has it. `end` is the start if it did not reach its end."""

    attempt: str
    devices: tuple[str, ...]
    start: float
    end: float
    finished: bool

    @property
    def run(self) -> str:
        return self.attempt.rpartition(".")[0]


class Workload:
    """`homes` are those of further workers of the pool, each with a warehouse of its own."""

    def __init__(self, pool: Pool, journal: Path, random: Random, homes: Sequence[Path] = ()) -> None:
        self.pool, self.journal, self._random, self._homes = pool, journal, random, homes
        self._codes: dict[str, int] = {}  # run -> exit code that its command ends with
        self._any_end: set[str] = set()  # runs whose end is not theirs to choose
        journal.touch()

    def add(
        self,
        count: int = 1,
        seconds: float | tuple[float, float] = 1.0,
        code: int = 0,
        flow: bool = False,
        any_end: bool = False,
        script: str = "",
        **variables: Any,
    ) -> list[str]:
        """Submit jobs that run the script, last so long (or between two times), and end with this code: bare
        commands, or runs of a flow. `any_end`: the job may also be reported as crashed."""
        submit = self.pool.submit if flow else lambda line, **job: self.pool.command(f"sh -c '{line}'", **job)
        least, most = seconds if isinstance(seconds, tuple) else (seconds, seconds)
        runs = []
        for _ in range(count):
            steps = [LINE.format(what="start", journal=self.journal), script]
            steps += [f"sleep {self._random.uniform(least, most):.2f}"]
            steps += [LINE.format(what="end", journal=self.journal), f"exit {code}"]
            runs.append(submit("; ".join(filter(None, steps)), **{"gpus": 1, **variables}))
        self._codes.update(dict.fromkeys(runs, code))
        if any_end:
            self._any_end.update(runs)
        return runs

    def started(self) -> set[str]:
        """The runs that have started."""
        return {interval.run for interval in self.read_journal()}

    def is_done(self) -> bool:
        return all(state["type"] in ENDED for state in self._states().values())

    def judge(self, patience_s: float = 180.0) -> Counts:
        """Wait for the ends of all runs, and count what went wrong."""
        wait_until(self.is_done, patience_s)
        states = self._states()
        journal = self.read_journal()
        starts = Counter(interval.run for interval in journal)
        counts = Counts(runs=len(self._codes))
        counts.lost = sum(state["type"] in ("SCHEDULED", "PAUSED") for state in states.values())
        counts.lost += len(self._codes) - len(states)
        counts.stuck = sum(state["type"] in ("PENDING", "RUNNING", "CANCELLING") for state in states.values())
        counts.doubled = sum(count > 1 for count in starts.values())
        finished = {interval.run for interval in journal if interval.finished}
        counts.untrue = sum(self._is_untrue(run, states[run]["type"], run in finished) for run in states)
        counts.overlaps = count_overlaps(journal)
        counts.rivals = count_rivals(self._leases(journal)) if self._homes else 0
        wait_until(lambda: not self._leaked(), 20)
        counts.leaked = self._leaked()
        ended = {run for run, state in states.items() if state["type"] in ENDED}
        wait_until(lambda: not self._missing(ended), 60)
        counts.missing = self._missing(ended)
        return counts

    def _is_untrue(self, run: str, state: str, finished: bool) -> bool:
        """Whether a run has ended otherwise than its command did."""
        if state not in ENDED or run in self._any_end:
            return False
        return not finished or state != ("FAILED" if self._codes[run] else "COMPLETED")

    def _states(self) -> dict[str, dict[str, Any]]:
        found = {}
        runs = list(self._codes)
        for first in range(0, len(runs), 200):
            body = {"flow_runs": {"id": {"any_": runs[first : first + 200]}}, "limit": 200}
            found.update(
                {run["id"]: run["state"] for run in self.pool.post("/flow_runs/filter", body) if run["state"]}
            )
        return found

    def read_journal(self) -> list[Interval]:
        opened: defaultdict[str, list[tuple[tuple[str, ...], float]]] = defaultdict(list)
        found = []
        for line in self.journal.read_text().splitlines():
            what, attempt, devices, at = line.split()
            if what == "start":
                opened[attempt].append((tuple(devices.split(",")), float(at)))
            elif opened[attempt]:
                held, since = opened[attempt].pop(0)
                found.append(Interval(attempt, held, since, float(at), True))
        for attempt, left in opened.items():
            found += [Interval(attempt, held, since, since, False) for held, since in left]
        return found

    def _leaked(self) -> int:
        """Processes that still run for one of our runs."""
        leaked = 0
        for process in psutil.process_iter():
            try:
                attempt = process.environ().get("GPU_FLOWS_ATTEMPT", "")
                leaked += attempt.rpartition(".")[0] in self._codes and process.status() != "zombie"
            except psutil.Error:
                pass
        return leaked

    def _missing(self, ended: set[str]) -> int:
        query = "select job_id, count(*) from job_ends group by job_id"
        try:
            found = [self.pool.sql(query), *(self.pool.sql(query, home) for home in self._homes)]
        except Exception:  # no warehouse yet, or it is being written
            return len(ended)
        most: Counter[str] = Counter()  # run -> how many ends of it are in the same warehouse
        for rows in found:
            most |= Counter(dict(rows))
        return sum(most[run] != 1 for run in ended)

    def _leases(self, journal: list[Interval]) -> list[int]:
        """The number of the lease under which each start was claimed, in the order of the starts."""
        leases = []
        for interval in sorted(journal, key=lambda interval: interval.start):
            states = self.pool.request("GET", "/flow_run_states/", params={"flow_run_id": interval.run})
            claims = [
                (datetime.fromisoformat(state["timestamp"]).timestamp(), int(claim.lease))
                for state in states
                if (claim := parse_claim(state["message"]))
            ]
            leases += [lease for at, lease in sorted(claims) if at <= interval.start][-1:]
        return leases


def count_rivals(leases: list[int]) -> int:
    """Count the starts under a lease that come after a start under a newer one."""
    newest = accumulate(leases, max)
    return sum(lease < new for lease, new in zip(leases, newest, strict=True))


def count_overlaps(journal: list[Interval]) -> int:
    """Count the pairs of starts that held the same device at the same time."""
    by_device: defaultdict[str, list[Interval]] = defaultdict(list)
    for interval in journal:
        for device in interval.devices:
            by_device[device].append(interval)
    return sum(
        a.start < b.end and b.start < a.end
        for intervals in by_device.values()
        for a, b in combinations(intervals, 2)
    )
