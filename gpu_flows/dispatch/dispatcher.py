"""The live driver: the engine with a real clock, a runtime and the people who own the jobs.

It carries each start from claim to end in a task of its own, and lets the engine plan again the
moment anything changes: a job ended, a device came back, the policy was swapped. Jobs that a plan
stops are asked to save and to leave, and wait again. It knows nothing of Prefect; the `Gateway` is
where it claims jobs and reports what became of them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

from gpu_flows.analytics.facts import Decided, JobEnded, Swapped
from gpu_flows.dispatch.attempt_facts import end_facts, progress_of, saved_work, start_facts
from gpu_flows.dispatch.execution import Execution, awaited, room_for
from gpu_flows.dispatch.gateway import REQUEUED, Gateway, Unreachable
from gpu_flows.dispatch.job_store import JobStore
from gpu_flows.dispatch.preemption import leave
from gpu_flows.runtimes.base import (
    End,
    Found,
    Intent,
    Launch,
    LaunchError,
    NodeAway,
    NotWanted,
    Refused,
    Runtime,
)
from gpu_flows.schedulers.engine import Action, Engine, Refuse
from gpu_flows.schedulers.model import Job, Preempt, Progress, Reason, Running, Start
from gpu_flows.schedulers.policy import Policy

FINAL = {"completed", "failed", "crashed", "cancelled"}
PAUSE_WHEN_UNREACHABLE_S = 2.0
CLAIMS_FIRST_S = 0.15  # paperwork for what has ended waits until the server has seen to what comes next


class Dispatcher:
    def __init__(
        self,
        pool: str,
        engine: Engine,
        runtime: Runtime,
        gateway: Gateway,
        job_store: JobStore,
        record: Callable[..., None],
        log: logging.Logger,
        clock: Callable[[], float] = time.time,
        on_finished: Callable[[Job], None] = lambda job: None,
        flush: Callable[[], object] = lambda: None,
    ) -> None:
        self.pool, self.engine, self.runtime, self.gateway = pool, engine, runtime, gateway
        self.active = False  # whether this worker may act for the pool
        self._closing = False
        self._job_store = job_store
        self._record: Callable[..., None] = record
        self._flush = flush  # returns when what was recorded is on disk
        self._log, self._clock, self._on_put_down = log, clock, on_finished
        self._executions: dict[str, Execution] = {}  # job id -> its latest
        self._leaving: set[Execution] = set()  # who sits on devices that were promised to others
        self._stops: set[asyncio.Task[None]] = set()
        self._planning: asyncio.Handle | None = None
        self._alarm: asyncio.TimerHandle | None = None  # when the policy asked to be called at the latest
        self._paused_until = 0.0

    # -- what comes in ------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        if job.id not in self._executions:
            self.engine.submit(job, self._job_store.progress(job.id))
            self.wake()

    def withdraw(self, job_id: str) -> None:
        """A waiting job is gone; one that is being executed is not touched."""
        self.engine.withdraw(job_id)
        self.wake()

    def cancel(self, job_id: str) -> bool:
        """Stop the job, whatever stage it is in. Whether it was here at all."""
        waiting = self.engine.waits(job_id)
        self.withdraw(job_id)
        execution = self._executions.get(job_id)
        while execution:
            self._ask_to_stop(execution, "cancel")
            execution, waiting = execution.previous, True
        return waiting

    def swap(self, policy: Policy, options: dict[str, Any], before: str) -> None:
        self.engine.swap(policy)
        self.note_swap(before, policy.name, options)
        self.wake()

    def note_swap(self, before: str, after: str, options: dict[str, Any], error: str = "") -> None:
        self._record(Swapped(self._clock(), self.pool, before, after, json.dumps(options), error))

    def adopt(self, found: Found) -> None:
        """Take over what a worker before us launched, alive or not. One that it had asked to leave is
        asked still, and put back in line when it has left."""
        launch, attempt = found.launch, found.attempt
        job, before = launch.job, self._job_store.progress(launch.job.id)
        execution = Execution(job, launch.devices, holds=False, begun=True, attempt=attempt)
        execution.leave = self._job_store.preemption_of(job.id, launch.attempt)
        if attempt is not None:  # its worker may have died before it noted the start
            self._record(*start_facts(attempt))
        if attempt is not None and found.alive:
            execution.holds = self.engine.adopt(job, launch.devices, attempt.started, launch.attempt, before)
            if not execution.holds:
                self._log.warning("Run %s runs on devices that the cluster no longer offers.", job.name)
        if execution.leave:
            self._ask_to_stop(execution, "reschedule")
        report = attempt is not None and found.alive
        self._carry(
            execution,
            self._report_and_see_through(execution, launch)
            if report
            else self._see_through(execution, launch),
        )

    # -- what is asked ------------------------------------------------------------------------

    def has_execution(self, job_id: str) -> bool:
        """Whether the job is anywhere between plan and reported end."""
        return job_id in self._executions

    def executing(self) -> set[str]:
        return set(self._executions)

    def waits(self, job_id: str) -> bool:
        """Whether the job waits in line, or for others to leave its devices."""
        execution = self._executions.get(job_id)
        return bool(awaited(execution, self._leaving)) if execution else self.engine.waits(job_id)

    def reasons(self, limit: int | None = None) -> Iterator[tuple[Job, Reason]]:
        """Why each job waits: first those for whom room is being made, then the line."""
        for execution in list(self._executions.values()):
            reason = awaited(execution, self._leaving)
            if reason:
                yield execution.job, reason
        yield from self.engine.reasons(limit)

    def progress(self, job_id: str) -> Progress:
        """What the job has behind it, from the attempts before the present one."""
        return self._job_store.progress(job_id)

    def occupants(self) -> Iterator[tuple[Running, str]]:
        """Who is on devices, or about to be; and, of those who are leaving, what for."""
        for job_id, running in self.engine.running.items():
            execution = self._executions.get(job_id)
            if not (execution and awaited(execution, self._leaving)):
                yield running, execution.leave.why if execution and execution.leave else ""
        for execution in self._leaving:
            if execution.attempt and execution.leave:
                launch, since = execution.attempt.launch, execution.attempt.started
                yield (
                    Running(execution.job, execution.devices, since, launch.attempt, launch.policy),
                    execution.leave.why,
                )

    def job_running_as(self, identifier: str) -> str | None:
        for execution in (*self._executions.values(), *self._leaving):
            if execution.attempt and execution.attempt.identifier == identifier:
                return execution.job.id
        return None

    # -- planning -----------------------------------------------------------------------------

    def wake(self) -> None:
        """Plan as soon as the present callbacks are through, once however often called."""
        if self._planning is None and self.active:
            loop = asyncio.get_running_loop()
            delay = self._paused_until - self._clock()
            self._planning = loop.call_later(delay, self._plan) if delay > 0 else loop.call_soon(self._plan)

    def _plan(self) -> None:
        self._planning = None
        if self._alarm:
            self._alarm.cancel()
        if not self.active:
            return
        planned, error_before = self._clock(), self.engine.policy_error
        waiting, began = len(self.engine.waiting), time.perf_counter()
        actions = self.engine.tick(planned)
        took_us = (time.perf_counter() - began) * 1e6
        error = self.engine.policy_error if self.engine.policy_error != error_before else ""
        if error:
            self._log.error("Policy %r was put aside, FIFO serves: %s", self.engine.policy.name, error)
        starts = [action for action in actions if isinstance(action, Start)]
        if actions or error:
            policy = self.engine.policy.name if error else self.engine.serving.name
            running = len(self.engine.running) - len(starts)
            self._record(Decided(planned, self.pool, policy, waiting, running, len(starts), took_us, error))
        self._carry_out(actions, starts, planned)
        if self.engine.wake_at is not None:
            delay = max(0.0, self.engine.wake_at - self._clock())
            self._alarm = asyncio.get_running_loop().call_later(delay, self.wake)

    def _carry_out(self, actions: list[Action], starts: list[Start], planned: float) -> None:
        policy = self.engine.serving.name
        for action in actions:
            if isinstance(action, Refuse):
                self._carry(Execution(action.job, holds=False, begun=True), self._refuse(action))
            elif isinstance(action, Preempt):
                self._preempt(action, starts, policy, planned)
            else:
                execution = Execution(
                    action.job, action.devices, previous=self._executions.get(action.job.id)
                )
                self._carry(execution, self._start(execution, policy, planned))

    def _preempt(self, stop: Preempt, starts: list[Start], policy: str, planned: float) -> None:
        """Ask the job to leave. Its devices are others' already, who wait until it is gone; and until
        it has been put back it is not in the line, lest it be started twice."""
        job = stop.running.job
        execution = self._executions.get(job.id)
        if execution is None:
            return  # nothing of it is here: it is in line, and that is all
        execution.holds = False
        self._leaving.add(execution)
        self.engine.withdraw(job.id)  # if the plan does not start it again
        if execution.intent is None:
            execution.leave = leave(stop.running, starts, policy, planned)
            self._log.info("Run %s is asked to leave. %s", job.name, execution.leave.why)
        self._ask_to_stop(execution, "reschedule")

    # -- one job, from plan to end ------------------------------------------------------------

    async def _start(self, execution: Execution, policy: str, planned: float) -> None:
        job = execution.job
        begins = await room_for(execution, self._leaving)
        execution.begun = True
        if not begins or not self.active:
            return await self._give_up(execution)
        execution.previous = None
        try:
            launch = await self.gateway.claim(Start(job, execution.devices), policy, planned)
        except Unreachable as error:
            self._log.warning("Cannot claim run %s now: %s", job.name, error)
            self._paused_until = self._clock() + PAUSE_WHEN_UNREACHABLE_S
            return await self._give_up(execution)
        except LaunchError as error:
            return await self._not_launched(execution, error)
        if launch is None:
            return self._let_go(execution)
        try:
            if execution.interrupted.done():
                raise NotWanted("it was asked to stop while it was being claimed")
            execution.attempt = await self.runtime.launch(
                launch, lambda: not (execution.interrupted.done() or self._closing)
            )
        except NotWanted:  # before anything of it ran
            self._let_go(execution)
            return await self._close(execution, launch, End())
        except NodeAway as error:
            self._log.warning("Run %s waits again: %s", job.name, error)
            self._paused_until = self._clock() + PAUSE_WHEN_UNREACHABLE_S
            await self.gateway.never_launched(job, str(error))
            return await self._give_up(execution)
        except Exception as error:  # whatever it is, the run must not stay claimed for ever
            return await self._not_launched(execution, error)
        if execution.holds:
            self.engine.started(job.id, execution.attempt.started, launch.attempt)
        self._record(*start_facts(execution.attempt))
        self._stop_if_asked(execution)  # while it was being launched
        await self._report_and_see_through(execution, launch)

    async def _give_up(self, execution: Execution) -> None:
        """The job was not even claimed. It waits on, unless it was cancelled, or ended instead of moving.
        One that waits on lets go of its devices and is in line in the same moment, lest others pass it."""
        previous = execution.previous
        if previous and previous.task:
            self._let_go(execution)
            await asyncio.wait([previous.task])
        if previous and previous.over:
            return
        if execution.intent == "cancel":
            self._let_go(execution)
            await self.gateway.cancelled(execution.job)
            self.note_end(execution.job.id, "cancelled", "cancelled while it waited")
        else:
            execution.returns = self._job_store.progress(execution.job.id)

    async def _not_launched(self, execution: Execution, error: Exception) -> None:
        self._let_go(execution)
        unforeseen = None if isinstance(error, LaunchError) else error
        self._log.error("Run %s cannot be launched: %s", execution.job.name, error, exc_info=unforeseen)
        if isinstance(error, Refused):
            await self._refuse(Refuse(execution.job, Reason("not_allowed", f"{error}.")))
            return
        await self.gateway.failed_to_launch(execution.job, str(error))
        self.note_end(execution.job.id, "crashed", str(error))

    async def _report_and_see_through(self, execution: Execution, launch: Launch) -> None:
        """The launch is reported while it already runs; its end only after that, whoever is quicker."""
        reporting = asyncio.ensure_future(self._report(execution))
        try:
            await self._see_through(execution, launch, reporting)
        finally:
            reporting.cancel()

    async def _report(self, execution: Execution) -> None:
        if execution.attempt and not await self.gateway.launched(execution.attempt):
            self._log.info("Run %s was cancelled just as it was launched.", execution.job.name)
            self.cancel(execution.job.id)

    async def _see_through(
        self, execution: Execution, launch: Launch, reported: Awaitable[None] | None = None
    ) -> None:
        """Wait for the attempt to end, free its devices, and only then do the paperwork."""
        if execution.attempt is None:
            await self.gateway.never_launched(launch.job, "the worker was restarted before it launched it")
            self.runtime.forget(launch)
            return
        end = await self.runtime.wait(execution.attempt)
        if end.ended is None:
            end = replace(end, ended=self._clock())
        self._let_go(execution)
        await asyncio.sleep(CLAIMS_FIRST_S)
        if reported is not None:
            await reported
        # Another worker may lead meanwhile and have adopted the container: the end is its to report.
        while launch.container and not self.active:
            await asyncio.sleep(1.0)
        await self._close(execution, launch, end)

    def _let_go(self, execution: Execution) -> None:
        """Nothing of the execution is on its devices any more."""
        if execution.holds:
            self.engine.ended(execution.job.id)
            execution.holds = False
        execution.set_gone()
        self._leaving.discard(execution)
        self.wake()

    async def _close(self, execution: Execution, launch: Launch, end: End) -> None:
        """Report the end, and write down what it came to; in this order, for whoever has to do it again."""
        job_id, asked, ended = launch.job.id, execution.leave, end.ended or self._clock()
        outcome, detail = await self.gateway.ended(launch, end, execution.intent, asked.why if asked else "")
        back, progress = outcome == REQUEUED, self._job_store.progress(job_id)
        execution.over = not back
        if execution.attempt:
            goes_on = back or outcome == "crashed"
            saved = await asyncio.to_thread(saved_work, execution.attempt, ended, end.exit_code, goes_on)
            called = asked.kind if asked and back else outcome
            self._record(*end_facts(execution.attempt, end, ended, called, detail, asked))
            if asked or saved.has_reports:
                self._record(saved)
            if asked and back:
                progress = progress_of(execution.attempt, progress, saved, ended, asked.kind)
        if outcome in FINAL:
            self.note_end(job_id, outcome, detail, ended)
        elif outcome == "lost":  # its run was deleted
            self.note_end(job_id, "cancelled", detail, ended)
        await asyncio.to_thread(self._flush)  # once forgotten, nobody would record it again
        if back:
            self._job_store.keep_progress(job_id, progress)
            self.engine.left(job_id, progress)  # if it moves
            execution.returns = progress
        self.runtime.forget(launch)

    def note_end(self, job_id: str, outcome: str, detail: str, ended: float | None = None) -> None:
        """The job will not run any more."""
        self._record(JobEnded(job_id, self._clock() if ended is None else ended, outcome, detail))
        self._job_store.ended(job_id)

    def _ask_to_stop(self, execution: Execution, intent: Intent) -> None:
        if execution.ask(intent):
            self._stop_if_asked(execution)

    def _stop_if_asked(self, execution: Execution) -> None:
        """Pass it on to the process, if there is one. What for is written down first."""
        if execution.attempt is None or execution.intent is None:
            return
        if execution.leave:
            self._job_store.save_preemption(
                execution.job.id, execution.attempt.launch.attempt, execution.leave
            )
        task = asyncio.ensure_future(self.runtime.stop(execution.attempt, execution.intent))
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)

    async def _refuse(self, refusal: Refuse) -> None:
        await self.gateway.refuse(refusal.job, refusal.reason)
        self.note_end(refusal.job.id, "refused", str(refusal.reason))

    def _carry(self, execution: Execution, work: Coroutine[Any, Any, None]) -> None:
        execution.task = asyncio.ensure_future(work)
        self._executions[execution.job.id] = execution
        execution.task.add_done_callback(lambda done: self._on_finished(execution, done))

    def _on_finished(self, execution: Execution, task: asyncio.Task[None]) -> None:
        """The execution is over. Unless the job has another one, it waits again or is not ours any more."""
        if self._closing:
            return
        job = execution.job
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error:
            self._log.error("Run %s was lost sight of", job.name, exc_info=error)
            execution.over = True
        self._let_go(execution)
        if self._executions.get(job.id) is execution:
            del self._executions[job.id]
            if execution.returns is not None:
                self.engine.submit(job, execution.returns)
            self._on_put_down(job)
            self.wake()

    async def close(self) -> None:
        """Stop acting. What runs goes on running; the next worker adopts it."""
        self.active, self._closing = False, True
        for handle in (self._planning, self._alarm):
            if handle:
                handle.cancel()
        tasks = [
            execution.task for execution in {*self._executions.values(), *self._leaving} if execution.task
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
