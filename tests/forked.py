"""Starts Python programs in forks of a process that has already imported what they need.

Importing Prefect takes two seconds of CPU, and the tests start hundreds of workers. A fork runs the same code
as the program started anew; only its imports are done.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PRELOADED = [
    "prefect.cli.worker",
    "gpu_flows.worker.gpu_worker",
    "gpu_flows.runtimes.docker.runtime",
    __name__,
]


class Forked:
    """A program in a fork, with the part of the interface of subprocess.Popen that the tests use."""

    def __init__(self, module: str, arguments: Sequence[str], env: dict[str, str], log: Path) -> None:
        log.touch()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._process = context.Process(
            target=_run_module, args=(module, list(arguments), env, os.getcwd(), log)
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a fork", timeout or 0)
        return self._process.exitcode

    def send_signal(self, how: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, how)


def _run_module(module: str, arguments: list[str], env: dict[str, str], directory: str, log: Path) -> None:
    """Do as `python -m MODULE ARGUMENTS` does in a new session."""
    os.setsid()
    with log.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [module, *arguments]
    import runpy

    from prefect.context import refresh_global_settings_context

    refresh_global_settings_context()
    runpy.run_module(module, run_name="__main__", alter_sys=True)
