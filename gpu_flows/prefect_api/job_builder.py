"""Builds jobs from flow runs: merges job variables, checks them, and describes the job for the history."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

from prefect.client.schemas.objects import FlowRun, WorkPool
from prefect.client.schemas.responses import DeploymentResponse
from pydantic import ValidationError

from gpu_flows.analytics.facts import JobSubmitted
from gpu_flows.blocks import GpuCluster
from gpu_flows.common.clock import utc_now
from gpu_flows.common.validation import explain
from gpu_flows.prefect_api.container_request import (
    CONTAINER_FLOW,
    build_container,
    files_are_local,
    variables_from_form,
)
from gpu_flows.prefect_api.job_variables import BadJobVariables, SchedulingVariables, check_variable_names
from gpu_flows.runtimes.base import Refused
from gpu_flows.schedulers.model import Job

PRIORITY_CLASSES = {"low": -100, "normal": 0, "high": 100, "urgent": 1000}


def build_job(
    run: FlowRun,
    deployment: DeploymentResponse | None,
    pool: WorkPool,
    cluster: GpuCluster,
    queue_priority: int = 0,
) -> Job:
    """Return the job that a run asks for. Raises BadJobVariables if its job variables cannot be used."""
    check_variable_names(merge_overrides(deployment, run), _template_fields(pool))
    variables = merge_variables(pool, deployment, run)
    _check_container(variables, cluster)
    return job_from_variables(
        str(run.id),
        variables,
        due=due_time(run),
        name=_form_name(deployment, run) or run.name,
        user=_user(run),
        queue_priority=queue_priority,
    )


def job_from_variables(
    run_id: str,
    variables: dict[str, Any],
    *,
    due: datetime,
    name: str = "",
    user: str = "",
    queue_priority: int = 0,
) -> Job:
    """Return the job for merged job variables. Raises BadJobVariables if they cannot be used."""
    given = {key: variables[key] for key in SchedulingVariables.model_fields if key in variables}
    try:
        wanted = SchedulingVariables.model_validate(given)
    except ValidationError as error:
        raise BadJobVariables(f"The job variables are not usable: {explain(error)}.") from None
    if not (wanted.min_gpus or wanted.gpus) <= wanted.gpus <= (wanted.max_gpus or wanted.gpus):
        raise BadJobVariables(
            f"The job variables are not usable: gpus is {wanted.gpus}, which is not between min_gpus "
            f"({wanted.min_gpus}) and max_gpus ({wanted.max_gpus})."
        )
    submitted = due.timestamp()
    return Job(
        id=run_id,
        submitted=submitted,
        gpus=0 if wanted.coordinator else wanted.gpus,
        memory_mb=round(wanted.gpu_memory_gb * 1024),
        name=name,
        user=user,
        queue_priority=queue_priority,
        priority=wanted.priority + PRIORITY_CLASSES[wanted.priority_class],
        deadline=submitted + wanted.deadline_seconds if wanted.deadline_seconds else None,
        expected_s=wanted.expected_seconds or None,
        nodes=_clean_patterns(wanted.nodes),
        models=_clean_patterns(wanted.gpu_models),
        may_span_nodes=wanted.may_span_nodes,
        min_gpus=0 if wanted.coordinator else wanted.min_gpus,
        max_gpus=0 if wanted.coordinator else wanted.max_gpus,
        preemptible=wanted.preemptible,
    )


def describe_submission(job: Job, run: FlowRun, pool: str, flow: str, deployment: str) -> JobSubmitted:
    """Return the fact that the job was submitted."""
    return JobSubmitted.of(
        job,
        job_id=job.id,
        pool=pool,
        flow=flow,
        deployment=deployment,
        tags=json.dumps(sorted(run.tags)),
        experiment=_tag_value(run, "experiment:"),
    )


def merge_variables(pool: WorkPool, deployment: DeploymentResponse | None, run: FlowRun) -> dict[str, Any]:
    """Merge the defaults of the pool, the job variables of the deployment and those of the run."""
    defaults = {
        name: field["default"]
        for name, field in _template_fields(pool).items()
        if field.get("default") is not None
    }
    return {**defaults, **merge_overrides(deployment, run)}


def merge_overrides(deployment: DeploymentResponse | None, run: FlowRun) -> dict[str, Any]:
    """Merge the job variables of the deployment and the run. The run's replace the deployment's, except
    for the entries of `env`, which are combined."""
    base = dict(deployment.job_variables or {}) if deployment else {}
    if is_container_form(deployment):
        base |= variables_from_form(run.parameters)
    own = dict(run.job_variables or {})
    env = {**(base.get("env") or {}), **(own.get("env") or {})}
    return {**base, **own, **({"env": env} if env else {})}


def is_container_form(deployment: DeploymentResponse | None) -> bool:
    """Return whether the deployment's flow only describes a container and never runs itself."""
    return deployment is not None and deployment.entrypoint == CONTAINER_FLOW


def due_time(run: FlowRun) -> datetime:
    return run.next_scheduled_start_time or run.expected_start_time or run.created or utc_now()


def _template_fields(pool: WorkPool) -> dict[str, Any]:
    fields: dict[str, Any] = pool.base_job_template.get("variables", {}).get("properties", {})
    return fields


def _check_container(variables: dict[str, Any], cluster: GpuCluster) -> None:
    """Report a container that breaks the rules now rather than at launch. Variables that still refer to
    Prefect variables or blocks can only be checked at launch."""
    if not variables.get("image") or "{{" in str(variables):
        return
    env, command = variables.get("env") or {}, [str(variables.get("command") or "")]
    try:
        build_container(variables, env, command, cluster.containers, files_are_local(cluster))
    except Refused as error:
        raise BadJobVariables(f"{error}.") from None


def _form_name(deployment: DeploymentResponse | None, run: FlowRun) -> str:
    """Return the job name entered in the `container` form. Prefect names the run before it is known."""
    return str(run.parameters.get("name") or "") if is_container_form(deployment) else ""


def _user(run: FlowRun) -> str:
    """Return the user of the run: its `user:` tag, or else its creator as known to Prefect."""
    created_by = run.created_by.display_value if run.created_by else None
    return _tag_value(run, "user:") or created_by or ""


def _tag_value(run: FlowRun, prefix: str) -> str:
    return next((tag.removeprefix(prefix) for tag in sorted(run.tags) if tag.startswith(prefix)), "")


def _clean_patterns(patterns: list[str]) -> tuple[str, ...]:
    cleaned = (re.sub(r"\s+", " ", pattern).strip() for pattern in patterns)
    return tuple(pattern for pattern in cleaned if pattern)
