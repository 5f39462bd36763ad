"""A warehouse with its spool, for tests: recorders, and other processes that read it or are killed."""

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


class Store:
    """A warehouse and its spool, with the recorders that a test makes. Leaving the context closes them."""

    def __init__(self, folder: Path) -> None:
        self.database, self.spool = folder / "warehouse.duckdb", folder / "spool"
        self.made: list[Recorder] = []

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        for recorder in self.made:
            recorder.close()

    def recorder(self, **options: float) -> Recorder:
        self.made.append(Recorder(self.database, self.spool, **options))
        return self.made[-1]

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with duckdb.connect(str(self.database), read_only=True) as connection:
            return connection.execute(sql).fetchall()

    def count(self, table: str) -> int:
        return int(self.query(f"select count(*) from {table}")[0][0])

    def spooled(self) -> list[str]:
        return sorted(path.name for path in self.spool.iterdir()) if self.spool.exists() else []


def wait_for_result(store: Store, sql: str, expected: tuple[Any, ...]) -> None:
    """Query in another process until the result is as expected."""
    deadline = time.monotonic() + 60
    while True:
        with suppress(QueryError):  # the warehouse does not exist yet
            if run_query(store.database, sql).rows == [expected]:
                return
        assert time.monotonic() < deadline
        time.sleep(0.02)


def run(store: Store, code: str, drain_every: float = 2.0) -> int:
    """Run code with a recorder in a new process. Returns the exit code."""
    program = f"""
import os, signal, time
from pathlib import Path
from gpu_flows.analytics.facts import JobSubmitted, Sampled
from gpu_flows.analytics.recorder import Recorder
spool = Path({str(store.spool)!r})
recorder = Recorder(Path({str(store.database)!r}), spool, {drain_every})
facts = [
    JobSubmitted("job-1", "pool", "job", "f", "d", "ann", "[]", 1, 0, 0, None, None, {T}),
    Sampled({T}, "GPU-1", 50.0, 1000.0, None, 60.0),
]
{code}
"""
    return subprocess.run([sys.executable, "-c", program], timeout=60).returncode


def run_and_kill(store: Store, code: str, drain_every: float = 2.0) -> None:
    """Run code with a recorder in a new process, which is then killed."""
    assert run(store, code + "\nos.kill(os.getpid(), signal.SIGKILL)", drain_every) == -9


class Reader:
    """Another process that has the warehouse open for reading."""

    def __init__(self, database: Path) -> None:
        program = (
            f"import duckdb; c = duckdb.connect({str(database)!r}, read_only=True); print('open'); input()"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-uc", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Reader:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "open\n"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate("close\n", timeout=60)
