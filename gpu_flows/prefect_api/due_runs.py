"""Which runs wait in the pool, and what each asks for.

Prefect's own poll shows a worker at most 200 runs, so a long queue would hide what stands behind
it. We page through all of them and apply the same conditions: due, not paused, within the limits
of the pool and its queues. An event names a single run, which is then looked at by itself.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Container, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterNextScheduledStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import Flow, FlowRun, State, StateType, WorkPool, WorkQueue
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound

from gpu_flows.analytics.facts import JobSubmitted
from gpu_flows.blocks import ContainerRules
from gpu_flows.prefect_api.container_request import FORM, asked_by_form, container_of, secret_names
from gpu_flows.prefect_api.job_variables import BadAsk, GpuJobConfiguration, check_names, job_of
from gpu_flows.prefect_api.run_states import now
from gpu_flows.runtimes.base import LaunchError, Login, Refused
from gpu_flows.schedulers.model import Job

CREDENTIALS = "docker-registry-credentials"  # the slug of Prefect's own block
PAGE = 200  # the most the server gives at once
TRUST_DEPLOYMENTS_S = 10.0


@dataclass(slots=True)
class Arrivals:
    """What a look at the pool found."""

    jobs: list[Job] = field(default_factory=list)
    bad: list[tuple[FlowRun, str]] = field(default_factory=list)  # runs whose variables make no sense
    next_due: datetime | None = None  # when the next run becomes due


class Intake:
    def __init__(self, client: PrefectClient, pool: WorkPool, queues: set[str]) -> None:
        self._client, self.pool, self._queues = client, pool, queues
        self._pool = pool.name
        self.runs: dict[str, FlowRun] = {}  # every due run we know, by id
        self._deployments: dict[UUID, DeploymentResponse] = {}
        self._deployments_at = 0.0
        self._flows: dict[UUID, Flow] = {}
        self._work_queues: dict[str, WorkQueue] = {}
        self._in_pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[pool.name]))
        self.container_rules = (ContainerRules(), True)  # and whether the hosts' files are the worker's

    # -- looking ------------------------------------------------------------------------------

    async def look(self, pool: WorkPool, keep: Container[str] = ()) -> Arrivals:
        """Every due run of the pool. Of the others, those in `keep` stay known."""
        self.pool = pool
        queues = await self._client.read_work_queues(work_pool_name=self._pool)
        self._work_queues = {queue.name: queue for queue in queues}
        await self._show_presence()
        due = await self._page(state=_scheduled(), next_scheduled_start_time=_before(now()))
        kept = {job_id: run for job_id, run in self.runs.items() if job_id in keep}
        self.runs = {**kept, **{str(run.id): run for run in due}}
        later = await self._client.read_flow_runs(
            flow_run_filter=FlowRunFilter(state=_scheduled(), next_scheduled_start_time=_after(now())),
            work_pool_filter=self._in_pool,
            sort=FlowRunSort.NEXT_SCHEDULED_START_TIME_ASC,
            limit=1,
        )
        return await self._arrivals(due, _due(later[0]) if later else None)

    async def _show_presence(self) -> None:
        """Prefect calls queues and deployments ready while somebody uses its own poll. Ask it for
        runs that were due in another age: it finds none and notes that we are here."""
        await self._client.get_scheduled_flow_runs_for_work_pool(
            self._pool, sorted(self._queues) or None, datetime.fromtimestamp(0, UTC)
        )

    async def look_at(self, run_ids: Iterable[UUID]) -> Arrivals:
        """These runs only, of which an event told."""
        wanted = list(run_ids)
        runs = await self._page(id=FlowRunFilterId(any_=wanted), state=_scheduled()) if wanted else []
        due = [run for run in runs if _due(run) <= now()]
        self.runs.update({str(run.id): run for run in due})
        later = [_due(run) for run in runs if _due(run) > now()]
        return await self._arrivals(due, min(later, default=None))

    async def of_state(self, *kinds: StateType) -> list[FlowRun]:
        """The pool's runs in these states, due or not."""
        return await self._page(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(kinds))))

    async def by_id(self, run_ids: Iterable[UUID]) -> list[FlowRun]:
        """These runs, whatever became of them."""
        wanted, found = list(run_ids), []
        for start in range(0, len(wanted), PAGE):
            found += await self._page(id=FlowRunFilterId(any_=wanted[start : start + PAGE]))
        return found

    def is_due(self, job_id: str, state: State[Any]) -> bool:
        """Whether a run that is Scheduled so still belongs in the line."""
        run, when = self.runs.get(job_id), state.state_details.scheduled_time
        return (run is None or self._takes(run)) and (when is None or when <= now())

    async def _page(self, **conditions: Any) -> list[FlowRun]:
        found: list[FlowRun] = []
        while True:
            page = await self._client.read_flow_runs(
                flow_run_filter=FlowRunFilter(**conditions),
                work_pool_filter=self._in_pool,
                sort=FlowRunSort.NEXT_SCHEDULED_START_TIME_ASC,
                limit=PAGE,
                offset=len(found),
            )
            found += page
            if len(page) < PAGE:
                return list({run.id: run for run in found}.values())

    # -- making jobs of runs ------------------------------------------------------------------

    async def _arrivals(self, due: list[FlowRun], next_due: datetime | None) -> Arrivals:
        arrivals = Arrivals(next_due=next_due)
        await self._refresh_deployments(due)
        for run in due:
            if not self._takes(run):
                continue
            try:
                arrivals.jobs.append(self._job(run))
            except BadAsk as error:
                arrivals.bad.append((run, str(error)))
        return arrivals

    def _takes(self, run: FlowRun) -> bool:
        """The conditions that Prefect's own poll applies to a run."""
        queue = self._work_queues.get(run.work_queue_name or "")
        return (
            not self.pool.is_paused
            and not (queue and queue.is_paused)
            and (not self._queues or run.work_queue_name in self._queues)
            and getattr(run.empirical_policy, "retry_type", None) != "in_process"
        )

    def within_limits(self, jobs: Iterable[Job], active: Iterable[str]) -> list[Job]:
        """As many of these jobs, in order, as the limits of the pool and its queues leave room
        for beside the active ones."""
        queue_of = {job_id: run.work_queue_name or "" for job_id, run in self.runs.items()}
        used = Counter(queue_of.get(job_id, "") for job_id in active)
        limits = {name: queue.concurrency_limit for name, queue in self._work_queues.items()}
        room = self.pool.concurrency_limit
        room = None if room is None else room - used.total()
        allowed = []
        for job in sorted(jobs, key=lambda job: job.order):
            if job.gpus == 0:  # it only watches over jobs that the limits must leave room for
                allowed.append(job)
                continue
            queue = queue_of.get(job.id, "")
            limit = limits.get(queue)
            if (room is not None and room <= 0) or (limit is not None and used[queue] >= limit):
                continue
            used[queue] += 1
            room = None if room is None else room - 1
            allowed.append(job)
        return allowed

    def _job(self, run: FlowRun) -> Job:
        queue = self._work_queues.get(run.work_queue_name or "")
        offered = self.pool.base_job_template.get("variables", {}).get("properties", {})
        check_names(_overrides(self._deployment_of(run), run), offered)
        variables = self.variables(run)
        self._check_container(run, variables)
        return job_of(
            str(run.id),
            variables,
            due=_due(run),
            name=self._form_name(run) or run.name,
            user=_user(run),
            queue_priority=(queue.priority if queue else None) or 0,
        )

    def variables(self, run: FlowRun) -> dict[str, Any]:
        """Pool defaults, then the deployment's job variables, then the run's own."""
        properties = self.pool.base_job_template.get("variables", {})
        defaults = {
            name: field["default"]
            for name, field in properties.get("properties", {}).items()
            if field.get("default") is not None
        }
        return {**defaults, **_overrides(self._deployment_of(run), run)}

    def _deployment_of(self, run: FlowRun) -> DeploymentResponse | None:
        return self._deployments.get(run.deployment_id) if run.deployment_id else None

    def _check_container(self, run: FlowRun, variables: dict[str, Any]) -> None:
        """Refuse early what would be refused later. What is still to be looked up (a variable or block of
        Prefect's) is held against the rules when the run is launched."""
        if not variables.get("image") or "{{" in str(variables):
            return
        try:
            env = variables.get("env") or {}
            container_of(variables, env, [str(variables.get("command") or "")], *self.container_rules)
        except Refused as error:
            raise BadAsk(f"{error}.") from None

    async def _refresh_deployments(self, runs: list[FlowRun]) -> None:
        """Deployments change rarely and are shared by many runs: read each once in a while."""
        fresh = time.monotonic() - self._deployments_at <= TRUST_DEPLOYMENTS_S
        known = dict(self._deployments) if fresh else {}
        ids = sorted({run.deployment_id for run in runs if run.deployment_id} - set(known), key=str)
        for start in range(0, len(ids), PAGE):
            some = DeploymentFilter(id=DeploymentFilterId(any_=ids[start : start + PAGE]))
            for deployment in await self._client.read_deployments(deployment_filter=some, limit=PAGE):
                known[deployment.id] = deployment
        if not fresh:
            self._deployments_at = time.monotonic()
        self._deployments = known

    # -- a chosen run, ready to launch --------------------------------------------------------

    async def configuration(
        self, run: FlowRun, worker_name: str, worker_id: UUID | None
    ) -> GpuJobConfiguration:
        """Everything the pool, the deployment and the run say, resolved for launching."""
        deployment = await self._deployment(run.deployment_id) if run.deployment_id else None
        configuration: GpuJobConfiguration = await GpuJobConfiguration.from_template_and_values(
            base_job_template=self.pool.base_job_template,
            values=_overrides(deployment, run),
            client=self._client,
        )
        configuration.prepare_for_flow_run(
            run,
            deployment=deployment,
            flow=await self._flow(run.flow_id),
            work_pool=self.pool,
            worker_name=worker_name,
            worker_id=worker_id,
        )
        return configuration

    def is_form(self, run: FlowRun) -> bool:
        """Whether the run's flow only describes a container."""
        deployment = self._deployment_of(run)
        return bool(deployment and deployment.entrypoint == FORM)

    def _form_name(self, run: FlowRun) -> str:
        """The name that was given in the form; Prefect made one up before."""
        return str(run.parameters.get("name") or "") if self.is_form(run) else ""

    def secret_names(self, run: FlowRun) -> set[str]:
        """The environment variables of a run that nobody but the job should read."""
        return secret_names(self.variables(run).get("env") or {})

    async def login(self, block: str) -> Login | None:
        """What a credentials block says. Raises LaunchError where there is none of that name."""
        if not block:
            return None
        try:
            document = await self._client.read_block_document_by_name(
                block, CREDENTIALS, include_secrets=True
            )
        except ObjectNotFound:
            raise LaunchError(f"there is no Docker Registry Credentials block {block!r}") from None
        data = document.data
        return Login(
            str(data.get("username", "")), str(data.get("password", "")), str(data.get("registry_url", ""))
        )

    async def code_at_hand(self, run: FlowRun) -> tuple[str, str] | None:
        """Directory and entrypoint of the run's code, if all its deployment does to get it is to go to
        a directory, and that is on this machine."""
        directory, entrypoint = await self._code(run)
        return (directory, entrypoint) if directory and Path(directory).is_dir() else None

    async def module_at_hand(self, run: FlowRun) -> str:
        """The entrypoint of the run's code, if it is an installed module: an image that has it needs no
        directory, and has not the one that `prefect deploy` was called in."""
        directory, entrypoint = await self._code(run)
        return entrypoint if directory and ".py:" not in entrypoint else ""

    async def _code(self, run: FlowRun) -> tuple[str, str]:
        """Directory and entrypoint, if to go there is all that the run's deployment does to get its code."""
        deployment = await self._deployment(run.deployment_id) if run.deployment_id else None
        if deployment is None or not deployment.entrypoint or len(deployment.pull_steps or []) != 1:
            return "", ""
        (step,) = deployment.pull_steps or []
        going = step.get("prefect.deployments.steps.set_working_directory")
        directory = going.get("directory") if isinstance(going, dict) and len(step) == 1 else None
        return (directory, deployment.entrypoint) if isinstance(directory, str) else ("", "")

    async def _deployment(self, deployment_id: UUID) -> DeploymentResponse:
        known = self._deployments.get(deployment_id)
        return known or await self._client.read_deployment(deployment_id)

    async def _flow(self, flow_id: UUID) -> Flow:
        if flow_id not in self._flows:
            self._flows[flow_id] = await self._client.read_flow(flow_id)
        return self._flows[flow_id]

    async def describe(self, job: Job) -> JobSubmitted:
        """The job as a fact."""
        run = self.runs[job.id]
        if job.name != run.name:
            with suppress(httpx.HTTPError):
                await self._client.update_flow_run(run.id, name=job.name)
        deployment = self._deployments.get(run.deployment_id) if run.deployment_id else None
        return JobSubmitted.of(
            job,
            job_id=job.id,
            pool=self._pool,
            flow=(await self._flow(run.flow_id)).name,
            deployment=deployment.name if deployment else "",
            tags=json.dumps(sorted(run.tags)),
            experiment=_tagged(run, "experiment:"),
        )


def _scheduled() -> FlowRunFilterState:
    return FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED]))


def _before(when: datetime) -> FlowRunFilterNextScheduledStartTime:
    return FlowRunFilterNextScheduledStartTime.model_validate({"before_": when})


def _after(when: datetime) -> FlowRunFilterNextScheduledStartTime:
    return FlowRunFilterNextScheduledStartTime.model_validate({"after_": when})


def _due(run: FlowRun) -> datetime:
    return run.next_scheduled_start_time or run.expected_start_time or run.created or now()


def _overrides(deployment: DeploymentResponse | None, run: FlowRun) -> dict[str, Any]:
    """Job variables of the deployment and, over them, of the run; only `env` is merged inside."""
    ours, theirs = dict(deployment.job_variables or {} if deployment else {}), dict(run.job_variables or {})
    if deployment and deployment.entrypoint == FORM:
        ours |= asked_by_form(run.parameters)
    env = {**(ours.get("env") or {}), **(theirs.get("env") or {})}
    return {**ours, **theirs, **({"env": env} if env else {})}


def _tagged(run: FlowRun, prefix: str) -> str:
    return next((tag.removeprefix(prefix) for tag in sorted(run.tags) if tag.startswith(prefix)), "")


def _user(run: FlowRun) -> str:
    """Who asked: a `user:` tag, else whoever Prefect says created the run."""
    created_by = run.created_by.display_value if run.created_by else None
    return _tagged(run, "user:") or created_by or ""
