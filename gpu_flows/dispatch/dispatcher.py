"""The live driver of the engine: plans with a real clock and starts, preempts and finishes real jobs.

Each planned start runs in a task of its own, from the claim to the reported end. The engine plans again as
soon as something changes: a job ended, a device came back, the policy was swapped. The dispatcher knows
nothing of Prefect; it claims jobs and reports their ends through a `Gateway`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from gpu_flows.analytics.facts import Decided, Offered, Swapped
from gpu_flows.dispatch.attempt_facts import EndedAttempt, describe_start
from gpu_flows.dispatch.execution import Execution
from gpu_flows.dispatch.execution_registry import Executions
from gpu_flows.dispatch.execution_runner import ExecutionRunner
from gpu_flows.dispatch.gateway import Gateway
from gpu_flows.dispatch.job_store import JobStore
from gpu_flows.dispatch.lease import Lease, Unlimited
from gpu_flows.dispatch.memory_watch import MemoryWatch
from gpu_flows.dispatch.planning_mark import PlanningMark
from gpu_flows.dispatch.policy_process import RemotePolicy, open_policy
from gpu_flows.dispatch.preemption import describe_preemption, describe_suspension
from gpu_flows.dispatch.spectator import Spectator
from gpu_flows.runtimes.base import Attempt, Found, Launch, Runtime
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Action, Job, Preempt, Progress, Reason, Refuse, Running, Start
from gpu_flows.schedulers.policy import Policy, PolicyError

DECIDES_AGAIN = "It decides again."  # recorded of a policy that another one had replaced for a while


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
        on_adopted: Callable[[Job], None] = lambda job: None,
        flush: Callable[[], object] = lambda: None,
        lease: Lease | None = None,
        take_peaks: Callable[[Launch], dict[str, float]] = lambda launch: {},
        on_attempt_end: Callable[[EndedAttempt], None] = lambda ended: None,
        spectator: Spectator | None = None,
    ) -> None:
        self.pool, self.engine, self.runtime = pool, engine, runtime
        self.changed = asyncio.Event()  # set after every plan: jobs were started or devices released
        self._lease, self.spectator = lease or Unlimited(), spectator or Spectator()
        self._is_ready = False  # the attempts of earlier workers are known
        self._closing = False
        self._on_adopted = on_adopted
        self._job_store, self._log, self._clock, self._on_finished = job_store, log, clock, on_finished
        self._record: Callable[..., None] = record
        self._executions = Executions()
        self._runner = ExecutionRunner(
            engine,
            runtime,
            gateway,
            job_store,
            self._executions,
            log,
            record,
            flush,
            clock,
            wake=self.wake,
            may_act=lambda: self.active,
            lease=self._lease,
            is_closing=lambda: self._closing,
            memory=MemoryWatch(engine.cluster, gateway, job_store, log, record, take_peaks, on_attempt_end),
        )
        self._mark = PlanningMark(job_store.pool_folder / "planning")
        self._planning: asyncio.Handle | None = None
        self._told_remark = ""  # the last remark of the policy that was logged and recorded
        self._alarm: asyncio.TimerHandle | None = None  # set for the time at which the policy must plan again

    @property
    def active(self) -> bool:
        """Whether this worker may act for the pool now."""
        return self._is_ready and self._lease.is_valid()

    @active.setter
    def active(self, is_ready: bool) -> None:
        self._is_ready = is_ready

    # -- jobs and policies --------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        if not self.is_executing(job.id):
            expected_s = self._job_store.load_expected(job.id)
            if expected_s is not None:  # an earlier attempt has told it
                job = job.expecting(expected_s)
            self.engine.submit(job, self._job_store.load_progress(job.id))
            self.wake()

    def expect(self, job_id: str, remaining_s: float) -> None:
        """Set how long a running job will still take. The expectation stays with it if it is preempted."""
        execution = self._executions.latest.get(job_id)
        if execution and execution.holds_devices and execution.attempt:
            self.engine.expect(job_id, self._clock(), remaining_s)
            execution.job = self.engine.running[job_id].job
            execution.expected_s = execution.job.expected_s
            self.wake()

    def withdraw(self, job_id: str) -> None:
        """Remove a waiting job from the queue. Its execution, if it has one, continues."""
        self.engine.withdraw(job_id)
        self.wake()

    def cancel(self, job_id: str) -> bool:
        """Stop the job for good, whether it waits or runs. Returns whether the job was known."""
        return self._runner.cancel(job_id)

    def suspend(self, job_id: str) -> None:
        """Let a running job save, stop and free its devices. It is not queued again until it is resumed."""
        execution = self._executions.latest.get(job_id)
        while execution:
            if execution.stop_intent is None:
                execution.preemption = describe_suspension(self.engine.active_policy.name, self._clock())
                self._log.info("Run %s is suspended: it is asked to save and stop.", execution.job.name)
            self._runner.stop(execution, "reschedule")
            execution = execution.previous

    def record_job_end(self, job_id: str, outcome: str, detail: str) -> None:
        """Record that a job which has no execution will not run any more."""
        self._runner.record_job_end(job_id, outcome, detail)

    async def open_policy(self, name: str, options: dict[str, Any], is_new_choice: bool) -> Policy:
        """Return the policy of that name. Raises PolicyError, also for a policy during whose plans workers
        died, unless it was chosen anew since."""
        self._mark.open()
        if is_new_choice:
            self._mark.watch("", again=True)
        elif self._mark.is_put_aside(name):
            raise PolicyError(
                f"Policy {name!r} is put aside: the worker died twice without a word while it planned. "
                "Save the GPU Scheduler block again to try it again."
            )
        return await open_policy(name, options, self.plan_again)

    def swap(self, policy: Policy, options: dict[str, Any], before: str) -> None:
        replaced = self.engine.policy
        self._mark.watch("" if isinstance(policy, RemotePolicy) else policy.name)
        self.engine.swap(policy)
        self._told_remark = ""
        replaced.close()
        self.record_swap(before, policy.name, options)
        self.wake()

    def record_swap(self, before: str, after: str, options: dict[str, Any], error: str = "") -> None:
        self._record(Swapped(self._clock(), self.pool, before, after, json.dumps(options), error))

    def adopt_latest(self, attempts: list[Found]) -> None:
        """Adopt the attempts that an earlier worker launched. Of several attempts of a job, only the last
        counts. Runs that were claimed and never launched are released by the next poll."""
        adopted: set[str] = set()
        for found in sorted(attempts, key=lambda found: found.launch.attempt, reverse=True):
            job_id = found.launch.job.id
            if not self.is_executing(job_id):
                self.adopt(found)
                adopted.add(job_id)
            elif job_id in adopted and found.launch.container:
                self.runtime.forget(found.launch)  # another worker has reported its end

    def adopt(self, found: Found) -> None:
        """Take over an attempt that an earlier worker launched, alive or not. If that worker was preempting
        it, the preemption is completed."""
        launch, attempt = found.launch, found.attempt
        self._on_adopted(launch.job)
        job, before = launch.job, self._job_store.load_progress(launch.job.id)
        execution = Execution(job, launch.devices, holds_devices=False, done_waiting=True, attempt=attempt)
        execution.preemption = self._job_store.load_preemption(job.id, launch.attempt)
        if attempt is not None:
            self._record(*describe_start(attempt))  # the earlier worker may have died before it recorded it
        if attempt is not None and found.alive:
            execution.holds_devices = self.engine.adopt(
                job, launch.devices, attempt.started, launch.attempt, before
            )
            if not execution.holds_devices:
                self._log.warning("Run %s runs on devices that the cluster no longer offers.", job.name)
        if execution.preemption:
            self._runner.stop(execution, "reschedule")
        self._begin(execution, self._runner.resume(execution, launch, found.alive))

    async def drop_containers(self) -> None:
        """Give up the executions of all containers, without a report. To be called with a new lease: another
        worker may have reported the end of an attempt since, and launched the next one."""
        dropped = [one for one in self._executions if one.attempt and one.attempt.launch.container]
        for execution in dropped:
            execution.job_ended = True  # nothing follows from it here
            self._runner.release_devices(execution)
            if self._executions.latest.get(execution.job.id) is execution:
                del self._executions.latest[execution.job.id]
            if execution.task:
                execution.task.cancel()
        await asyncio.gather(*(one.task for one in dropped if one.task), return_exceptions=True)

    # -- state --------------------------------------------------------------------------------

    def is_executing(self, job_id: str) -> bool:
        """Whether the job is anywhere between plan and reported end."""
        return job_id in self._executions.latest

    def find_executing(self, job_id: str) -> Job | None:
        """The job if it has an execution."""
        execution = self._executions.latest.get(job_id)
        return execution.job if execution else None

    def executing(self) -> set[str]:
        """The ids of all jobs between plan and reported end."""
        return set(self._executions.latest)

    def running_processes(self) -> list[str]:
        """The ids of the jobs that run as processes of this machine."""
        return [
            execution.job.id
            for execution in self._executions.latest.values()
            if execution.attempt and execution.attempt.launch.container is None
        ]

    def running_attempts(self) -> list[Attempt]:
        """The attempts that hold their devices and were not asked to stop."""
        return [
            execution.attempt
            for execution in self._executions.latest.values()
            if execution.attempt and execution.holds_devices and execution.stop_intent is None
        ]

    def waits(self, job_id: str) -> bool:
        """Whether the job is in the queue, or waits until its devices are released."""
        execution = self._executions.latest.get(job_id)
        return (
            bool(self._executions.waiting_reason(execution)) if execution else self.engine.is_waiting(job_id)
        )

    def reasons(self, limit: int | None = None) -> Iterator[tuple[Job, Reason]]:
        """Why each job waits: first the jobs whose devices are being released, then the queue."""
        yield from self._executions.reasons()
        yield from self.engine.reasons(limit, self._clock())

    def progress(self, job_id: str) -> Progress:
        """The job's progress in its earlier attempts."""
        return self._job_store.load_progress(job_id)

    def occupants(self) -> Iterator[tuple[Running, str]]:
        """The jobs on devices, each with the reason for its preemption if it is being preempted."""
        return self._executions.occupants(self.engine.running)

    def find_job(self, identifier: str) -> str | None:
        """The id of the job whose attempt has this infrastructure identifier."""
        return self._executions.find_job(identifier)

    # -- plan ---------------------------------------------------------------------------------

    def plan_again(self) -> None:
        """Plan soon, even if nothing has changed."""
        self.engine.plan_again()
        self.wake()

    def wake(self) -> None:
        """Plan once the current callbacks have run. Several calls before that lead to one plan."""
        if self._planning is None and self.active:
            loop = asyncio.get_running_loop()
            delay = self._runner.paused_until - self._clock()
            self._planning = loop.call_later(delay, self._plan) if delay > 0 else loop.call_soon(self._plan)

    def _plan(self) -> None:
        self._planning = None
        if self._alarm:
            self._alarm.cancel()
        if not self.active:
            return
        planned, error_before = self._clock(), self.engine.policy_error
        self._show(lambda spectator: spectator.before_plan(planned))
        waiting, began = self.engine.waiting_count, time.perf_counter()
        with self._mark:
            actions = self.engine.tick(planned)
        took_us = (time.perf_counter() - began) * 1e6
        error = self.engine.policy_error if self.engine.policy_error != error_before else ""
        if error:
            self._log.error("Policy %r failed; FIFO replaces it: %s", self.engine.policy.name, error)
        remark = self.engine.policy.remark
        if remark != self._told_remark and not self.engine.policy_error:
            self._told_remark = remark
            error = remark or DECIDES_AGAIN  # so that the history tells who decided
            self._log.warning("Policy %r: %s", self.engine.policy.name, error)
        starts = [action for action in actions if isinstance(action, Start)]
        if actions or error:
            policy = self.engine.policy.name if error else self.engine.active_policy.name
            running = len(self.engine.running) - len(starts)
            self._record(Decided(planned, self.pool, policy, waiting, running, len(starts), took_us, error))
        for offer in self.engine.offers:
            policy = self.engine.active_policy.name
            self._record(Offered.of(offer, offer.job.id, self.pool, policy, planned))
        self._carry_out(actions, starts, planned)
        decided_by = self.engine.active_policy.name
        self._show(lambda spectator: spectator.after_plan(decided_by, actions, planned, took_us))
        self.changed.set()
        if self.engine.wake_at is not None:
            delay = max(0.0, self.engine.wake_at - self._clock())
            self._alarm = asyncio.get_running_loop().call_later(delay, self.wake)

    def _show(self, see: Callable[[Spectator], None]) -> None:
        """Let the spectator see something. If it fails, the pool goes on."""
        try:
            see(self.spectator)
        except Exception:
            self._log.exception("What looks at the plans of pool %r failed.", self.pool)
            self.spectator.start_again()

    def _carry_out(self, actions: list[Action], starts: list[Start], planned: float) -> None:
        policy = self.engine.active_policy.name
        for action in actions:
            if isinstance(action, Refuse):
                execution = Execution(action.job, holds_devices=False, done_waiting=True)
                self._begin(execution, self._runner.refuse(action))
            elif isinstance(action, Preempt):
                self._preempt(action, starts, policy, planned)
            else:
                previous = self._executions.latest.get(action.job.id)
                execution = Execution(action.job, action.devices, previous)
                self._begin(execution, self._runner.start(execution, policy, planned))

    def _preempt(self, stop: Preempt, starts: list[Start], policy: str, planned: float) -> None:
        """Ask the job to stop. The plan has already given its devices to other jobs, which wait until it
        releases them. The job returns to the queue when its end is reported, so that it is never started
        twice."""
        job = stop.running.job
        execution = self._executions.latest.get(job.id)
        if execution is None:
            return  # nothing of it runs; the engine has already returned it to the queue
        execution.holds_devices = False
        self._executions.preempting.add(execution)
        self.engine.withdraw(job.id)  # if the plan does not start it again
        if execution.stop_intent is None:
            execution.preemption = describe_preemption(stop.running, starts, policy, planned)
            self._log.info("Run %s is asked to stop. %s", job.name, execution.preemption.why)
            self._runner.gateway.tell(job, f"Asked to save and stop. {execution.preemption.why}")
        self._runner.stop(execution, "reschedule")

    # -- executions ---------------------------------------------------------------------------

    def _begin(self, execution: Execution, work: Coroutine[Any, Any, None]) -> None:
        execution.task = asyncio.ensure_future(work)
        self._executions.latest[execution.job.id] = execution
        execution.task.add_done_callback(lambda task: self._end(execution, task))

    def _end(self, execution: Execution, task: asyncio.Task[None]) -> None:
        """Remove a finished execution. Unless the job has a newer one, it waits again or has ended."""
        if self._closing:
            return
        job = execution.job  # with a raised memory bound, if it ran out of memory
        error = None if task.cancelled() else task.exception()  # cancelled by `drop_containers`
        if error:
            self._log.error("The execution of run %s failed", job.name, exc_info=error)
            execution.job_ended = True
        self._runner.release_devices(execution)
        if self._executions.latest.get(job.id) is execution:
            del self._executions.latest[job.id]
            if execution.requeue_with is not None:
                self.engine.submit(job, execution.requeue_with)
            self._on_finished(job)
            self.wake()

    async def close(self) -> None:
        """Stop acting. Running jobs continue, and the next worker adopts them."""
        self.active, self._closing = False, True
        for handle in (self._planning, self._alarm):
            if handle:
                handle.cancel()
        tasks = [execution.task for execution in self._executions if execution.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.engine.policy.close()
        self._mark.close()
