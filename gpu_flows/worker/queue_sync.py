"""Keeps the engine's queue in step with the pool's runs on the server.

Events report single runs as they change. A poll reads all runs and corrects what events missed. Jobs that
exceed the limits of the pool or its work queues are held back here; the engine does not see them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from uuid import UUID

import httpx
from prefect.client.schemas.objects import StateType
from prefect.events import Event

from gpu_flows.common.clock import utc_now
from gpu_flows.dispatch.dispatcher import Dispatcher
from gpu_flows.prefect_api.due_jobs import DueJobs, FoundJobs
from gpu_flows.prefect_api.prefect_gateway import PrefectGateway
from gpu_flows.prefect_api.run_states import RunStates
from gpu_flows.schedulers.model import Job, Reason
from gpu_flows.worker.background_tasks import BackgroundTasks

RUN_EVENTS = "prefect.flow-run."


class QueueSync:
    def __init__(
        self,
        due_jobs: DueJobs,
        states: RunStates,
        gateway: PrefectGateway,
        dispatcher: Dispatcher,
        record: Callable[..., None],
        tasks: BackgroundTasks,
        poll_after: Callable[[float], None],
    ) -> None:
        self._due_jobs, self._states, self._gateway = due_jobs, states, gateway
        self._dispatcher, self._engine, self._tasks = dispatcher, dispatcher.engine, tasks
        self._record: Callable[..., None] = record
        self._poll_after = poll_after
        self._due: dict[str, Job] = {}  # every due job, including those that limits hold back
        self._recorded: set[str] = set()  # jobs whose submission has been recorded
        self._finished_at: dict[str, float] = {}  # jobs whose execution has finished, and when
        self._changed: set[UUID] = set()  # runs that events reported and that have not been read yet
        self._reading = asyncio.Lock()

    # -- all runs -----------------------------------------------------------------------------

    async def sync_all(self) -> None:
        """Read all runs of the pool: due, cancelled, and claimed but never launched."""
        began = time.monotonic()
        async with self._reading:
            before = {job.id for job in self._engine.waiting} | set(self._due)
            found = await self._due_jobs.find_all(keep=self._dispatcher.executing())
            found_ids = {job.id for job in found.jobs}
            await self._accept(found, read_at=began)
            await self._remove_missing(before - found_ids - self._dispatcher.executing())
            self._recorded &= set(self._due) | self._dispatcher.executing()
            self._finished_at = {id: at for id, at in self._finished_at.items() if at >= began}
        for run in await self._due_jobs.runs.find_in_state(StateType.CANCELLING, StateType.PENDING):
            if run.state_type == StateType.CANCELLING:
                await self.cancel(run.id)
            elif not self._dispatcher.is_executing(str(run.id)) and self._states.is_abandoned_claim(run):
                await self._states.release_claim(run.id, "it was claimed and never launched")

    async def _remove_missing(self, job_ids: Iterable[str]) -> None:
        """Remove waiting jobs that were not found among the due runs. Their runs were cancelled, paused,
        rescheduled or deleted. Each run is read again, because paging can also miss a run that is still
        due."""
        missing = set(job_ids)
        if not missing:
            return
        runs = await self._due_jobs.runs.find_in_any_state(UUID(job_id) for job_id in missing)
        states = {str(run.id): run.state for run in runs}
        for job_id in missing:
            state = states.get(job_id)
            if state and state.is_scheduled() and self._due_jobs.is_due(job_id, state):
                continue
            self._due.pop(job_id, None)
            self._dispatcher.withdraw(job_id)
            if state is None or state.is_cancelled():
                detail = state.message or "" if state else "the run was deleted"
                self._dispatcher.record_job_end(job_id, "cancelled", detail)

    # -- single runs --------------------------------------------------------------------------

    def on_run_event(self, event: Event) -> None:
        job_id = event.resource.id.removeprefix(RUN_EVENTS)
        name = event.event.removeprefix(RUN_EVENTS)
        state_type = (event.payload.get("validated_state") or {}).get("type")
        if name in ("Cancelling", "Cancelled"):
            self._tasks.start(self.cancel(UUID(job_id)))
        elif state_type == "SCHEDULED" and not (job_id in self._due or self._dispatcher.is_executing(job_id)):
            if not self._changed:
                self._tasks.start(self._sync_changed())
            self._changed.add(UUID(job_id))

    async def _sync_changed(self) -> None:
        """Read the runs that events reported. If the server does not answer, the next poll reads them."""
        async with self._reading:
            changed, self._changed = self._changed, set()
            if changed and self._dispatcher.active:
                read_at = time.monotonic()
                with contextlib.suppress(httpx.HTTPError):
                    await self._accept(await self._due_jobs.find(changed), read_at)

    async def cancel(self, run_id: UUID) -> None:
        job_id = str(run_id)
        if not self._dispatcher.active:
            return
        self._due.pop(job_id, None)
        if self._dispatcher.is_executing(job_id):
            self._dispatcher.cancel(job_id)
            return
        if self._engine.is_waiting(job_id):
            self._dispatcher.withdraw(job_id)
            self._dispatcher.record_job_end(job_id, "cancelled", "cancelled while it waited")
        await self._states.complete_cancellation(run_id)

    def on_finished(self, job: Job) -> None:
        """Handle the end of a job's execution: the job waits again, or is no longer due."""
        if self._engine.is_waiting(job.id):
            self._due[job.id] = job
        else:
            self._due.pop(job.id, None)
            self._finished_at[job.id] = time.monotonic()
        self._admit()

    # -- the queue ----------------------------------------------------------------------------

    async def _accept(self, found: FoundJobs, read_at: float) -> None:
        """Queue the jobs that were found. A job whose execution finished since `read_at` is skipped, because
        what was read about it is outdated."""
        for run, why in found.bad:
            self._tasks.start(self._gateway.refuse_run(run, Reason("bad_request", why)))
            self._dispatcher.record_job_end(str(run.id), "refused", why)
        for job in found.jobs:
            if self._finished_at.get(job.id, -1.0) >= read_at:
                continue
            if job.id not in self._recorded:
                self._record(await self._due_jobs.describe(job))
                self._recorded.add(job.id)
            self._due[job.id] = job
        self._admit()
        if found.next_due:
            delay = max(0.0, (found.next_due - utc_now()).total_seconds())
            self._poll_after(delay + 0.02)

    def _admit(self) -> None:
        """Give the engine the due jobs that the limits of the pool and its work queues allow."""
        executing = self._dispatcher.executing()
        for job_id in executing & set(self._due):
            del self._due[job_id]
        running = self._engine.running
        counted = [
            job_id for job_id in executing if not (job_id in running and running[job_id].job.gpus == 0)
        ]
        allowed = self._due_jobs.within_limits(self._due.values(), counted)
        for job in allowed:
            self._dispatcher.submit(job)
        if len(allowed) != len(self._engine.waiting):
            allowed_ids = {job.id for job in allowed}
            for job in [job for job in self._engine.waiting if job.id not in allowed_ids]:
                self._dispatcher.withdraw(job.id)
