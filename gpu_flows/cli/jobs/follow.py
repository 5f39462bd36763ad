"""Following runs until they end: their new states and their new log lines."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import typer

from gpu_flows.cli import output
from gpu_flows.cli.errors import INTERRUPTED
from gpu_flows.cli.jobs.log_reader import LAST_LINE, LogReader
from gpu_flows.cli.jobs.runs import read_runs, shorten
from gpu_flows.cli.prefect_client import PrefectClient
from gpu_flows.common.retry import wait_until
from gpu_flows.prefect_api.conventions import FINAL_STATES

POLL_S = 0.5
LATE_LINES_S = 5.0  # a job's last lines may reach the server this long after its last state


class Follower:
    """Follows some runs. `on_line` gets each new line, `on_state` each run that is in a new state."""

    def __init__(
        self,
        client: PrefectClient,
        runs: list[dict[str, Any]],
        reader: LogReader | None = None,
        on_line: Callable[[dict[str, Any]], None] | None = None,
        on_state: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self._client, self._reader = client, reader
        self._on_line, self._on_state = on_line, on_state
        self._runs = {run["id"]: run for run in runs}
        self._finished: set[str] = set()  # runs whose flow has logged its last line

    def follow(self) -> list[dict[str, Any]]:
        """Wait until all runs have ended. Returns them in their final states."""
        try:
            for run in self._runs.values():
                self._report_state(run)
            wait_until(self._all_ended, math.inf, POLL_S)
            self._read_late_lines()
        except KeyboardInterrupt:
            for run in self._running():
                output.print_remark(
                    f"{run['name']} continues; `gpu-flows logs {shorten(run['id'])} -f` shows its output."
                )
            raise typer.Exit(INTERRUPTED) from None
        return list(self._runs.values())

    def _running(self) -> list[dict[str, Any]]:
        return [run for run in self._runs.values() if run["state_type"] not in FINAL_STATES]

    def _all_ended(self) -> bool:
        self._read_lines()
        for run in read_runs(self._client, [run["id"] for run in self._running()]):
            before = self._runs[run["id"]]
            self._runs[run["id"]] = run
            if (run.get("state") or {}).get("id") != (before.get("state") or {}).get("id"):
                self._report_state(run)
        return not self._running()

    def _report_state(self, run: dict[str, Any]) -> None:
        if self._on_state:
            self._on_state(run)

    def _read_lines(self) -> int:
        lines = self._reader.read_new() if self._reader else []
        for line in lines:
            if line["message"].startswith(LAST_LINE):
                self._finished.add(line["flow_run_id"])
            if self._on_line:
                self._on_line(line)
        return len(lines)

    def _read_late_lines(self) -> None:
        """Read on until every flow has logged its last line, or no line has arrived for a while."""
        quiet_since = time.monotonic()
        while self._reader and time.monotonic() - quiet_since < LATE_LINES_S:
            if self._read_lines():
                quiet_since = time.monotonic()
            if self._finished >= self._runs.keys():
                return
            time.sleep(POLL_S)


def print_state(run: dict[str, Any], name_it: bool) -> None:
    """Print the run's state on stderr, with the time."""
    state = run.get("state") or {}
    name = f"{run['name']}  " if name_it else ""
    message = (state.get("message") or "").partition("\n")[0]  # what follows is for workers
    text = f"{name}{state.get('name', '')}  {message}".rstrip()
    output.print_remark(f"{time.strftime('%H:%M:%S')}  {text}")
