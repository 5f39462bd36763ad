"""The live driver: the engine with a real clock, a runtime and the people who own the jobs.

It carries each start from claim to end in a task of its own, and lets the engine plan again the
moment anything changes: a job ended, a device came back, the policy was swapped. It knows
nothing of Prefect; the `Desk` is where it claims jobs and reports what became of them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Protocol

from gpu_flows.analytics.facts import (
    Allocated,
    AttemptEnded,
    AttemptStarted,
    Decided,
    Fact,
    JobEnded,
    Swapped,
)
from gpu_flows.runtimes.base import (
    Attempt,
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
from gpu_flows.schedulers.engine import Engine, Refuse
from gpu_flows.schedulers.model import Job, Reason, Start
from gpu_flows.schedulers.policy import Policy

FINAL = {"completed", "failed", "crashed", "cancelled"}
PAUSE_WHEN_UNREACHABLE_S = 2.0
CLAIMS_FIRST_S = 0.15  # paperwork for what has ended waits until the server has seen to what comes next


class Unreachable(Exception):
    """The desk cannot be asked now. Nothing was decided; try again."""


class Desk(Protocol):
    """Where jobs come from and are reported to."""

    async def claim(self, start: Start, policy: str, planned: float) -> Launch | None:
        """Make the job ours and say how to launch it. None if it is somebody else's or gone.
        Raises Unreachable, or LaunchError for a job that cannot be launched."""
        ...

    async def launched(self, attempt: Attempt) -> bool:
        """Report the launch. False if the job should not have been launched after all."""
        ...

    async def ended(self, launch: Launch, end: End, intent: Intent | None) -> tuple[str, str]:
        """Report the end; keeps trying until it is reported. The outcome, and a word on it."""
        ...

    async def never_launched(self, job: Job, why: str) -> None:
        """The claimed job was not launched, by no fault of its own: it waits again."""
        ...

    async def failed_to_launch(self, job: Job, why: str) -> None: ...

    async def refuse(self, job: Job, reason: Reason) -> None: ...


class Dispatcher:
    def __init__(
        self,
        pool: str,
        engine: Engine,
        runtime: Runtime,
        desk: Desk,
        record: Callable[..., None],
        log: logging.Logger,
        clock: Callable[[], float] = time.time,
        on_put_down: Callable[[str], None] = lambda job_id: None,
        flush: Callable[[], object] = lambda: None,
    ) -> None:
        self.pool, self.engine, self.runtime, self.desk = pool, engine, runtime, desk
        self.active = False  # whether this worker may act for the pool
        self._record: Callable[..., None] = record
        self._flush = flush  # returns when what was recorded is on disk
        self._log, self._clock, self._on_put_down = log, clock, on_put_down
        self._tasks: dict[str, asyncio.Task[None]] = {}  # job id -> what carries it
        self._attempts: dict[str, Attempt] = {}
        self._intents: dict[str, Intent] = {}
        self._stops: set[asyncio.Task[None]] = set()
        self._planning: asyncio.Handle | None = None
        self._alarm: asyncio.TimerHandle | None = None  # when the policy asked to be called at the latest
        self._paused_until = 0.0

    # -- what comes in ------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        if job.id not in self._tasks:
            self.engine.submit(job)
            self.wake()

    def withdraw(self, job_id: str) -> None:
        """A waiting job is gone; one that is being carried is not touched."""
        self.engine.withdraw(job_id)
        self.wake()

    def cancel(self, job_id: str) -> bool:
        """Stop the job, whatever stage it is in. Whether it was here at all."""
        waiting = self.engine.waits(job_id)
        self.withdraw(job_id)
        if job_id not in self._tasks:
            return waiting
        if job_id not in self._intents:
            self._intents[job_id] = "cancel"
            if job_id in self._attempts:
                self._stop(self._attempts[job_id], "cancel")
        return True

    def carries(self, job_id: str) -> bool:
        """Whether the job is anywhere between claim and reported end."""
        return job_id in self._tasks

    def carried(self) -> set[str]:
        return set(self._tasks)

    def job_running_as(self, identifier: str) -> str | None:
        running = (job_id for job_id, it in self._attempts.items() if it.identifier == identifier)
        return next(running, None)

    def swap(self, policy: Policy, options: dict[str, Any], before: str) -> None:
        self.engine.swap(policy)
        self.note_swap(before, policy.name, options)
        self.wake()

    def note_swap(self, before: str, after: str, options: dict[str, Any], error: str = "") -> None:
        self._record(Swapped(self._clock(), self.pool, before, after, json.dumps(options), error))

    def adopt(self, found: Found) -> None:
        """Take over what a worker before us launched, alive or not."""
        job, attempt = found.launch.job, found.attempt
        if attempt is not None:  # its worker may have died before it noted the start
            self._record(*_start_facts(attempt))
        if attempt is not None and found.alive:
            launch = found.launch
            if not self.engine.adopt(job, launch.devices, attempt.started, launch.attempt):
                self._log.warning("Run %s runs on devices that the cluster no longer offers.", job.name)
            self._attempts[job.id] = attempt
            self._carry(job.id, self._report_and_see_through(attempt))
        else:
            self._carry(job.id, self._see_through(found.launch, attempt))

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
        for action in actions:
            if isinstance(action, Refuse):
                self._carry(action.job.id, self._refuse(action))
            elif isinstance(action, Start):  # this engine was made without preemption
                self._carry(action.job.id, self._start(action, self.engine.serving.name, planned))
        if self.engine.wake_at is not None:
            delay = max(0.0, self.engine.wake_at - self._clock())
            self._alarm = asyncio.get_running_loop().call_later(delay, self.wake)

    # -- one job, from claim to end -----------------------------------------------------------

    async def _start(self, start: Start, policy: str, planned: float) -> None:
        job = start.job
        try:
            launch = await self.desk.claim(start, policy, planned)
            if launch is None:
                self.engine.ended(job.id)
                return
        except LaunchError as error:
            await self._not_launched(job, error)
            return
        except Unreachable as error:
            self._log.warning("Cannot claim run %s now: %s", job.name, error)
            self._paused_until = self._clock() + PAUSE_WHEN_UNREACHABLE_S
            self.engine.requeue(job.id)
            return
        try:
            if job.id in self._intents:
                raise NotWanted("it was cancelled while it was being claimed")
            attempt = await self.runtime.launch(launch, lambda: job.id not in self._intents)
        except NotWanted:  # cancelled before anything of it ran
            self.engine.ended(job.id)
            await self._close(launch, End(), launched=False)
            return
        except NodeAway as error:
            self._log.warning("Run %s waits again: %s", job.name, error)
            self._paused_until = self._clock() + PAUSE_WHEN_UNREACHABLE_S
            await self.desk.never_launched(job, str(error))
            self.engine.requeue(job.id)
            return
        except Exception as error:  # whatever it is, the run must not stay claimed for ever
            await self._not_launched(job, error)
            return
        self._attempts[job.id] = attempt
        self.engine.started(job.id, attempt.started, launch.attempt)
        self._record(*_start_facts(attempt))
        if job.id in self._intents:  # cancelled while it was being launched
            self._stop(attempt, self._intents[job.id])
        await self._report_and_see_through(attempt)

    async def _not_launched(self, job: Job, error: Exception) -> None:
        self.engine.ended(job.id)
        unforeseen = None if isinstance(error, LaunchError) else error
        self._log.error("Run %s cannot be launched: %s", job.name, error, exc_info=unforeseen)
        if isinstance(error, Refused):
            await self._refuse(Refuse(job, Reason("not_allowed", f"{error}.")))
            return
        await self.desk.failed_to_launch(job, str(error))
        self._record(JobEnded(job.id, self._clock(), "crashed", str(error)))

    async def _report_and_see_through(self, attempt: Attempt) -> None:
        """The launch is reported while it already runs; its end only after that, whoever is quicker."""
        reporting = asyncio.ensure_future(self._report(attempt))
        try:
            await self._see_through(attempt.launch, attempt, reporting)
        finally:
            reporting.cancel()

    async def _report(self, attempt: Attempt) -> None:
        if not await self.desk.launched(attempt):
            self._log.info("Run %s was cancelled just as it was launched.", attempt.launch.job.name)
            self.cancel(attempt.launch.job.id)

    async def _see_through(
        self, launch: Launch, attempt: Attempt | None, reported: Awaitable[None] | None = None
    ) -> None:
        """Wait for the attempt to end, free its devices, and only then do the paperwork."""
        if attempt is None:
            await self.desk.never_launched(launch.job, "the worker was restarted before it launched it")
            self.runtime.forget(launch)
            return
        end = await self.runtime.wait(attempt)
        self.engine.ended(launch.job.id)
        self.wake()
        if end.ended is None:
            end = replace(end, ended=self._clock())
        await asyncio.sleep(CLAIMS_FIRST_S)
        if reported is not None:
            await reported
        await self._close(launch, end)

    async def _close(self, launch: Launch, end: End, launched: bool = True) -> None:
        job_id, ended = launch.job.id, end.ended or self._clock()
        outcome, detail = await self.desk.ended(launch, end, self._intents.get(job_id))
        if launched:
            self._record(
                AttemptEnded(
                    job_id,
                    launch.attempt,
                    ended,
                    outcome,
                    end.exit_code,
                    detail,
                    end.oom_killed,
                    end.peak_memory_mb,
                )
            )
        if outcome in FINAL:
            self._record(JobEnded(job_id, ended, outcome, detail))
        await asyncio.to_thread(self._flush)  # once forgotten, nobody would record it again
        self.runtime.forget(launch)

    def _stop(self, attempt: Attempt, intent: Intent) -> None:
        task = asyncio.ensure_future(self.runtime.stop(attempt, intent))
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)

    async def _refuse(self, refusal: Refuse) -> None:
        await self.desk.refuse(refusal.job, refusal.reason)
        self._record(JobEnded(refusal.job.id, self._clock(), "refused", str(refusal.reason)))

    def _carry(self, job_id: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks[job_id] = task
        task.add_done_callback(lambda done: self._put_down(job_id, done))

    def _put_down(self, job_id: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(job_id, None)
        self._attempts.pop(job_id, None)
        self._intents.pop(job_id, None)
        if not task.cancelled() and task.exception():
            self._log.error("Run %s was lost sight of", job_id, exc_info=task.exception())
            self.engine.ended(job_id)
        if not task.cancelled():
            self._on_put_down(job_id)
            self.wake()

    async def close(self) -> None:
        """Stop acting. What runs goes on running; the next worker adopts it."""
        self.active = False
        for handle in (self._planning, self._alarm):
            if handle:
                handle.cancel()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _start_facts(attempt: Attempt) -> list[Fact]:
    launch = attempt.launch
    job_id, number = launch.job.id, launch.attempt
    nodes = json.dumps(list(dict.fromkeys(device.node for device in launch.devices)))
    return [
        AttemptStarted(job_id, number, launch.policy, launch.runtime, nodes, launch.planned, attempt.started),
        *(
            Allocated(
                job_id,
                number,
                device.id,
                device.node,
                launch.job.memory_mb or device.memory_mb,
                attempt.started,
            )
            for device in launch.devices
        ),
    ]
