"""When the jobs of a pool will start and end.

The pool is simulated forward several times, each time with other durations drawn from what is predicted of
each job. The times of a job over all these simulations are its distribution: it is expected at the median,
and one time in ten it is later than the 90th percentile.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from gpu_flows.schedulers.forecast.forward import begin, expected, run_until
from gpu_flows.schedulers.forecast.pool_state import PoolState
from gpu_flows.schedulers.prediction.estimate import Estimate
from gpu_flows.schedulers.simulation.simulator import JobResult

DRAWS = 20
LEAST_SPREAD = 0.02  # of log durations, also of jobs whose time seems certain
_NORMAL = NormalDist()
P90 = _NORMAL.inv_cdf(0.9)


@dataclass(frozen=True, slots=True)
class Eta:
    """When a job will start and end, in seconds since the epoch. A job that runs has started already."""

    start_p50: float
    start_p90: float
    end_p50: float
    end_p90: float


def forecast(
    state: PoolState,
    draws: int = DRAWS,
    seed: int = 0,
    is_late: Callable[[], bool] = lambda: False,
    is_hopeless: Callable[[], bool] = lambda: False,
) -> dict[str, Eta]:
    """Return when each job will start and end; jobs that may never end are left out. When `is_late`, the
    simulations made so far have to do; at least one is made, unless that `is_hopeless`: then jobs that have
    not ended in it by now are left out. Raises UnknownDurations and PolicyError."""
    jobs, changes = state.jobs(), state.changes()
    ran_s = {held.job.id: held.before.work_s + changes.now - held.since for held in changes.running}
    ran_s |= {job.id: progress.work_s for job, progress in changes.waiting}
    samples = {
        job_id: _draw_durations(expected(state, job), ran_s[job_id], draws, f"{seed}/{job_id}")
        for job_id, job in jobs.items()
    }
    outcomes: dict[str, list[JobResult]] = {job_id: [] for job_id in jobs}
    for draw in range(draws):
        if draw and is_late():
            break
        run = begin(state, {job_id: durations[draw] for job_id, durations in samples.items()})
        run_until(run, lambda _: is_hopeless())
        if draw and is_hopeless():
            break  # it is not complete, and those before it are
        for job_id, found in outcomes.items():
            found.append(run.result(job_id))
    etas = {job_id: _summarize(found) for job_id, found in outcomes.items()}
    return {job_id: eta for job_id, eta in etas.items() if eta}


def _draw_durations(duration: Estimate, ran_s: float, draws: int, seed: str) -> list[float]:
    """Return durations of a job that has run for some time already, one from each of as many equally likely
    ranges, in a random order: few draws then have the right spread."""
    median = max(duration.value, 1e-3)
    spread = max(LEAST_SPREAD, math.log(max(1.0, duration.upper / median)) / P90)
    passed = _NORMAL.cdf(math.log(ran_s / median) / spread) if ran_s > 0 else 0.0
    passed = min(passed, 1 - 1e-6)  # it takes longer than all that was predicted
    ranges = [passed + (1 - passed) * (number + 0.5) / draws for number in range(draws)]
    random.Random(seed).shuffle(ranges)
    return [max(ran_s, median * math.exp(spread * _NORMAL.inv_cdf(each))) for each in ranges]


def _summarize(outcomes: Sequence[JobResult]) -> Eta | None:
    """Return the distribution of the job's times; None if it did not end in each simulation."""
    starts = sorted(each.started for each in outcomes if each.started is not None)
    ends = sorted(each.ended for each in outcomes if each.ended is not None)
    if len(ends) < len(outcomes):
        return None
    return Eta(_quantile(starts, 0.5), _quantile(starts, 0.9), _quantile(ends, 0.5), _quantile(ends, 0.9))


def _quantile(ordered: Sequence[float], part: float) -> float:
    """Return the quantile, between the two nearest values."""
    place = part * len(ordered) - 0.5
    low = min(max(math.floor(place), 0), len(ordered) - 1)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * min(max(place - low, 0.0), 1.0)
