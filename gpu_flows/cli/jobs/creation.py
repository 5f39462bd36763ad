"""Creating the runs that `gpu-flows submit` asks for, with errors in terms of its options."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpu_flows.cli.errors import BadInput, CommandError
from gpu_flows.cli.jobs.deployments import build_parameters
from gpu_flows.cli.jobs.requests import KEYS, JobRequest
from gpu_flows.cli.jobs.submit_options import FLAGS
from gpu_flows.cli.prefect_client import CLUSTER_BLOCK, PrefectClient, Rejected

_CONTAINER_FLOW_FLAGS = {"container_image": "--image", "required_gpus": "--gpus"}
_REFUSAL = re.compile(
    r"Validation failed(?: for field '(?P<field>[^']+)')?\. Failure reason: (?P<why>.*)", re.S
)


def check_pool_runs_containers(client: PrefectClient, pool: str) -> None:
    """Raise the error that the worker would otherwise report when the job starts."""
    block = client.find_block_name(pool, "cluster")
    document = client.read_block(CLUSTER_BLOCK, block)
    if document and document["data"].get("runtime") == "docker":
        return
    raise CommandError(
        f"Pool {pool!r} runs jobs as processes, not in containers; see its GPU Cluster block {block!r}.",
        "Choose the runtime 'docker' there, in the UI or by `gpu-flows up --docker`. Nothing was submitted.",
    )


def create_runs(
    client: PrefectClient,
    deployment: dict[str, Any],
    requests: Sequence[JobRequest],
    user: str,
    at_once: int = 0,
) -> list[dict[str, Any]]:
    """Create a run for each request, in order. A refused request keeps the runs before it.

    `at_once` limits how many of them run at the same time: each then starts after the end of the one that is
    this many places before it. 0 is no limit.
    """
    runs: list[dict[str, Any]] = []
    for request in requests:
        if at_once and len(runs) >= at_once:
            before = [*request.variables.get("after_any", []), runs[-at_once]["id"]]
            request = replace(request, variables={**request.variables, "after_any": before})
        try:
            runs.append(_create_run(client, deployment, request, user))
        except CommandError as error:
            if not runs:
                raise
            done = f"{len(runs)} of {len(requests)} jobs were submitted before it."
            raise CommandError(error.what, done, error.exit_code) from None
    return runs


def _create_run(
    client: PrefectClient, deployment: dict[str, Any], request: JobRequest, user: str
) -> dict[str, Any]:
    body = {
        **describe_run(deployment, request, user),
        # A busy server may report a failure for a run that it has created; the key makes retries safe.
        "idempotency_key": str(uuid.uuid4()),
        **({"name": request.name} if request.name else {}),
    }
    try:
        return dict(client.post(f"/deployments/{deployment['id']}/create_flow_run", body))
    except Rejected as rejected:
        why = explain_refusal(rejected.detail, request)
        if not why:
            raise
        raise BadInput(why, "Nothing was submitted; see `gpu-flows submit --help`.") from None


def describe_run(deployment: dict[str, Any], request: JobRequest, user: str) -> dict[str, Any]:
    """What the server is told about the run."""
    return {
        "job_variables": {**request.variables, **({"user": user} if user else {})},
        "parameters": build_parameters(deployment, request.parameters),
        "tags": [f"user:{user}"] if user else [],  # for filters in the UI
    }


def explain_refusal(detail: str, request: JobRequest) -> str:
    """Why the server refuses a run, in terms of the options; empty for a refusal of another kind."""
    refusal = _REFUSAL.search(detail)
    if not refusal:
        return ""
    culprit = _name_culprit(refusal["field"] or "", request)
    return f"{request.source}{culprit}: {refusal['why'].strip().rstrip('.')}."


def _name_culprit(field: str, request: JobRequest) -> str:
    """The option, the key of the file or the parameter that set a refused field."""
    if request.source and field in KEYS:
        return field
    flag = FLAGS.get(field) or ("" if request.source else _CONTAINER_FLOW_FLAGS.get(field))
    return flag or (f"parameter {field}" if field else "the parameters")
