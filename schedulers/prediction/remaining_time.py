"""The remaining time of a running job, from its progress and from what was predicted before it ran.

The rate is measured without the beginning, because the first steps compile, load and fill caches. It is the
mean of the rate so far and the recent one, so that a job that became slower is noticed and a single pause is
not. The less of the job was seen, the more the earlier prediction counts: both are weighted by how far each
is usually off. A single early report shows how long the start took and no rate: it is not extrapolated.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import NamedTuple

from gpu_flows.schedulers.prediction.estimate import Estimate

P90 = 1.2816  # standard deviations from the median to the 90th percentile
BEGINNING = 0.1  # of the progress seen; the rate is measured after it
RECENT = 0.25  # of the progress seen; the recent rate is measured over it
SETBACK = 0.02  # a fraction that falls by more means that the work began anew
THINNING = 0.02  # of the time seen; points that are closer to each other than this replace each other
LEAST_ERROR = 0.04  # the log error of a rate that was measured over nearly the whole job
ERROR_BY_PART, ERROR_BY_POINT = 0.02, 1.0  # more of it the smaller the part seen, or the fewer points
LEAST_PRIOR_ERROR = 0.1
# A rate is believed if the reports are this far apart, in progress or in seconds, or if the first of them
# shows so much progress that the start before it hardly matters.
LEAST_APART, LEAST_APART_S, LEAST_AT_ONCE = 0.02, 30.0, 0.05


class Point(NamedTuple):
    time: float
    fraction: float


class RemainingTime:
    """Follows one attempt. `prior` is the whole time that was predicted for it before it began."""

    def __init__(self, started: float, prior: Estimate | None = None, resumed: bool = False) -> None:
        self._started, self._prior = started, prior
        # The attempt began with nothing done, unless it resumed: then its first point shows where.
        self._points: list[Point] = [] if resumed else [Point(started, 0.0)]

    @property
    def fraction(self) -> float:
        """How much of the job is done, as far as it is known."""
        return self._points[-1].fraction if self._points else 0.0

    def add(self, time: float, fraction: float) -> None:
        """Add what the job told of its progress at this time."""
        points = self._points
        if points and fraction < points[-1].fraction - SETBACK:
            points.clear()
        if points and fraction <= points[-1].fraction:
            return
        point = Point(time, fraction)
        if len(points) > 2 and time - points[-2].time < THINNING * (time - points[0].time):
            points[-1] = point
        else:
            points.append(point)

    def forget(self) -> None:
        """Forget the progress: it turned out to be that of a part of the job only."""
        self._points.clear()

    def estimate(self, now: float) -> Estimate | None:
        """Return the remaining seconds: the median and the 90th percentile. None if nothing is known."""
        by_progress, by_prior = self._by_progress(now), self._by_prior(now)
        known = [each for each in (by_progress, by_prior) if each]
        if not known:
            return None
        precision = sum(1 / error**2 for _, error in known)
        median = math.exp(sum(math.log(seconds) / error**2 for seconds, error in known) / precision)
        upper = median * math.exp(P90 / math.sqrt(precision))
        if not by_progress:
            how, detail = (self._prior.how, self._prior.detail) if self._prior else ("progress", "")
        else:
            how, detail = "progress", f"{100 * self.fraction:.0f}% done"
        return Estimate(median, upper, how, detail)

    def _by_progress(self, now: float) -> tuple[float, float] | None:
        """Return the remaining seconds by the measured rate, and the log error to expect of them."""
        points = self._points
        if len(points) < 2 or not self._shows_rate():
            return None
        first, last = points[0], points[-1]
        seen = last.fraction - first.fraction
        so_far = _pace(points, first.fraction + BEGINNING * seen)
        recent = _pace(points, last.fraction - RECENT * seen)
        pace = math.sqrt(so_far * recent)
        since = min(now - last.time, 2 * (last.time - points[-2].time))  # it goes on between two points
        left = max((1 - last.fraction) * pace - max(0.0, since), 0.02 * (1 - last.fraction) * pace, 1e-3)
        error = LEAST_ERROR + min(ERROR_BY_PART / seen, ERROR_BY_POINT / math.sqrt(len(points)))
        return left, error + abs(math.log(recent / so_far)) / 2

    def _shows_rate(self) -> bool:
        """Return whether more was seen than the start of the job and its first steps."""
        start, last = self._points[0], self._points[-1]
        first = self._points[1] if start == Point(self._started, 0.0) else start  # the first report
        is_apart = last.fraction - first.fraction >= LEAST_APART or last.time - first.time >= LEAST_APART_S
        return is_apart or last.fraction - start.fraction >= LEAST_AT_ONCE

    def _by_prior(self, now: float) -> tuple[float, float] | None:
        """Return the remaining seconds by the prediction before the run, unless it has been outlived."""
        prior = self._prior
        if prior is None or prior.value <= 0:
            return None
        left = prior.value - (now - self._started)
        if left <= 0:
            left = prior.upper - (now - self._started)
            if left <= 0:
                return None
        # The error of the whole time is a larger one of what is left of it.
        error = max(LEAST_PRIOR_ERROR, math.log(prior.upper / prior.value) / P90) * prior.value / left
        return left, error


def _pace(points: list[Point], least: float) -> float:
    """Return the seconds per whole job, measured from the first point with at least this fraction."""
    last = points[-1]
    start = bisect_left(points, least, key=lambda point: point.fraction)
    begin = points[min(start, len(points) - 2)]
    return max((last.time - begin.time) / (last.fraction - begin.fraction), 1e-6)
