"""Runs one execution: wait for devices, claim, launch, wait for the end, release the devices, report.

Every function here ends with the job in a defined state: launched and reported, waiting again, or ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from gpu_flows.analytics.facts import JobEnded
from gpu_flows.dispatch.attempt_facts import (
    compute_progress,
    describe_end,
    describe_start,
    measure_saved_work,
)
from gpu_flows.dispatch.execution import Execution
from gpu_flows.dispatch.execution_registry import Executions
from gpu_flows.dispatch.gateway import REQUEUED, Gateway, Unreachable
from gpu_flows.dispatch.job_store import JobStore
from gpu_flows.runtimes.base import (
    Attempt,
    End,
    Intent,
    Launch,
    LaunchCancelled,
    LaunchError,
    NodeUnreachable,
    Refused,
    Runtime,
)
from gpu_flows.schedulers.engine import Engine, Refuse
from gpu_flows.schedulers.model import Reason, Start

FINAL_OUTCOMES = {"completed", "failed", "crashed", "cancelled"}
PAUSE_WHEN_UNREACHABLE_S = 2.0
REPORT_DELAY_S = 0.15  # lets the server handle the claims of the next jobs before the report of an end


@dataclass(eq=False)
class ExecutionRunner:
    engine: Engine
    runtime: Runtime
    gateway: Gateway
    job_store: JobStore
    executions: Executions
    log: logging.Logger
    record: Callable[..., None]
    flush: Callable[[], object]  # returns when what was recorded is on disk
    clock: Callable[[], float]
    wake: Callable[[], None]  # plans again
    may_act: Callable[[], bool]  # whether this worker holds the pool's lease
    is_closing: Callable[[], bool]
    paused_until: float = 0.0  # no planning before this time, because the server or a node is unreachable
    _stops: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    # -- start --------------------------------------------------------------------------------

    async def start(self, execution: Execution, policy: str, planned: float) -> None:
        """Take a planned job through claim and launch to its end."""
        may_begin = await self.executions.wait_for_devices(execution)
        execution.done_waiting = True
        if not may_begin or not self.may_act():
            return await self._return_to_queue(execution)
        execution.previous = None
        launch = await self._claim(execution, policy, planned)
        attempt = await self._launch(execution, launch) if launch else None
        if launch is None or attempt is None:
            return
        execution.attempt = attempt
        if execution.holds_devices:
            self.engine.started(execution.job.id, attempt.started, launch.attempt)
        self.record(*describe_start(attempt))
        self._send_stop(execution)  # if it was requested during the launch
        await self._report_launch_and_finish(execution, launch)

    async def _claim(self, execution: Execution, policy: str, planned: float) -> Launch | None:
        """Claim the job. None if it cannot be launched; the execution is then complete."""
        job = execution.job
        try:
            launch = await self.gateway.claim(Start(job, execution.devices), policy, planned)
        except Unreachable as error:
            self.log.warning("Cannot claim run %s now: %s", job.name, error)
            self._pause_planning()
            await self._return_to_queue(execution)
        except LaunchError as error:
            await self._report_launch_failure(execution, error)
        else:
            if launch is None:
                self.release_devices(execution)
            return launch
        return None

    async def _launch(self, execution: Execution, launch: Launch) -> Attempt | None:
        """Launch the claimed job. None if nothing was launched; the execution is then complete."""
        try:
            if execution.stop_requested.done():
                raise LaunchCancelled("a stop was requested while the job was being claimed")
            return await self.runtime.launch(
                launch, lambda: not (execution.stop_requested.done() or self.is_closing())
            )
        except LaunchCancelled:
            self.release_devices(execution)
            await self.report_end(execution, launch, End())
        except NodeUnreachable as error:
            self.log.warning("Run %s waits again: %s", execution.job.name, error)
            self._pause_planning()
            await self.gateway.release(execution.job, str(error))
            await self._return_to_queue(execution)
        except Exception as error:  # whatever the error is, the run must not stay claimed forever
            await self._report_launch_failure(execution, error)
        return None

    def _pause_planning(self) -> None:
        self.paused_until = self.clock() + PAUSE_WHEN_UNREACHABLE_S

    async def _return_to_queue(self, execution: Execution) -> None:
        """End an execution whose job was not claimed. The job waits again, unless it was cancelled or its
        previous execution ended it. The devices of a job that waits again are released in the same step in
        which it returns to the queue; otherwise later jobs could take them first."""
        previous = execution.previous
        if previous and previous.task:
            self.release_devices(execution)
            await asyncio.wait([previous.task])
        if previous and previous.job_ended:
            return
        if execution.stop_intent == "cancel":
            self.release_devices(execution)
            await self.gateway.report_cancelled(execution.job)
            self.record_job_end(execution.job.id, "cancelled", "cancelled while it waited")
        else:
            execution.requeue_with = self.job_store.load_progress(execution.job.id)

    async def _report_launch_failure(self, execution: Execution, error: Exception) -> None:
        self.release_devices(execution)
        unexpected = None if isinstance(error, LaunchError) else error
        self.log.error("Run %s cannot be launched: %s", execution.job.name, error, exc_info=unexpected)
        if isinstance(error, Refused):
            await self.refuse(Refuse(execution.job, Reason("not_allowed", f"{error}.")))
            return
        await self.gateway.report_launch_failure(execution.job, str(error))
        self.record_job_end(execution.job.id, "crashed", str(error))

    async def refuse(self, refusal: Refuse) -> None:
        await self.gateway.refuse(refusal.job, refusal.reason)
        self.record_job_end(refusal.job.id, "refused", str(refusal.reason))

    # -- stop ---------------------------------------------------------------------------------

    def cancel(self, job_id: str) -> bool:
        """Stop the job for good, whether it waits or runs. Returns whether the job was known."""
        known = self.engine.is_waiting(job_id)
        self.engine.withdraw(job_id)
        self.wake()
        execution = self.executions.latest.get(job_id)
        while execution:
            self.stop(execution, "cancel")
            execution, known = execution.previous, True
        return known

    def stop(self, execution: Execution, intent: Intent) -> None:
        """Ask the job to stop, wherever its execution is."""
        if execution.request_stop(intent):
            self._send_stop(execution)

    def _send_stop(self, execution: Execution) -> None:
        """Pass a requested stop on to the attempt, if there is one. The reason is stored first, so that the
        next worker can complete the preemption."""
        attempt, intent = execution.attempt, execution.stop_intent
        if attempt is None or intent is None:
            return
        if execution.preemption:
            self.job_store.save_preemption(execution.job.id, attempt.launch.attempt, execution.preemption)
        task = asyncio.ensure_future(self.runtime.stop(attempt, intent))
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)

    # -- finish -------------------------------------------------------------------------------

    async def resume(self, execution: Execution, launch: Launch, alive: bool) -> None:
        """Take over an attempt that an earlier worker launched, or tried to launch."""
        if execution.attempt is None:
            await self.gateway.release(launch.job, "the worker was restarted before it launched the job")
            self.runtime.forget(launch)
        elif alive:
            await self._report_launch_and_finish(execution, launch)
        else:
            await self._finish(execution, execution.attempt)

    async def _report_launch_and_finish(self, execution: Execution, launch: Launch) -> None:
        """Report the launch while the attempt runs. Its end is reported after the launch, even if the attempt
        ends first."""
        assert execution.attempt is not None
        reporting = asyncio.ensure_future(self._report_launch(execution, execution.attempt))
        try:
            await self._finish(execution, execution.attempt, reporting)
        finally:
            reporting.cancel()

    async def _report_launch(self, execution: Execution, attempt: Attempt) -> None:
        if not await self.gateway.report_launch(attempt):
            self.log.info("Run %s was cancelled while it was launched.", execution.job.name)
            self.cancel(execution.job.id)

    async def _finish(
        self, execution: Execution, attempt: Attempt, launch_reported: Awaitable[None] | None = None
    ) -> None:
        """Wait for the attempt to end, release its devices, and then report its end."""
        end = await self.runtime.wait(attempt)
        if end.ended is None:
            end = replace(end, ended=self.clock())
        self.release_devices(execution)
        await asyncio.sleep(REPORT_DELAY_S)
        if launch_reported is not None:
            await launch_reported
        # If another worker holds the lease now, it has adopted the container and reports its end.
        while attempt.launch.container and not self.may_act():
            await asyncio.sleep(1.0)
        await self.report_end(execution, attempt.launch, end)

    def release_devices(self, execution: Execution) -> None:
        """Free the devices of an execution of which nothing runs any more."""
        if execution.holds_devices:
            self.engine.ended(execution.job.id)
            execution.holds_devices = False
        execution.mark_released()
        self.executions.preempting.discard(execution)
        self.wake()

    async def report_end(self, execution: Execution, launch: Launch, end: End) -> None:
        """Report the end, then record it, then forget the attempt. A worker that is killed in between leaves
        the attempt to the next worker, which repeats these steps."""
        job_id, preemption, ended = launch.job.id, execution.preemption, end.ended or self.clock()
        outcome, detail = await self.gateway.report_end(
            launch, end, execution.stop_intent, preemption.why if preemption else ""
        )
        requeued, progress = outcome == REQUEUED, self.job_store.load_progress(job_id)
        execution.job_ended = not requeued
        if execution.attempt:
            continues = requeued or outcome == "crashed"
            saved = await asyncio.to_thread(
                measure_saved_work, execution.attempt, ended, end.exit_code, continues
            )
            shown = preemption.kind if preemption and requeued else outcome
            self.record(*describe_end(execution.attempt, end, ended, shown, detail, preemption))
            if preemption or saved.has_reports:
                self.record(saved)
            if preemption and requeued:
                progress = compute_progress(execution.attempt, progress, saved, ended, preemption.kind)
        if outcome in FINAL_OUTCOMES:
            self.record_job_end(job_id, outcome, detail, ended)
        elif outcome == "lost":  # its run was deleted
            self.record_job_end(job_id, "cancelled", detail, ended)
        await asyncio.to_thread(self.flush)  # a forgotten attempt is never recorded again
        if requeued:
            self.job_store.save_progress(job_id, progress)
            self.engine.correct_progress(job_id, progress)  # in case it moves
            execution.requeue_with = progress
        self.runtime.forget(launch)

    def record_job_end(self, job_id: str, outcome: str, detail: str, ended: float | None = None) -> None:
        """Record that the job will not run any more."""
        self.record(JobEnded(job_id, self.clock() if ended is None else ended, outcome, detail))
        self.job_store.finish(job_id)
