"""Runs one execution: wait for devices, claim, launch, wait for the end, release the devices, report.

Every function here ends with the job in a defined state: launched and reported, waiting again, or ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gpu_flows.analytics.facts import JobEnded
from gpu_flows.common.retry import Backoff, retry
from gpu_flows.dispatch.attempt_facts import (
    compute_progress,
    describe_end,
    describe_start,
    measure_saved_work,
)
from gpu_flows.dispatch.execution import Execution
from gpu_flows.dispatch.execution_registry import Executions
from gpu_flows.dispatch.gateway import REQUEUED, SUSPENDED, Gateway, HeldBack, Unreachable
from gpu_flows.dispatch.job_store import JobStore
from gpu_flows.dispatch.lease import Lease
from gpu_flows.dispatch.memory_raises import Raise, apply_raise
from gpu_flows.dispatch.memory_watch import MemoryWatch, find_failure
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
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Reason, Refuse, Start

T = TypeVar("T")
FINAL_OUTCOMES = {"completed", "failed", "crashed", "cancelled"}
PAUSE_WHEN_UNREACHABLE_S = 2.0
AFTER_ERRORS = Backoff(first_s=5.0, factor=2.0, most_s=60.0)
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
    may_act: Callable[[], bool]  # whether this worker may act for the pool now
    lease: Lease
    is_closing: Callable[[], bool]
    memory: MemoryWatch
    paused_until: float = 0.0  # no planning before this time, because the server is unreachable
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
        except HeldBack as reason:
            self.log.info("Run %s waits again: %s", job.name, reason)
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

        def still_wanted() -> bool:
            return self.may_act() and not (execution.stop_requested.done() or self.is_closing())

        try:
            if not still_wanted():
                raise LaunchCancelled("the job was stopped, or the lease was lost, during the claim")
            return await self.runtime.launch(self._complete(launch), still_wanted)
        except LaunchCancelled:
            if not execution.stop_requested.done():
                await self._give_back(execution)
            else:
                self.release_devices(execution)
                await self.report_end(execution, launch, End())
        except NodeUnreachable as error:
            self.log.warning("Run %s waits again: %s", execution.job.name, error)
            self._rest_nodes(launch, str(error))
            await self.gateway.release(execution.job, str(error))
            await self._return_to_queue(execution)
        except Exception as error:  # whatever the error is, the run must not stay claimed forever
            if not self.may_act():  # the next leader has removed what was prepared for the launch
                await self._give_back(execution)
            else:
                await self._report_launch_failure(execution, error)
        return None

    def _complete(self, launch: Launch) -> Launch:
        """Add what is only known now: until when it must start, its share of devices that are shared, and
        whether it will wait for more memory."""
        share_mb = launch.job.memory_mb if self.engine.active_policy.shares_devices else 0
        launch = replace(launch, start_before=self.lease.ends_at(), memory_share_mb=share_mb)
        return replace(launch, waits_for_memory=self.memory.may_raise(launch))

    async def _give_back(self, execution: Execution) -> None:
        """Give up the claim on a job of which nothing was started, because this worker lost the lease. Other
        workers leave the claim to this one, which alone knows that."""
        self.log.warning("Run %s waits again: the lease was lost during its launch.", execution.job.name)
        await self.gateway.release(execution.job, "its worker lost the lease before the launch")
        await self._return_to_queue(execution)

    def _pause_planning(self) -> None:
        self.paused_until = self.clock() + PAUSE_WHEN_UNREACHABLE_S

    def _rest_nodes(self, launch: Launch, why: str) -> None:
        """Start nothing on the nodes of this launch for a while. Other nodes are not affected."""
        nodes = self.engine.cluster.nodes
        names = {device.node for device in launch.devices if device.node in nodes}
        resting = [name for name in names if nodes[name].up]
        for name in resting:
            self.engine.set_node(name, False, why)

        def end_rest() -> None:
            for name in resting:
                node = self.engine.cluster.nodes.get(name)
                if node and node.detail == why:  # else its host has reported since
                    self.engine.set_node(name, True)
            self.wake()

        asyncio.get_running_loop().call_later(PAUSE_WHEN_UNREACHABLE_S, end_rest)

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
        """Report the launch. The job runs on even if that is not possible, and its end is reported."""
        try:
            accepted = await self.gateway.report_launch(attempt)
        except Exception:
            self.log.exception("The launch of run %s cannot be reported.", execution.job.name)
            return
        if not accepted:
            self.log.info("Run %s was cancelled while it was launched.", execution.job.name)
            self.cancel(execution.job.id)

    async def _finish(
        self, execution: Execution, attempt: Attempt, launch_reported: Awaitable[None] | None = None
    ) -> None:
        """Wait for the attempt to end, release its devices, and then report its end."""
        end = await self._persist(lambda: self.runtime.wait(attempt), execution)
        if end.unstarted:
            if launch_reported is not None:
                await launch_reported  # else the run could become Running after it was returned to the queue
            if execution.stop_intent is None:
                return await self._relaunch(execution, attempt)
        if end.ended is None:
            end = replace(end, ended=self.clock())
        self.release_devices(execution)
        await asyncio.sleep(REPORT_DELAY_S)
        if launch_reported is not None:
            await launch_reported
        # If another worker holds the lease now, it has adopted the container and reports its end. When this
        # worker gets the next lease, `Dispatcher.drop_containers` ends this wait.
        while attempt.launch.container and not self.may_act():
            await asyncio.sleep(1.0)
        await self.report_end(execution, attempt.launch, end)

    async def _relaunch(self, execution: Execution, attempt: Attempt) -> None:
        """Return a job whose command was not started to the queue."""
        launch, now = attempt.launch, self.clock()
        why = "its launch took too long"
        self.log.warning("Run %s waits again: %s.", execution.job.name, why)
        self.record(*describe_end(attempt, End(), now, "unstarted", why, None))
        self._pause_planning()
        await self.gateway.release(execution.job, why)
        self.runtime.forget(launch)
        await self._return_to_queue(execution)

    async def _persist(self, call: Callable[[], Awaitable[T]], execution: Execution) -> T:
        """Repeat a call that fails for an unforeseen reason: the end of an attempt must never be missed."""

        def log_error(error: Exception) -> None:
            self.log.error("The end of run %s is delayed: %s", execution.job.name, error, exc_info=error)

        return await retry(call, AFTER_ERRORS, lambda _: True, log_error)

    def release_devices(self, execution: Execution) -> None:
        """Free the devices of an execution of which nothing runs any more."""
        if execution.holds_devices:
            self.engine.ended(execution.job.id)
            execution.holds_devices = False
        execution.mark_released(self.clock())
        self.executions.preempting.discard(execution)
        self.wake()

    async def report_end(self, execution: Execution, launch: Launch, end: End) -> None:
        """Report the end, then record it, then forget the attempt. A worker that is killed in between leaves
        the attempt to the next worker, which repeats these steps."""
        job_id, preemption, ended = launch.job.id, execution.preemption, end.ended or self.clock()
        if execution.attempt:
            # The clock of a Docker host may lag behind, and a container may end before its launch returns.
            ended = max(ended, execution.attempt.started)
        failure = None if execution.stop_intent else await asyncio.to_thread(find_failure, launch, end)
        decision = self.memory.raise_bound(launch, failure) if failure else ""
        raised, why = None, preemption.why if preemption else ""
        if isinstance(decision, Raise):
            raised, why = decision, decision.why
        elif decision:
            end = replace(end, detail=decision)
        outcome, detail = await self._persist(
            lambda: self.gateway.report_end(launch, end, execution.stop_intent, why, raised is not None),
            execution,
        )
        requeued, progress = outcome == REQUEUED, self.job_store.load_progress(job_id)
        continues = requeued or outcome == SUSPENDED
        execution.job_ended = not requeued
        if requeued or outcome in ("failed", "crashed"):
            self.memory.announce(launch, decision)
            if isinstance(decision, str) and decision not in detail:  # the process has reported itself
                detail = f"{detail} {decision}".strip()
        else:
            failure = None  # the run went on after it
        if execution.attempt:
            saved = await asyncio.to_thread(
                measure_saved_work,
                execution.attempt,
                ended,
                end.exit_code,
                continues or outcome == "crashed",
            )
            shown = outcome
            if requeued:
                shown = "out_of_memory" if raised else preemption.kind if preemption else outcome
            times = execution.released_at, self.clock()
            self.record(*describe_end(execution.attempt, end, ended, shown, detail, preemption, *times))
            if preemption or saved.has_reports:
                self.record(saved)
            ran_s = progress.ran_s + ended - execution.attempt.started
            if continues:
                kind = preemption.kind if preemption else "suspended"
                progress = compute_progress(execution.attempt, progress, saved, ended, kind)
            await self.memory.record_end(launch, shown, ran_s, failure)
        if outcome in FINAL_OUTCOMES:
            self.record_job_end(job_id, outcome, detail, ended)
        elif outcome == "lost":  # its run was deleted
            self.record_job_end(job_id, "cancelled", detail, ended)
        await asyncio.to_thread(self.flush)  # a forgotten attempt is never recorded again
        if continues:
            expected_s = execution.expected_s or self.job_store.load_expected(job_id)
            self.job_store.save_progress(job_id, progress, expected_s)
        if requeued:
            self.engine.correct_progress(job_id, progress)  # in case it moves
            execution.requeue_with = progress
            if raised:
                execution.job = apply_raise(execution.job, raised)
        self.runtime.forget(launch)

    def record_job_end(self, job_id: str, outcome: str, detail: str, ended: float | None = None) -> None:
        """Record that the job will not run any more."""
        self.record(JobEnded(job_id, self.clock() if ended is None else ended, outcome, detail))
        self.job_store.finish(job_id)
