"""A fake Prefect server with one pool that remembers its runs, so that commands can change and read them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from command_line.server import Answer, FakeServer

CLUSTER = "/block_types/slug/gpu-cluster/block_documents/name/default"
RUN_IDS = "{:08x}-aaaa-4aaa-8aaa-{:012x}"


def at(seconds: float) -> str:
    """A time of the API, this many seconds from now."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


class PoolServer(FakeServer):
    """Knows deployments, runs with their states, and logs. Other paths are answered as `answers` states."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: dict[str, dict[str, Any]] = {}
        self.deployments: list[dict[str, Any]] = [self._deployment("command"), self._deployment("train")]
        self.logs: list[dict[str, Any]] = []
        self.read: set[str] = set()  # the messages of logs that a command has got
        self.workers: list[dict[str, Any]] = []
        self.cluster: dict[str, Any] = {"runtime": "process", "nodes": []}

    def _deployment(self, name: str) -> dict[str, Any]:
        return {"id": name, "name": name, "flow_id": name, "work_pool_name": "gpu", "job_variables": {}}

    # -- what tests prepare -------------------------------------------------------------------

    def add_run(self, name: str, state: str = "SCHEDULED", **parts: Any) -> dict[str, Any]:
        number = len(self.runs) + 1
        run = {
            "id": RUN_IDS.format(number * 0x1000_0000 % 2**32, number),
            "name": name,
            "deployment_id": "command",
            "work_pool_name": "gpu",
            "tags": ["user:ada"],
            "job_variables": {},
            "parameters": {},
            "expected_start_time": at(-100),
            "next_scheduled_start_time": at(-100),
            **parts,
        }
        self.runs[run["id"]] = run
        self.set_state(
            run["id"], state, parts.get("state_name", state.capitalize()), parts.get("message", "")
        )
        return run

    def set_state(self, run_id: str, type_: str, name: str, message: str = "") -> None:
        state = {"id": str(len(self.requests)) + name, "type": type_, "name": name, "message": message}
        self.runs[run_id] |= {"state_type": type_, "state": state}

    def add_log(self, run_id: str, message: str, age_s: float = 0, logger: str = "prefect.flow_runs") -> None:
        self.logs.append(
            {
                "id": f"log-{len(self.logs)}",
                "flow_run_id": run_id,
                "name": logger,
                "level": 20,
                "message": message,
                "timestamp": at(-age_s),
            }
        )

    # -- the API ------------------------------------------------------------------------------

    def answer(self, path: str, headers: Any, body: bytes) -> Answer:
        known = super().answer(path, headers, body)
        if known[0] != 404:
            return known
        given = json.loads(body or b"null")
        match path.split("?")[0].strip("/").split("/"):
            case ["work_pools", "gpu"]:
                return 200, {"base_job_template": {}}
            case ["work_pools", "gpu", "workers", "filter"]:
                return 200, self.workers
            case ["deployments", "filter"]:
                return 200, [each for each in self.deployments if _matches(each, given.get("deployments"))]
            case ["deployments", deployment, "create_flow_run"]:
                parts = {key: given[key] for key in ("job_variables", "parameters", "tags")}
                return 201, self.add_run(given.get("name") or "new", deployment_id=deployment, **parts)
            case ["flow_runs", "filter"]:
                found = [run for run in self.runs.values() if _matches(run, given.get("flow_runs"))]
                if given.get("sort", "").endswith("_DESC"):
                    found.reverse()
                offset = given.get("offset", 0)
                return 200, found[offset : offset + given.get("limit", 200)]
            case ["flow_runs", run_id, "resume"]:
                self.set_state(run_id, "SCHEDULED", "Resuming")
                return 200, {"status": "ACCEPT", "state": self.runs[run_id]["state"]}
            case ["flow_runs", run_id, "set_state"]:
                self.set_state(run_id, given["state"]["type"], given["state"]["name"])
                self.runs[run_id]["state"]["state_details"] = given["state"].get("state_details")
                return 201, {"state": self.runs[run_id]["state"]}
            case ["flow_runs", run_id] if run_id in self.runs:
                self.runs[run_id] |= given or {}
                return 200, self.runs[run_id]
            case ["logs", "filter"]:
                return 200, self._filter_logs(given)
            case ["block_documents", "cluster-1"]:
                self.cluster = given["data"]
                return 200, {}
        return (200, {"id": "cluster-1", "data": self.cluster}) if path == CLUSTER else known

    def _filter_logs(self, given: dict[str, Any]) -> list[dict[str, Any]]:
        since = given["logs"].get("timestamp", {}).get("after_", "")
        found = [
            line
            for line in self.logs
            if line["flow_run_id"] in given["logs"]["flow_run_id"]["any_"] and line["timestamp"] >= since
        ]
        found.sort(key=lambda line: line["timestamp"], reverse=given["sort"] == "TIMESTAMP_DESC")
        page = found[given["offset"] : given["offset"] + given["limit"]]
        self.read.update(line["message"] for line in page)
        return page


def _matches(document: dict[str, Any], which: dict[str, Any] | None) -> bool:
    """Whether a document passes the filters that commands use: of id, name and type of state."""
    for field in ("id", "name"):
        wanted = (which or {}).get(field, {})
        if "any_" in wanted and document[field] not in wanted["any_"]:
            return False
        if "like_" in wanted and wanted["like_"].lower() not in document[field].lower():
            return False
    types = (which or {}).get("state", {}).get("type", {}).get("any_")
    return not types or document["state_type"] in types
