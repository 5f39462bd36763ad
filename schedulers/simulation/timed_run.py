"""A simulation in which launching, stopping and releasing jobs takes time, as it does in a live pool.

    planned --launch_s--> started, works ... ended --release_s--> its devices are free
    preempted --stop_s--> its devices are free --report_s--> it waits again

In a plain simulation the devices of a job change hands in the moment of a decision. Here, as in the
dispatcher, a job that gets the devices of a preempted one waits until they are free, the preempted job is
away from the queue until its stop is reported, and a job counts as running only once it is launched. This
matters where jobs run for seconds: their leases and protections begin later, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_flows.schedulers import mirror
from gpu_flows.schedulers.model import Node, Preempt, Progress, Running, Start
from gpu_flows.schedulers.policy import Policy
from gpu_flows.schedulers.simulation.conditions import Conditions
from gpu_flows.schedulers.simulation.estimates import Estimates
from gpu_flows.schedulers.simulation.simulator import Run
from gpu_flows.schedulers.simulation.told_progress import Told, ToldProgress
from gpu_flows.schedulers.workload import Arrival


@dataclass(frozen=True, slots=True)
class Stopping:
    """How long it takes to stop a job."""

    stop_s: float = 0.0  # from the decision until its devices are free
    report_s: float = 0.0  # from then on until it waits again, or may be launched elsewhere


class TimedRun(Run):
    """Launch and release times are those of the arrivals. `told` is what jobs tell of their progress."""

    def __init__(
        self,
        arrivals: Iterable[Arrival],
        nodes: Sequence[Node],
        policy: Policy,
        conditions: Conditions | None = None,
        estimates: Estimates | None = None,
        progress: Callable[[int], None] | None = None,
        begin: mirror.Changes | None = None,
        stopping: Stopping = Stopping(),
        told: Mapping[str, Sequence[Told]] | None = None,
    ) -> None:
        self._stopping, self._told = stopping, ToldProgress(told)
        self._begins = begin.now if begin else -math.inf
        self._free_at: dict[str, float] = {}  # device id -> when the job that was preempted there is gone
        self._may_launch_at: dict[str, float] = {}  # of jobs that move
        self._launching: set[str] = set()  # jobs that have devices and do not run yet
        self._releasing: dict[str, float] = {}  # jobs that have ended -> when their devices are free
        self._unseen: dict[str, float] = {}  # job id -> time without work that the engine takes for work
        super().__init__(arrivals, nodes, policy, conditions, estimates, progress, begin)
        self._keeps_durations &= stopping == Stopping()

    # -- launch -------------------------------------------------------------------------------

    def _start(self, start: Start, now: float) -> None:
        job_id = start.job.id
        running = self.engine.running.get(job_id)
        if running is None:  # the plan moves a job that has ended meanwhile
            return
        free_at = [self._free_at.get(device.id, now) for device in start.devices]
        begins = max(now, self._may_launch_at.pop(job_id, now), *free_at)
        launched = begins + self._results[job_id].arrival.launch_s
        self._told.resume(job_id, running.before.work_s - self._unseen.get(job_id, 0.0))
        if launched > now:
            self._launching.add(job_id)
            self.at(launched, lambda time: self._note_launch(running, time))
        super()._start(start, now)

    def _launch_s(self, job_id: str) -> float:
        return 0.0  # it is no pause: until the launch, a live engine does not know that nothing runs yet

    def _note_launch(self, running: Running, now: float) -> None:
        job_id = running.job.id
        if self.engine.running.get(job_id) is not running:
            return
        self._launching.discard(job_id)
        result, rate = self._results[job_id], running.rate
        if result.attempts == 1:
            result.started = now
        self.engine.started(job_id, now, running.attempt)
        self.engine.set_rate(job_id, now, rate)
        self._expect_end(running)

    def _expect_end(self, running: Running) -> None:
        if running.job.id in self._launching:
            self._due[running.job.id] = math.inf
        else:
            super()._expect_end(running)
            self._expect_progress(running)

    # -- progress that is told ----------------------------------------------------------------

    def _expect_progress(self, running: Running) -> None:
        """Let the job tell its progress when it has done enough work, unless it stops or ends before."""
        job_id, due = running.job.id, self._due[running.job.id]
        told = self._told.find_next(job_id)
        if told and running.rate:
            done_s = running.before.work_s + running.worked_s - self._unseen.get(job_id, 0.0)
            # What was told before the beginning is told at the beginning.
            at = max(running.rated + (told.work_s - done_s) / running.rate, running.rated, self._begins)
            if at < due:
                self.at(at, lambda now: self._tell_progress(running, told, due, now))

    def _tell_progress(self, running: Running, told: Told, due: float, now: float) -> None:
        job_id = running.job.id
        if self.engine.running.get(job_id) is running and self._due[job_id] == due:
            done_s = running.work(now) - self._unseen.get(job_id, 0.0)
            self.engine.expect(job_id, now, (told.work_s + told.left_s - done_s) / running.rate)
            self._told.note(job_id, told.work_s)
            self._expect_progress(running)

    # -- work that is none --------------------------------------------------------------------

    def _pay(self, job_id: str, seconds: float) -> float:
        """Let the job do this much more. A live engine sees it on its devices and takes that for work."""
        self._unseen[job_id] = self._unseen.get(job_id, 0.0) + seconds
        return 0.0

    def _work_s(self, job_id: str) -> float:
        return super()._work_s(job_id) + self._unseen.get(job_id, 0.0)

    # -- stop ---------------------------------------------------------------------------------

    def _preempt(self, stop: Preempt, now: float) -> None:
        running, job_id = stop.running, stop.running.job.id
        if job_id in self._releasing:
            self._keep_ended(running)
            return
        if was_launching := job_id in self._launching:
            self._launching.discard(job_id)
            running.since = now  # nothing of it ran
        super()._preempt(stop, now)
        free_at = now if was_launching else now + self._stopping.stop_s
        for device in running.devices:
            self._free_at[device.id] = max(free_at, self._free_at.get(device.id, now))
        back_at = free_at + self._stopping.report_s
        moved = self.engine.running.get(job_id)
        known = moved.before if moved else self.engine.progress(job_id)
        progress = running.before if was_launching else self._count_stop(running, known, free_at - now)
        if moved:
            self._may_launch_at[job_id] = back_at
            self.engine.correct_progress(job_id, progress)
        elif progress != known or back_at > now:
            self.engine.withdraw(job_id)
            self.at(back_at, lambda _: self._put_back(job_id, running, progress))

    def _count_stop(self, running: Running, progress: Progress, stop_s: float) -> Progress:
        """Return the progress of a job when it is gone. The time that it took to stop counts as work, because
        a live engine cannot tell it from work."""
        if not stop_s:
            return progress
        self._pay(running.job.id, stop_s)
        return replace(
            progress,
            ran_s=progress.ran_s + stop_s,
            gpu_s=progress.gpu_s + stop_s * len(running.devices),
            work_s=progress.work_s + stop_s,
            stopped=(progress.stopped or 0.0) + stop_s,
        )

    def _put_back(self, job_id: str, running: Running, progress: Progress) -> None:
        if self._results[job_id].reason is None:  # it was not cancelled meanwhile
            self.engine.submit(running.job, progress)

    # -- release ------------------------------------------------------------------------------

    def _release(self, running: Running, now: float) -> None:
        job_id = running.job.id
        release_s = self._results[job_id].arrival.release_s
        if not release_s:
            return super()._release(running, now)
        self._releasing[job_id] = now + release_s
        self.at(now + release_s, lambda _: self._free(running))

    def _free(self, running: Running) -> None:
        if self._releasing.pop(running.job.id, None) is not None:
            self.engine.ended(running.job.id)

    def _keep_ended(self, running: Running) -> None:
        """A plan has preempted a job that has ended already: its devices are free when it releases them."""
        job_id = running.job.id
        free_at = self._releasing.pop(job_id)
        self._free_at.update((device.id, free_at) for device in running.devices)
        self.engine.withdraw(job_id)
        self.engine.ended(job_id)
