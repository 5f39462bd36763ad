"""Servers and databases that refuse, fail, lose answers and restart."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from chaos.lab import Lab
from chaos.workload import Counts
from quick_stack import QuickStack

from gpu_flows.bootstrap.local_stack import free_port


def refused_answers(lab: Lab) -> Counts:
    """5% of the worker's requests are answered with 401 or 403."""
    return _faulty(lab, {401: 0.025, 403: 0.025}, lost=0)


def failing_answers(lab: Lab) -> Counts:
    """The server answers some requests with 500 or 429, and some answers are lost."""
    return _faulty(lab, {500: 0.05, 429: 0.03}, lost=2)


def _faulty(lab: Lab, refuse: dict[int, float], lost: int) -> Counts:
    stack = lab.stack()
    proxy = lab.proxy()
    load = lab.workload(stack)
    stack.start_worker(PREFECT_API_URL=proxy.api_url)
    proxy.refuse = refuse
    for _ in lab.rounds():
        load.add(6, seconds=(0.1, 2))
        load.add(1, code=3)
        proxy.lose_answers = lost  # of the next answers
        lab.pause(0.5, 3)
    proxy.refuse, proxy.lose_answers = {}, 0
    return load.judge()


def restarted_server(lab: Lab) -> Counts:
    """The server is stopped and started again under load."""
    stack = lab.own_server(QuickStack(lab.folder / "own"))
    load = lab.workload(stack)
    stack.start_worker()
    for _ in lab.rounds():
        load.add(10, seconds=(0.1, 5))
        load.add(1, code=3)
        lab.pause(0.2, 3)
        stack.stop_server()
        lab.pause(0, 5)
        stack.start_server()
    return load.judge()


def restarted_database(lab: Lab) -> Counts:
    """A PostgreSQL database is restarted under load."""
    with _postgres(lab.folder / "postgres") as database:
        stack = lab.own_server(OnPostgres(lab.folder / "own", database.url))
        load = lab.workload(stack)
        stack.start_worker()
        for _ in lab.rounds():
            load.add(10, seconds=(0.1, 5))
            load.add(1, code=3)
            lab.pause(0.2, 3)
            database.control("stop", "-m", lab.random.choice(["fast", "immediate"]))
            lab.pause(0, 8)
            database.control("start")
            lab.pause(1, 5)
        counts = load.judge()
        stack.close()  # before its database
        return counts


class OnPostgres(QuickStack):
    """A stack whose server keeps its data in PostgreSQL."""

    def __init__(self, home: Path, database: str) -> None:
        super().__init__(home)
        self._database = database

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "PREFECT_SERVER_DATABASE_CONNECTION_URL": self._database}


class Postgres:
    USER = "nobody"  # PostgreSQL refuses to run as root

    def __init__(self, folder: Path) -> None:
        programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
        found = shutil.which("pg_ctl") or (str(programs[-1]) if programs else None)
        if found is None or shutil.which("runuser") is None:
            pytest.skip("PostgreSQL is not installed (apt-get install postgresql).")
        self._pg_ctl, self._folder, self._port = found, folder, free_port()
        self.url = f"postgresql+asyncpg://{self.USER}@127.0.0.1:{self._port}/postgres"

    def control(self, action: str, *options: str) -> None:
        settings = f"-p {self._port} -k {self._folder} -c listen_addresses=127.0.0.1"
        words = ["-o", settings, "-l", str(self._folder / "log")] if action == "start" else list(options)
        command = [self._pg_ctl, action, "-w", "-D", str(self._folder / "data"), *words]
        subprocess.run(["runuser", "-u", self.USER, "--", *command], check=True, stdout=subprocess.DEVNULL)


@contextmanager
def _postgres(folder: Path) -> Iterator[Postgres]:
    database = Postgres(folder)
    folder.mkdir()
    shutil.chown(folder, database.USER)
    for parent in folder.parents:  # pytest's folders are closed to others
        if parent.stat().st_mode & 0o777 == 0o700:
            parent.chmod(0o711)
    database.control("init", "-o", f"-A trust -U {database.USER}")
    database.control("start")
    try:
        yield database
    finally:
        database.control("stop", "-m", "immediate")
