"""Reading the output of runs: from the logs that the server has, or from the file on the worker's machine."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpu_flows.cli.escaping import escape_lines
from gpu_flows.cli.jobs.pool_jobs import parse_time, to_iso
from gpu_flows.cli.prefect_client import PrefectClient
from gpu_flows.config.paths import pool_folder
from gpu_flows.prefect_api.conventions import PAGE, WORKER_LOGGER
from gpu_flows.runtimes.supervisor import OUTPUT_FILE

OVERLAP_S = 10.0  # a job's lines reach the server in batches, after newer lines of the worker
WARNING = 30
LAST_LINE = "Finished in state"  # what Prefect logs at the end of a flow
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LEVELS = {10: "DEBUG", 20: "INFO", 30: "WARNING", 40: "ERROR", 50: "CRITICAL"}


class LogReader:
    """Reads the lines of some runs, each line once."""

    def __init__(self, client: PrefectClient, run_ids: Iterable[str]) -> None:
        self._client, self._run_ids = client, list(run_ids)
        self._newest: float | None = None
        self._seen: set[str] = set()

    def read_last(self, count: int) -> list[dict[str, Any]]:
        """The last lines, oldest first. `read_new` then continues after them."""
        found: list[dict[str, Any]] = []
        while len(found) < max(count, 1):
            size = min(PAGE, max(count, 1) - len(found))
            page = self._filter({}, "TIMESTAMP_DESC", limit=size, offset=len(found))
            found += page
            if len(page) < size:
                break
        if not found:
            return []
        newest, known = found[0]["timestamp"], {line["id"] for line in found}
        self._newest = parse_time(newest)
        arrived = [line for line in self.read_new() if line["timestamp"] > newest and line["id"] not in known]
        return (found[::-1] if count else []) + arrived

    def read_new(self) -> list[dict[str, Any]]:
        """The lines that have arrived since the last call, oldest first."""
        found: list[dict[str, Any]] = []
        since = self._since_overlap()
        while True:
            page = self._filter(since, "TIMESTAMP_ASC", offset=len(found))
            found += page
            if len(page) < PAGE:
                break
        new = [line for line in found if line["id"] not in self._seen]
        self._seen = {line["id"] for line in found}
        if found:
            self._newest = parse_time(found[-1]["timestamp"])
        return new

    def _since_overlap(self) -> dict[str, Any]:
        if self._newest is None:
            return {}
        return {"timestamp": {"after_": to_iso(self._newest - OVERLAP_S)}}

    def _filter(self, which: dict[str, Any], sort: str, limit: int = PAGE, offset: int = 0) -> list[Any]:
        logs = {"flow_run_id": {"any_": self._run_ids}, **which}
        body = {"logs": logs, "sort": sort, "limit": limit, "offset": offset}
        return list(self._client.post("/logs/filter", body))


def read_output_file(pool: str, run_id: str) -> tuple[Path, str] | None:
    """What the run's last attempt printed, if its folder is on this machine."""
    folder = pool_folder(pool)
    found = [
        path for place in ("attempts", "ended") for path in (folder / place).glob(f"{run_id}.*/{OUTPUT_FILE}")
    ]
    if not found:
        return None
    newest = max(found, key=lambda path: int(path.parent.name.rpartition(".")[2] or 0))
    try:
        return newest, newest.read_text(errors="replace")
    except OSError:
        return None


def format_line(line: dict[str, Any], with_time: bool = False) -> str:
    """A line as it is printed. Lines of the worker and warnings are marked; colours are removed."""
    at = parse_time(line["timestamp"]) or 0.0
    time_of_day = f"{time.strftime('%H:%M:%S', time.localtime(at))}  " if with_time else ""
    worker = "[worker] " if line["name"] == WORKER_LOGGER else ""
    level = f"{name_level(line['level'])}: " if line["level"] >= WARNING else ""
    return f"{time_of_day}{worker}{level}{clean(line['message'])}"


def name_level(level: int) -> str:
    return _LEVELS.get(level, str(level))


def clean(text: str) -> str:
    """The text without colours, with tabs as blanks and every other control character escaped."""
    return escape_lines(_COLOURS.sub("", text).expandtabs())
