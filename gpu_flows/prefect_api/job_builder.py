"""Builds jobs from flow runs: merges job variables, checks them, and describes the job for the history."""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from prefect.client.schemas.objects import FlowRun, WorkPool
from prefect.client.schemas.responses import DeploymentResponse
from pydantic import ValidationError

from gpu_flows.analytics.facts import JobSubmitted
from gpu_flows.blocks import GpuCluster
from gpu_flows.common.clock import utc_now
from gpu_flows.common.validation import explain
from gpu_flows.prefect_api.container_request import (
    build_container,
    files_are_local,
    variables_from_form,
)
from gpu_flows.prefect_api.conventions import (
    CONTAINER_FLOW,
    TRAIN_FLOW,
    TRAIN_STEP,
    Ownership,
    find_tag,
    find_user,
)
from gpu_flows.prefect_api.job_variables import (
    MOST_GPUS,
    BadJobVariables,
    SchedulingVariables,
    check_variable_names,
)
from gpu_flows.runtimes.base import Refused
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.prediction.estimate import JobFeatures
from gpu_flows.schedulers.prediction.run_parameters import flatten, shorten
from gpu_flows.training.config import TrainConfig

TRAIN_SIZES = ("model", "dataset", "size", "samples", "batch_size", "precision")  # what its memory depends on
ONE_HOST = "a container runs on one host"
PRIORITY_CLASSES = {"low": -100, "normal": 0, "high": 100, "urgent": 1000}


@dataclass(frozen=True, slots=True)
class DueJob:
    """A due job, and what Prefect and its owner say about when it may start."""

    job: Job
    work_queue: str = ""
    held: bool = False
    after: tuple[str, ...] = ()  # ids of runs that must complete first
    after_any: tuple[str, ...] = ()  # ids of runs that must end first, in whatever way
    memory_step: str = ""  # the training step from which its memory can be predicted
    is_predicting: bool = False  # its memory is being predicted
    notice: str = ""  # for the log of its run

    @property
    def awaited(self) -> tuple[str, ...]:
        return self.after + self.after_any

    @property
    def is_limited(self) -> bool:
        """Whether it counts against the limits. A coordinator does not: one that took the last slot would
        wait forever for the jobs it submits."""
        return self.job.gpus > 0


def build_job(
    run: FlowRun,
    deployment: DeploymentResponse | None,
    pool: WorkPool,
    cluster: GpuCluster,
    queue_priority: int = 0,
) -> DueJob:
    """Return the job that a run asks for. Raises BadJobVariables if its job variables cannot be used."""
    check_variable_names(merge_overrides(deployment, run), _template_fields(pool))
    variables = merge_variables(pool, deployment, run)
    _check_container(variables, cluster)
    wanted = read_variables(variables)
    job = job_from_variables(
        str(run.id),
        wanted,
        due=due_time(run),
        name=_form_name(deployment, run) or run.name,
        user=_find_user(run, deployment, variables),
        queue_priority=queue_priority,
        host_request=_host_request(variables),
    )
    notice = ""
    if cluster.hosts:  # all devices are theirs, so every job that has one runs in a container
        job = replace(job, may_span_nodes=False, one_node=ONE_HOST)
        notice = f"may_span_nodes has no effect: {ONE_HOST}." if wanted.may_span_nodes else ""
    after = _check_run_ids("after", wanted.after)
    after_any = _check_run_ids("after_any", wanted.after_any)
    step = wanted.memory_step or _find_step(deployment)
    return DueJob(job, run.work_queue_name or "", wanted.hold, after, after_any, step, notice=notice)


def build_unusable_job(run: FlowRun, deployment: DeploymentResponse | None, pool: WorkPool) -> Job:
    """Return what is known of a run whose job variables cannot be used, for the history."""
    variables = merge_variables(pool, deployment, run)
    gpus = variables.get("gpus")
    return Job(
        str(run.id),
        due_time(run).timestamp(),
        gpus if isinstance(gpus, int) and 0 < gpus <= MOST_GPUS else 0,
        name=_form_name(deployment, run) or run.name,
        user=_find_user(run, deployment, variables),
    )


def read_variables(variables: dict[str, Any]) -> SchedulingVariables:
    """Return the variables that the scheduler reads, checked. Raises BadJobVariables."""
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
    return wanted


def job_from_variables(
    run_id: str,
    wanted: SchedulingVariables,
    *,
    due: datetime,
    name: str = "",
    user: str = "",
    queue_priority: int = 0,
    host_request: tuple[float, int] = (0.0, 0),
) -> Job:
    """Return the job for these variables."""
    submitted = due.timestamp()
    cpus, ram_mb = host_request
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
        cpus=cpus,
        ram_mb=ram_mb,
    )


def describe_submission(job: Job, run: FlowRun, pool: str, flow: str, deployment: str) -> JobSubmitted:
    """Return the fact that the job was submitted, with what its owner stated."""
    return JobSubmitted.of(
        job.as_stated(),
        job_id=job.id,
        pool=pool,
        flow=flow,
        deployment=deployment,
        tags=json.dumps(sorted(run.tags)),
        experiment=find_tag(run.tags, "experiment:"),
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


def build_features(run: FlowRun, job: Job, flow: str, deployment: DeploymentResponse | None) -> JobFeatures:
    """Return what is known of a job before it runs, for predictors. A command and an image that its job
    variables name say more of it than the parameters of a flow that does not run."""
    name, variables = deployment.name if deployment else "", merge_overrides(deployment, run)
    named = {key: variables[key] for key in ("command", "image") if variables.get(key)}
    return JobFeatures(flow, name, job.user, job.gpus, shorten({**run.parameters, **named}))


def step_options(step: str, run: FlowRun, job: Job) -> dict[str, Any]:
    """Return what a training step is called with: the parameters of the run, those that are inside others,
    and the number of devices."""
    options = {**flatten(run.parameters), **run.parameters}
    if step != TRAIN_STEP:
        return {**options, "gpus": job.gpus}
    sizes = {name: options[name] for name in TRAIN_SIZES if name in options}  # others would be traced in vain
    if options.get("batch", "keep") == "keep":  # its batch is split over the devices
        whole = options.get("batch_size") or TrainConfig.model_fields["batch_size"].default
        with suppress(TypeError, ValueError, OverflowError):  # the run itself reports what is no number
            sizes["batch_size"] = math.ceil(int(whole) / max(1, job.gpus))
    return sizes


def _find_step(deployment: DeploymentResponse | None) -> str:
    """Return the training step of the `train` flow, which names it itself."""
    return TRAIN_STEP if deployment and deployment.entrypoint == TRAIN_FLOW else ""


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


def _host_request(variables: dict[str, Any]) -> tuple[float, int]:
    """Return the processors and the main memory in MiB that a container asks for. A process is not held to
    any, so nothing is set aside for it."""
    if not variables.get("image"):
        return 0.0, 0
    try:
        return float(variables.get("cpus") or 0), round(1024 * float(variables.get("memory_gb") or 0))
    except (TypeError, ValueError):
        return 0.0, 0  # the container is refused, or the value refers to a block that is read at its launch


def _form_name(deployment: DeploymentResponse | None, run: FlowRun) -> str:
    """Return the job name entered in the `container` form. Prefect names the run before it is known."""
    return str(run.parameters.get("name") or "") if is_container_form(deployment) else ""


def _find_user(run: FlowRun, deployment: DeploymentResponse | None, variables: dict[str, Any]) -> str:
    """Return who the run belongs to. The merged job variables are asked after those of run and deployment,
    because they include the pool's default."""
    of_deployment = _describe_ownership(deployment) if deployment else Ownership()
    return find_user(_describe_ownership(run), of_deployment, variables.get("user"))


def _describe_ownership(source: FlowRun | DeploymentResponse) -> Ownership:
    variables, creator = source.job_variables or {}, source.created_by
    if creator is None:
        return Ownership(variables, source.tags)
    return Ownership(variables, source.tags, creator.display_value or "", creator.type or "")


def _check_run_ids(variable: str, run_ids: list[str]) -> tuple[str, ...]:
    def check(run_id: str) -> str:
        try:
            return str(UUID(run_id))
        except ValueError:
            raise BadJobVariables(
                f"The job variable {variable} names {run_id!r}, which is not the id of a run. "
                "Ids look like 0c4f0f5e-7d3b-4a53-9d0f-7a1c2e9b8f10; `gpu-flows queue` shows them."
            ) from None

    return tuple(map(check, run_ids))


def _clean_patterns(patterns: list[str]) -> tuple[str, ...]:
    cleaned = (re.sub(r"\s+", " ", pattern).strip() for pattern in patterns)
    return tuple(pattern for pattern in cleaned if pattern)
