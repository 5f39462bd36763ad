"""Keeps the engine's queue in step with the pool's runs on the server.

Events report single runs and the settings of the pool as they change. A poll reads everything and corrects
what events missed. Jobs that may not start yet, because of limits, pauses, holds or dependencies, are held
back by `Admission`; the engine does not see them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from uuid import UUID

import httpx
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.events import Event
from prefect.exceptions import PrefectException

from gpu_flows.analytics.facts import JobQueued
from gpu_flows.common.clock import utc_now
from gpu_flows.dispatch.dispatcher import Dispatcher
from gpu_flows.prefect_api.conventions import FINAL_STATES
from gpu_flows.prefect_api.due_jobs import AT_ONCE, DueJobs, FoundJobs
from gpu_flows.prefect_api.job_builder import DueJob
from gpu_flows.prefect_api.prefect_gateway import PrefectGateway
from gpu_flows.prefect_api.run_edits import RUN_EDITED
from gpu_flows.prefect_api.run_states import RunStates, is_suspended
from gpu_flows.schedulers.model import Job, Reason
from gpu_flows.worker.background_tasks import BackgroundTasks
from gpu_flows.worker.other_runs import TAKEN, OtherRuns
from gpu_flows.worker.status import WaitingCount

RUN_EVENTS = "prefect.flow-run."
POOL_EVENTS = ("prefect.work-pool.", "prefect.work-queue.")


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
        other_runs: OtherRuns,
    ) -> None:
        self._due_jobs, self._states, self._gateway = due_jobs, states, gateway
        self._admission, self._dependencies = due_jobs.admission, due_jobs.admission.dependencies
        self._dispatcher, self._engine, self._tasks = dispatcher, dispatcher.engine, tasks
        self._record: Callable[..., None] = record
        self._poll_after, self._other_runs = poll_after, other_runs
        self._recorded: set[str] = set()  # jobs whose submission has been recorded
        self._queued: set[str] = set()  # jobs of which it has been recorded that they entered the queue
        self._refused: set[str] = set()  # jobs that are being refused
        self._finished_at: dict[str, float] = {}  # jobs whose execution has finished, and when
        self._changed: set[UUID] = set()  # runs that events reported and that have not been read yet
        self._reading = asyncio.Lock()

    # -- all runs -----------------------------------------------------------------------------

    async def sync_all(self) -> None:
        """Read all runs of the pool: first those that hold devices and count for limits, then those due."""
        await self._check_taken()
        began = time.monotonic()
        async with self._reading:
            before = self._admission.ids()
            found = await self._due_jobs.find_all(keep=self._dispatcher.executing())
            found_ids = {due.job.id for due in found.jobs} | {str(run.id) for run, _ in found.bad}
            await self._accept(found, read_at=began)
            await self._remove_missing(before - found_ids - self._dispatcher.executing())
            await self._due_jobs.describe_active()
            self._admit()
            known = self._admission.ids() | self._dispatcher.executing()
            self._recorded &= known | self._refused
            self._queued &= known
            self._refused &= found_ids
            self._finished_at = {id: at for id, at in self._finished_at.items() if at >= began}

    async def _check_taken(self) -> None:
        """Check the runs that are claimed, running, paused or being cancelled."""
        taken = await self._due_jobs.runs.find_in_state(*TAKEN, StateType.PAUSED)
        for run in taken:
            if run.state_type == StateType.CANCELLING:
                await self.cancel(run.id)
            elif is_suspended(run):
                self._dispatcher.suspend(str(run.id))
        await self._other_runs.check_all(taken)
        # The run of a job that is executed here may have ended: another worker led meanwhile, and gave it up.
        await self._other_runs.stop_ended(self._dispatcher.executing().difference(str(r.id) for r in taken))

    async def _remove_missing(self, job_ids: Iterable[str]) -> None:
        """Remove waiting jobs that were not found among the due runs. Their runs were cancelled, rescheduled
        or deleted. Each run is read again, because paging can also miss a run that is still due."""
        missing = set(job_ids)
        if not missing:
            return
        runs = await self._due_jobs.runs.find_in_any_state(UUID(job_id) for job_id in missing)
        states = {str(run.id): run.state for run in runs}
        for job_id in missing:
            state = states.get(job_id)
            if state and state.is_scheduled() and self._due_jobs.is_due(job_id, state):
                continue
            self._admission.discard(job_id)
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
        elif state_type == "PAUSED" and self._dispatcher.is_executing(job_id):
            self._tasks.start(self._suspend(UUID(job_id)))
        elif event.event == RUN_EDITED or (state_type == "SCHEDULED" and not self._knows(job_id)):
            if not self._changed:
                self._tasks.start(self._sync_changed())
            self._changed.add(UUID(job_id))
        if state_type in FINAL_STATES:
            self._on_end_of_run(job_id)

    def on_predicted(self, job_ids: set[str]) -> None:
        """Complete waiting jobs of which more can be predicted now."""
        self._due_jobs.rebuild(job_ids)
        waiting = {UUID(job_id) for job_id in job_ids if job_id in self._admission}
        if waiting and not self._changed:
            self._tasks.start(self._sync_changed())
        self._changed |= waiting

    def _knows(self, job_id: str) -> bool:
        return job_id in self._admission or self._dispatcher.is_executing(job_id)

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
        # A worker that stands by still stops the processes of its own machine.
        if not self._dispatcher.active and job_id not in self._dispatcher.running_processes():
            return
        was_due = job_id in self._admission
        self._admission.discard(job_id)
        if self._dispatcher.is_executing(job_id):
            self._dispatcher.cancel(job_id)
            return
        if was_due:
            self._dispatcher.withdraw(job_id)
            self._dispatcher.record_job_end(job_id, "cancelled", "cancelled while it waited")
            self._admit()
        elif self._dispatcher.progress(job_id).attempts:
            self._dispatcher.record_job_end(job_id, "cancelled", "cancelled while it was suspended")
        await self._states.complete_cancellation(run_id)

    async def _suspend(self, run_id: UUID) -> None:
        """Stop a run that was suspended, not only paused. If the server does not answer, the next poll
        stops it."""
        with contextlib.suppress(httpx.HTTPError):
            for run in await self._due_jobs.runs.find_in_any_state([run_id]):
                if is_suspended(run) and self._dispatcher.active:
                    self._dispatcher.suspend(str(run_id))

    def on_finished(self, job: Job) -> None:
        """Handle the end of a job's execution: the job waits again, or is no longer due."""
        if self._engine.is_waiting(job.id):
            known = self._admission.get(job.id)
            due = DueJob(job, known.work_queue if known else "")  # what it waited for before, it got
            self._admission.put(due, is_given=True)
        else:
            self._admission.discard(job.id)
            self._finished_at[job.id] = time.monotonic()
        self._admit()
        self._on_end_of_run(job.id)

    # -- pool and work queues -----------------------------------------------------------------

    def on_pool_event(self, event: Event) -> None:
        """Apply a changed limit or pause now. If the server does not answer, the next poll does it."""
        self._tasks.start(self._apply_limits())

    async def _apply_limits(self) -> None:
        with contextlib.suppress(httpx.HTTPError, PrefectException):
            await self._due_jobs.read_limits()
            self._admit()

    # -- dependencies -------------------------------------------------------------------------

    def _on_end_of_run(self, job_id: str) -> None:
        if job_id in self._admission.awaited_runs:
            self._tasks.start(self._settle_dependencies())

    async def _settle_dependencies(self) -> None:
        """Read the runs that jobs wait for. Refuse the jobs of which one ended other than Completed."""
        with contextlib.suppress(httpx.HTTPError, PrefectException):
            await self._dependencies.read(self._admission.awaited_runs)
        for due in self._admission.dependent_jobs():
            reason = self._dependencies.find_refusal(due.after, self._dispatcher.executing())
            if reason:
                self._refuse(due.job.id, reason)
        self._admit()

    # -- the queue ----------------------------------------------------------------------------

    async def _accept(self, found: FoundJobs, read_at: float) -> None:
        """Queue the jobs that were found. A job whose execution finished since `read_at` is skipped, because
        what was read about it is outdated."""
        for run, why in found.bad:
            await self._refuse_unusable(run, why)
        for number, due in enumerate(found.jobs):
            job = due.job
            self._other_runs.release(job.id)  # another worker has given it back
            if number % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
            if job.id in self._refused or self._finished_at.get(job.id, -1.0) >= read_at:
                continue
            if job.id not in self._recorded:
                self._recorded.add(job.id)
                self._record(await self._due_jobs.describe(job))
                if due.notice:
                    self._gateway.tell(job, due.notice)
            if not self._dispatcher.is_executing(job.id):
                self._admission.put(due)
        if self._admission.awaited_runs:
            await self._settle_dependencies()
        else:
            self._admit()
        if found.next_due:
            delay = max(0.0, (found.next_due - utc_now()).total_seconds())
            self._poll_after(delay + 0.02)

    async def _refuse_unusable(self, run: FlowRun, why: str) -> None:
        job_id = str(run.id)
        if job_id not in self._refused and not self._dispatcher.is_executing(job_id):
            if job_id not in self._recorded:
                self._recorded.add(job_id)
                self._record(await self._due_jobs.describe_unusable(run))
            self._refuse(job_id, Reason("bad_request", why))

    def _refuse(self, job_id: str, reason: Reason) -> None:
        """Refuse a job that has no execution."""
        self._refused.add(job_id)
        self._admission.discard(job_id)
        self._dispatcher.withdraw(job_id)
        self._tasks.start(self._gateway.refuse_run(UUID(job_id), reason))
        self._dispatcher.record_job_end(job_id, "refused", str(reason))

    def _admit(self) -> None:
        """Give the engine the jobs that may start now, and take back those that may not."""
        changes = self._admission.update(self._dispatcher.executing(), self._other_runs.followed())
        for job_id in changes.withdraw:
            self._dispatcher.withdraw(job_id)
        for job in changes.admit:
            self._record_queued(job)
            self._dispatcher.submit(job)

    def _record_queued(self, job: Job) -> None:
        if job.id not in self._queued:
            self._queued.add(job.id)
            due = self._admission.get(job.id)
            self._record(JobQueued.of(job, job.id, time.time(), due.work_queue if due else ""))

    # -- for those who show why jobs wait -----------------------------------------------------

    @property
    def active(self) -> bool:
        """Whether this worker acts for the pool."""
        return self._dispatcher.active

    def reasons(self, limit: int) -> Iterator[tuple[Job, Reason]]:
        """Iterate over the waiting jobs with their reasons: the queue in its order, then those held back."""
        return islice(chain(self._dispatcher.reasons(limit), self._admission.reasons()), limit)

    def count(self) -> WaitingCount:
        """Count all waiting jobs, however many they are."""
        released, held = list(self._dispatcher.reasons(0)), list(self._admission.reasons())
        engine = self._dispatcher.engine
        by_reason = engine.count_reasons() + Counter(reason.code for _, reason in (*released, *held))
        waiting = chain(engine.waiting, (job for job, _ in (*released, *held)))
        return WaitingCount(by_reason, sum(job.gpus for job in waiting))

    def waits(self, job_id: str) -> bool:
        """Return whether the job is in the queue, is held back, or waits until its devices are released."""
        return self._dispatcher.waits(job_id) or self._admission.holds(job_id)
