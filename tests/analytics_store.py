"""A warehouse with its spool, for tests: recorders on it, other processes that read it or die."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb

from gpu_flows.analytics.facts import JobSubmitted, Sampled
from gpu_flows.analytics.query_runner import QueryError, run_query
from gpu_flows.analytics.recorder import Recorder

T = 1_700_000_000.0


def job(number: int, name: str = "job") -> JobSubmitted:
    return JobSubmitted(f"job-{number}", "pool", name, "f", "d", "ann", "[]", 1, 0, 0, None, None, T + number)


def sample(number: int) -> Sampled:
    return Sampled(T + number, "GPU-1", 50.0, 1000.0, None, 60.0)


class Place:
    """A warehouse and a spool, and recorders on them."""

    def __init__(self, folder: Path) -> None:
        self.database, self.spool = folder / "warehouse.duckdb", folder / "spool"
        self.made: list[Recorder] = []

    def recorder(self, **options: float) -> Recorder:
        self.made.append(Recorder(self.database, self.spool, **options))
        return self.made[-1]

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        with duckdb.connect(str(self.database), read_only=True) as connection:
            return connection.execute(sql).fetchall()

    def count(self, table: str) -> int:
        return int(self.ask(f"select count(*) from {table}")[0][0])

    def spooled(self) -> list[str]:
        return sorted(path.name for path in self.spool.iterdir()) if self.spool.exists() else []


def until_answered(place: Place, sql: str, expected: tuple[Any, ...]) -> None:
    """Ask as another process does, until this is the answer."""
    deadline = time.monotonic() + 60
    while True:
        with suppress(QueryError):  # there is no warehouse yet
            if run_query(place.database, sql).rows == [expected]:
                return
        assert time.monotonic() < deadline
        time.sleep(0.02)


def run(place: Place, code: str, drain_every: float = 2.0) -> int:
    """Run a recorder in a process that does this. Returns the process's exit code."""
    program = f"""
import os, signal, time
from pathlib import Path
from gpu_flows.analytics.facts import JobSubmitted, Sampled
from gpu_flows.analytics.recorder import Recorder
spool = Path({str(place.spool)!r})
recorder = Recorder(Path({str(place.database)!r}), spool, {drain_every})
facts = [
    JobSubmitted("job-1", "pool", "job", "f", "d", "ann", "[]", 1, 0, 0, None, None, {T}),
    Sampled({T}, "GPU-1", 50.0, 1000.0, None, 60.0),
]
{code}
"""
    return subprocess.run([sys.executable, "-c", program], timeout=60).returncode


def die_after(place: Place, code: str, drain_every: float = 2.0) -> None:
    """Run a recorder in a process that does this and then is killed."""
    assert run(place, code + "\nos.kill(os.getpid(), signal.SIGKILL)", drain_every) == -9


class Reader:
    """Another process that has the warehouse open for reading."""

    def __init__(self, database: Path) -> None:
        program = (
            f"import duckdb; c = duckdb.connect({str(database)!r}, read_only=True); print('in'); input()"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-uc", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Reader:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "in\n"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate("leave\n", timeout=60)
