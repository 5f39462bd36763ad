"""Follows the progress of running jobs in their output, and corrects how long they will still take.

Every two seconds the newest output of each attempt is read in a thread. A job whose expected end has moved
noticeably is given to the dispatcher, so that policies, reservations and forecasts use it. This also corrects
a duration that the owner stated; what was stated stays recorded. A job that tells no progress and runs longer
than expected is judged by like jobs that took longer too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpu_flows.analytics.facts import Predicted, ProgressReported
from gpu_flows.runtimes.base import Attempt, Launch
from gpu_flows.schedulers.model import Device, Job, Progress
from gpu_flows.schedulers.prediction.estimate import Estimate
from gpu_flows.schedulers.prediction.job_progress import JobProgress, ProgressPoint
from gpu_flows.schedulers.prediction.remaining_time import RemainingTime
from gpu_flows.schedulers.prediction.told_end import ToldEnd

READ_EVERY_S, PAUSE_FACTOR = 2.0, 10.0  # reading may take a tenth of the time
RECORD_EVERY_S, RECORD_STEP = 60.0, 0.1  # a report that is not told is recorded after either of them
PRIOR_SPREAD = 2.0  # the 90th percentile of a duration that was stated or predicted, relative to it


class Jobs(Protocol):
    """The part of the dispatcher that is used here."""

    def running_attempts(self) -> list[Attempt]: ...

    def progress(self, job_id: str) -> Progress: ...

    def expect(self, job_id: str, remaining_s: float) -> None: ...


@dataclass(eq=False)
class Followed:
    """What is known of the progress of one attempt."""

    attempt: Attempt
    output: JobProgress
    remaining: RemainingTime
    expected_s: float | None = None  # its time on devices, over all attempts
    source: str = ""  # what the progress was read from; empty before the first report
    told: ToldEnd = field(default_factory=ToldEnd)  # to the dispatcher
    recorded_at: float = 0.0
    recorded: float = -1.0  # the fraction


class ProgressWatch:
    """`read_output` returns the newest lines of an attempt and is called in a thread; `parameters` returns
    those of a job's run, and `predict_longer` how long a job takes that has run for so many seconds
    already."""

    def __init__(
        self,
        jobs: Jobs,
        read_output: Callable[[Launch], list[str]],
        parameters: Callable[[str], Mapping[str, Any]],
        record: Callable[..., None],
        predict_longer: Callable[[Job, tuple[Device, ...], float], Estimate | None] = lambda *_: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._jobs, self._read_output, self._parameters = jobs, read_output, parameters
        self._record: Callable[..., None] = record
        self._predict_longer, self._clock = predict_longer, clock
        self._followed: dict[str, Followed] = {}  # by job id

    async def keep_watching(self) -> None:
        while True:
            began = time.monotonic()
            await self.watch_once()
            await asyncio.sleep(max(READ_EVERY_S, PAUSE_FACTOR * (time.monotonic() - began)))

    async def watch_once(self) -> None:
        """Read what is new, and tell the dispatcher what follows from it."""
        self._update_followed()
        followed, now = list(self._followed.values()), self._clock()
        points = await asyncio.to_thread(lambda: [self._read(one) for one in followed])
        for one, point in zip(followed, points, strict=True):
            if self._followed.get(one.attempt.launch.job.id) is not one:
                continue
            if point:
                self._apply(one, point, now)
            elif not one.source or one.remaining.estimate(now) is None:
                self._check_outlived(one, now)

    def describe(self, job_id: str) -> dict[str, Any] | None:
        """Return how far the job is and how long it will still take; None if its output does not tell."""
        one = self._followed.get(job_id)
        estimate = one.remaining.estimate(self._clock()) if one and one.source else None
        if one is None or estimate is None:
            return None
        return {
            "fraction": one.remaining.fraction,
            "remaining_s": estimate.value,
            "upper_s": estimate.upper,
            "source": one.source,
        }

    def _update_followed(self) -> None:
        """Follow the attempts that run now, and no others."""
        attempts = {attempt.launch.job.id: attempt for attempt in self._jobs.running_attempts()}
        for job_id, attempt in attempts.items():
            known = self._followed.get(job_id)
            if known is None or known.attempt.launch.attempt != attempt.launch.attempt:
                self._followed[job_id] = self._follow(attempt)
        for job_id in self._followed.keys() - attempts.keys():
            del self._followed[job_id]

    def _follow(self, attempt: Attempt) -> Followed:
        job, prior = attempt.launch.job, None
        if job.expected_s:
            left = max(1.0, job.expected_s - self._jobs.progress(job.id).work_s)
            prior = Estimate(left, PRIOR_SPREAD * left, "stated")
        remaining = RemainingTime(attempt.started, prior, resumed=attempt.launch.attempt > 1)
        return Followed(attempt, JobProgress(self._parameters(job.id)), remaining, job.expected_s)

    def _read(self, one: Followed) -> ProgressPoint | None:
        """Return what the newest output of an attempt tells last. Called in a thread."""
        points = [one.output.read(line) for line in self._read_output(one.attempt.launch)]
        return next((point for point in reversed(points) if point), None)

    def _apply(self, one: Followed, point: ProgressPoint, now: float) -> None:
        if point.fraction is None:
            one.remaining.forget()
            one.source = ""
        else:
            one.remaining.add(now, point.fraction)
            one.source = point.source
            self._tell(one)

    def _check_outlived(self, one: Followed, now: float) -> None:
        """Correct the expectation of a job without progress that has run longer than expected."""
        launch = one.attempt.launch
        ran = self._count_time(one, now)
        if one.expected_s is None or ran < one.expected_s:
            return
        estimate = self._predict_longer(launch.job, launch.devices, ran)
        if estimate is None:
            one.expected_s = None  # no like job took longer: nothing more is known
            return
        one.expected_s = estimate.value
        self._jobs.expect(launch.job.id, estimate.value - ran)
        self._record_prediction(one, estimate, now)

    def _tell(self, one: Followed) -> None:
        """Tell the dispatcher the remaining time if it has changed noticeably. Record what is told, because
        replays tell it again, and the progress now and then."""
        now = self._clock()
        estimate = one.remaining.estimate(now)
        if estimate is None or estimate.how != "progress":
            return
        if is_told := one.told.update(now, estimate.value):
            self._jobs.expect(one.attempt.launch.job.id, estimate.value)
        self._record_report(one, estimate, now, is_told)

    def _record_report(self, one: Followed, estimate: Estimate, now: float, is_told: bool) -> None:
        launch, fraction = one.attempt.launch, one.remaining.fraction
        is_step = abs(fraction - one.recorded) >= RECORD_STEP
        if not is_told and not is_step and now - one.recorded_at < RECORD_EVERY_S:
            return
        self._record(
            ProgressReported(launch.job.id, launch.attempt, now, fraction, estimate.value, one.source)
        )
        if is_step or now - one.recorded_at >= RECORD_EVERY_S:
            one.recorded_at, one.recorded = now, fraction
        if is_step:
            ran = self._count_time(one, now)
            detail = f"{estimate.detail}, from {one.source}"
            whole = Estimate(ran + estimate.value, ran + estimate.upper, "progress", detail)
            self._record_prediction(one, whole, now)

    def _record_prediction(self, one: Followed, whole: Estimate, now: float) -> None:
        job_id, devices = one.attempt.launch.job.id, one.attempt.launch.devices
        model, value, upper = devices[0].model if devices else "", whole.value, whole.upper
        self._record(Predicted(job_id, now, "seconds", model, value, upper, whole.how, detail=whole.detail))

    def _count_time(self, one: Followed, now: float) -> float:
        """Return how long the job has been on devices, over all attempts."""
        return self._jobs.progress(one.attempt.launch.job.id).ran_s + now - one.attempt.started
