"""A private Prefect server with a gpu pool, for the benchmarks of a live pool."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from common import ignore_interrupts, log_progress

from gpu_flows.bootstrap.local_stack import Stack


class Api:
    """The server's REST API. Retries while the server is busy, since SQLite allows only one writer."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=300)

    def get(self, path: str, **params: Any) -> Any:
        return self._request("GET", path, params=params)

    def post(self, path: str, body: Any) -> Any:
        return self._request("POST", path, json=body)

    def patch(self, path: str, body: Any) -> Any:
        return self._request("PATCH", path, json=body)

    def _request(self, method: str, path: str, **kwargs: Any) -> Any:
        while True:
            response = self._http.request(method, path, **kwargs)
            if response.status_code != 503:
                response.raise_for_status()
                return response.json() if response.content else None
            time.sleep(0.2)


@contextlib.contextmanager
def private_stack(cluster: str) -> Iterator[Stack]:
    """Start a Prefect server in a temporary folder, with a gpu pool on that cluster and no worker. On exit,
    stop all processes and delete the folder."""
    with (
        tempfile.TemporaryDirectory(prefix="gpu-flows-benchmark-", ignore_cleanup_errors=True) as folder,
        Stack(Path(folder), pool="benchmark") as stack,
    ):
        try:
            log_progress("starting a private Prefect server")
            stack.start_server()
            stack.set_up(cluster)
            yield stack
        finally:
            ignore_interrupts()


def deploy_command(api: Api, pool: str) -> str:
    """Create a deployment of the flow `command` in the pool. Return its id."""
    flow = api.post("/flows/", {"name": "command"})["id"]
    deployment = {
        "name": "live",
        "flow_id": flow,
        "entrypoint": "gpu_flows.flows.command:command",
        "work_pool_name": pool,
    }
    return str(api.post("/deployments/", deployment)["id"])


def submit_command(api: Api, deployment: str, command: str, **variables: object) -> str:
    """Create a run of that deployment with these job variables. Return its id."""
    body = {"parameters": {"command": "unused"}, "job_variables": {"command": command, **variables}}
    return str(api.post(f"/deployments/{deployment}/create_flow_run", body)["id"])
