"""The due jobs of a pool: due runs that the pool admits, built into jobs."""

from __future__ import annotations

from collections.abc import Container, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun, State, WorkPool

from gpu_flows.analytics.facts import JobSubmitted
from gpu_flows.blocks import GpuCluster
from gpu_flows.common.clock import utc_now
from gpu_flows.prefect_api.admission import Admission
from gpu_flows.prefect_api.deployment_cache import DeploymentCache
from gpu_flows.prefect_api.due_runs import DueRuns, FoundRuns
from gpu_flows.prefect_api.job_builder import build_job, describe_submission
from gpu_flows.prefect_api.job_variables import BadJobVariables
from gpu_flows.schedulers.model import Job


@dataclass(slots=True)
class FoundJobs:
    """The result of a search for due jobs."""

    jobs: list[Job] = field(default_factory=list)
    bad: list[tuple[FlowRun, str]] = field(default_factory=list)  # runs with unusable job variables
    next_due: datetime | None = None  # when the next run becomes due


class DueJobs:
    def __init__(self, client: PrefectClient, pool: WorkPool, served_queues: set[str]) -> None:
        self._client = client
        self._admission = Admission(pool, served_queues)
        self.runs = DueRuns(client, pool.name, served_queues)
        self.deployments = DeploymentCache(client)
        self.cluster = GpuCluster()  # the pool's block, with the rules for containers
        self._known: dict[str, FlowRun] = {}  # the runs of all due and kept jobs, by id

    @property
    def pool(self) -> WorkPool:
        """The work pool as last read from the server."""
        return self._admission.pool

    @pool.setter
    def pool(self, pool: WorkPool) -> None:
        self._admission.pool = pool

    async def find_all(self, keep: Container[str] = ()) -> FoundJobs:
        """Return every due job of the pool. Runs with an id in `keep` stay known even if they are not due."""
        self._admission.set_work_queues(await self._client.read_work_queues(work_pool_name=self.pool.name))
        found = await self.runs.find_all()
        self._known = {job_id: run for job_id, run in self._known.items() if job_id in keep}
        return await self._build(found)

    async def find(self, run_ids: Iterable[UUID]) -> FoundJobs:
        """Return those of these runs that are due, as jobs."""
        return await self._build(await self.runs.find(run_ids))

    async def _build(self, found: FoundRuns) -> FoundJobs:
        self._known.update({str(run.id): run for run in found.due})
        await self.deployments.refresh(found.due)
        result = FoundJobs(next_due=found.next_due)
        for run in filter(self._admission.admits, found.due):
            deployment, priority = self.deployments.get(run), self._admission.queue_priority(run)
            try:
                result.jobs.append(build_job(run, deployment, self.pool, self.cluster, priority))
            except BadJobVariables as error:
                result.bad.append((run, str(error)))
        return result

    def run(self, job_id: str) -> FlowRun | None:
        """Return the run of a known job."""
        return self._known.get(job_id)

    def is_due(self, job_id: str, state: State[Any]) -> bool:
        """Return whether a run in this Scheduled state still belongs in the queue."""
        run, when = self._known.get(job_id), state.state_details.scheduled_time
        return (run is None or self._admission.admits(run)) and (when is None or when <= utc_now())

    def within_limits(self, jobs: Iterable[Job], active: Iterable[str]) -> list[Job]:
        """Return the first jobs in queue order that the limits allow next to the active ones."""
        queue_names = {job_id: run.work_queue_name or "" for job_id, run in self._known.items()}
        return self._admission.within_limits(jobs, active, queue_names)

    async def describe(self, job: Job) -> JobSubmitted:
        """Return the fact that the job was submitted. If the job has another name than its run, rename
        the run."""
        run = self._known[job.id]
        if job.name != run.name:
            with suppress(httpx.HTTPError):
                await self._client.update_flow_run(run.id, name=job.name)
        flow, deployment = await self.deployments.read_flow(run), self.deployments.get(run)
        return describe_submission(job, run, self.pool.name, flow.name, deployment.name if deployment else "")
