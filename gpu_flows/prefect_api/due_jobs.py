"""The due jobs of a pool: due runs that the pool serves, built into jobs, and which of them may start."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Container, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun, State, WorkPool
from prefect.exceptions import ObjectNotFound

from gpu_flows.analytics.facts import JobSubmitted
from gpu_flows.blocks import GpuCluster
from gpu_flows.common.clock import utc_now
from gpu_flows.prediction.live import LivePrediction
from gpu_flows.prefect_api.admission import Admission
from gpu_flows.prefect_api.conventions import TRAIN_STEP
from gpu_flows.prefect_api.dependencies import Dependencies
from gpu_flows.prefect_api.deployment_cache import DeploymentCache
from gpu_flows.prefect_api.due_runs import DueRuns, FoundRuns
from gpu_flows.prefect_api.job_builder import (
    DueJob,
    build_features,
    build_job,
    build_unusable_job,
    describe_submission,
    step_options,
)
from gpu_flows.prefect_api.job_variables import BadJobVariables
from gpu_flows.schedulers.model import Job, Reason

log = logging.getLogger(__name__)

FRESH_S = 0.5  # a job may start if limits and pauses were read this recently
AT_ONCE = 50  # jobs built before other tasks get their turn


@dataclass(slots=True)
class FoundJobs:
    """The result of a search for due jobs."""

    jobs: list[DueJob] = field(default_factory=list)
    bad: list[tuple[FlowRun, str]] = field(default_factory=list)  # runs with unusable job variables
    next_due: datetime | None = None  # when the next run becomes due


class DueJobs:
    def __init__(self, client: PrefectClient, pool: WorkPool, served_queues: set[str]) -> None:
        self._client = client
        self.admission = Admission(pool, served_queues, Dependencies(client))
        self.runs = DueRuns(client, pool.name, served_queues)
        self.deployments = DeploymentCache(client)
        self.prediction: LivePrediction | None = None  # completes the jobs
        self._cluster = GpuCluster()
        self._known: dict[str, FlowRun] = {}  # the runs of all due and kept jobs, by id
        self._built: dict[str, tuple[tuple[Any, ...], DueJob]] = {}  # with what each was built from
        self._limits_read = float("-inf")
        self._reading_limits = asyncio.Lock()

    @property
    def pool(self) -> WorkPool:
        """The work pool as last read from the server."""
        return self.admission.pool

    @property
    def cluster(self) -> GpuCluster:
        """The pool's cluster block, with the rules for containers."""
        return self._cluster

    @cluster.setter
    def cluster(self, cluster: GpuCluster) -> None:
        self._cluster = cluster
        self._built.clear()

    async def read_limits(self, at_most_s: float = 0.0) -> None:
        """Read the pool and its work queues, unless the last read began at most this many seconds ago.
        Calls at the same time share a read."""
        wanted = time.monotonic() - at_most_s
        async with self._reading_limits:
            if self._limits_read >= wanted:
                return
            began, name = time.monotonic(), self.pool.name
            pool, queues = await asyncio.gather(
                self._client.read_work_pool(name), self._client.read_work_queues(work_pool_name=name)
            )
            if pool.base_job_template != self.pool.base_job_template:
                self._built.clear()
            self.admission.pool = pool
            self.admission.set_work_queues(queues)
            self._limits_read = began

    async def find_all(self, keep: Container[str] = ()) -> FoundJobs:
        """Return every due job of the pool. Runs with an id in `keep` stay known even if they are not due."""
        await self.read_limits()
        found = await self.runs.find_all()
        due = {str(run.id) for run in found.due}
        self._known = {job_id: run for job_id, run in self._known.items() if job_id in keep}
        self._built = {job_id: built for job_id, built in self._built.items() if job_id in due}
        return await self._build(found)

    async def find(self, run_ids: Iterable[UUID]) -> FoundJobs:
        """Return those of these runs that are due, as jobs."""
        return await self._build(await self.runs.find(run_ids))

    async def describe_active(self) -> None:
        """Read the runs of the active jobs that an earlier worker launched, because they count against the
        limits of their work queues."""
        unknown = self.admission.unknown_active()
        if unknown:
            runs = await self.runs.find_in_any_state(map(UUID, unknown))
            for due in (await self._build(FoundRuns(runs))).jobs:
                self.admission.describe_active(due)

    async def _build(self, found: FoundRuns) -> FoundJobs:
        self._known.update({str(run.id): run for run in found.due})
        await self.deployments.refresh(found.due)
        await self.deployments.read_flows(found.due)
        result = FoundJobs(next_due=found.next_due)
        for number, run in enumerate(filter(self.admission.serves, found.due)):
            if number % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
            try:
                result.jobs.append(self._build_job(run))
            except BadJobVariables as error:
                result.bad.append((run, str(error)))
        return result

    def _build_job(self, run: FlowRun) -> DueJob:
        """Build the job, or return the one that was built from the same run and deployment before."""
        job_id, deployment = str(run.id), self.deployments.get(run)
        priority = self.admission.queue_priority(run)
        basis = self.prediction.basis if self.prediction else ()
        source = (run.updated, deployment.updated if deployment else None, priority, basis)
        source_before, due = self._built.get(job_id, ((), None))
        if due is None or run.updated is None or source != source_before:
            due = self._complete(run, build_job(run, deployment, self.pool, self.cluster, priority))
            self._built[job_id] = (source, due)
        return due

    def _complete(self, run: FlowRun, due: DueJob) -> DueJob:
        """Return the job with what is predicted of it. A prediction reads parameters that may hold anything,
        and one that fails must not hold up the other jobs of the pool."""
        if self.prediction is None:
            return due
        try:
            return self._predict(self.prediction, run, due)
        except Exception:
            log.exception("Nothing is predicted of run %s, because its prediction failed.", run.name)
            return due

    def _predict(self, prediction: LivePrediction, run: FlowRun, due: DueJob) -> DueJob:
        job, deployment = due.job, self.deployments.get(run)
        features = build_features(run, job, self.deployments.flow_name(run), deployment)
        # A step is code of the job's owner. Where jobs run in containers, it must not run outside of one.
        may_trace = due.memory_step == TRAIN_STEP or self.cluster.runtime == "process"
        step = due.memory_step if may_trace else ""
        completed = prediction.complete(job, features, step, step_options(step, run, job) if step else {})
        return replace(due, job=completed.job, is_predicting=completed.is_pending)

    def rebuild(self, job_ids: Iterable[str]) -> None:
        """Build these jobs anew when they are found next: more can be predicted of them now."""
        for job_id in job_ids:
            self._built.pop(job_id, None)

    def parameters(self, job_id: str) -> dict[str, Any]:
        """Return the parameters of a job's run, as far as they are known."""
        run = self._known.get(job_id)
        return dict(run.parameters) if run else {}

    async def build(self, run: FlowRun) -> Job | None:
        """Return the job of a run in any state; None if its job variables are unusable."""
        with suppress(BadJobVariables, ObjectNotFound):  # its deployment may have been deleted
            return build_job(run, await self.deployments.read(run), self.pool, self.cluster).job
        return None

    def run(self, job_id: str) -> FlowRun | None:
        """Return the run of a known job."""
        return self._known.get(job_id)

    def is_due(self, job_id: str, state: State[Any]) -> bool:
        """Return whether a run in this Scheduled state still belongs in the queue."""
        run, when = self._known.get(job_id), state.state_details.scheduled_time
        return (run is None or self.admission.serves(run)) and (when is None or when <= utc_now())

    async def find_objection(self, job_id: str) -> Reason | None:
        """Return why limits and pauses forbid the job to start now. Reads them again if that was not done
        very recently, because a limit must hold from the moment it is set."""
        await self.read_limits(FRESH_S)
        return self.admission.find_objection(job_id)

    async def describe(self, job: Job) -> JobSubmitted:
        """Return the fact that the job was submitted. If the job has another name than its run, rename
        the run."""
        run = self._known[job.id]
        if job.name != run.name:
            with suppress(httpx.HTTPError):
                await self._client.update_flow_run(run.id, name=job.name)
        flow, deployment = await self.deployments.read_flow(run), self.deployments.get(run)
        return describe_submission(job, run, self.pool.name, flow.name, deployment.name if deployment else "")

    async def describe_unusable(self, run: FlowRun) -> JobSubmitted:
        """Return the fact that a run was submitted whose job variables cannot be used."""
        return await self.describe(build_unusable_job(run, self.deployments.get(run), self.pool))
