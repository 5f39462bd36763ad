"""When the jobs of a pool will start and end.

The pool is simulated forward several times, each time with other durations drawn from what is predicted of
each job, and with other jobs that come later, where the policy lets them overtake. The times of a job over
all these simulations are its distribution: it is expected at the median, and one time in ten it is later than
the 90th percentile. Where the time allows only a few simulations, that is estimated from their deviation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from gpu_flows.common.clock import LONGEST_S
from gpu_flows.schedulers.forecast.duration_spread import P90, draw_durations
from gpu_flows.schedulers.forecast.forward import begin, expected, run_until
from gpu_flows.schedulers.forecast.later_arrivals import draw_later, may_overtake
from gpu_flows.schedulers.forecast.pool_state import PoolState
from gpu_flows.schedulers.prediction.estimate import Estimate
from gpu_flows.schedulers.simulation.simulator import JobResult, Run

DRAWS = 20
ENOUGH = 8  # draws, to read a 90th percentile from them


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
    only: Collection[str] = (),
) -> dict[str, Eta]:
    """Return when each job will start and end; jobs that may never end, or in
    years, are left out. When `is_late`, the
    simulations made so far have to do; at least one is made, unless that `is_hopeless`: then jobs that have
    not ended in it by now are left out. With `only`, just these jobs are forecast. Raises UnknownDurations
    and PolicyError."""
    jobs, done = state.jobs(), state.work()
    samples = {
        job_id: draw_durations(expected(state, job), done[job_id], draws, f"{seed}/{job_id}")
        for job_id, job in jobs.items()
    }
    launches = _draw_launches(state, draws, seed)
    overtakes = may_overtake(state.make_policy())
    outcomes: dict[str, list[JobResult]] = {job_id: [] for job_id in only or jobs}
    for draw in range(draws):
        if draw and is_late():
            break
        later = draw_later(state, f"{seed}/{draw}") if overtakes else []
        durations = {job_id: drawn[draw] for job_id, drawn in samples.items()}
        took = {job_id: drawn[draw] for job_id, drawn in launches.items()}
        run = begin(state, durations, later, took)
        open_jobs = list(outcomes)
        run_until(run, lambda run: _have_ended(run, open_jobs) or is_hopeless())  # noqa: B023
        if draw and is_hopeless():
            break  # it is not complete, and those before it are
        for job_id, found in outcomes.items():
            found.append(run.result(job_id))
    etas = {job_id: _summarize(found, launches.get(job_id, ())) for job_id, found in outcomes.items()}
    far = state.now + LONGEST_S
    return {job_id: eta for job_id, eta in etas.items() if eta and max(eta.start_p90, eta.end_p90) < far}


def _draw_launches(state: PoolState, draws: int, seed: int) -> dict[str, list[float]]:
    """Return how long each waiting job takes to launch, by simulation; none if launches take no time."""
    costs = state.costs
    if not costs.launch_s:
        return {}
    launch = Estimate(costs.launch_s, max(costs.launch_s, costs.launch_upper_s), "history")
    return {job.id: draw_durations(launch, 0.0, draws, f"{seed}/launch/{job.id}") for job, _ in state.waiting}


def _have_ended(run: Run, open_jobs: list[str]) -> bool:
    """Return whether none of these jobs is left. Drop those that have ended from the end of the list."""
    while open_jobs and run.result(open_jobs[-1]).ended is not None:
        open_jobs.pop()
    return not open_jobs


def _summarize(outcomes: Sequence[JobResult], launches: Sequence[float]) -> Eta | None:
    """Return the distribution of the job's times; None if it did not end in each simulation. A waiting job
    has started when it has been launched."""
    took = launches or [0.0] * len(outcomes)
    starts = sorted(
        each.started + launch
        for each, launch in zip(outcomes, took, strict=False)
        if each.started is not None
    )
    ends = sorted(each.ended for each in outcomes if each.ended is not None)
    if len(ends) < len(outcomes):
        return None
    return Eta(_quantile(starts, 0.5), _find_p90(starts), _quantile(ends, 0.5), _find_p90(ends))


def _find_p90(ordered: Sequence[float]) -> float:
    """Return the 90th percentile; of few values, that of the normal distribution with their deviation."""
    if not 1 < len(ordered) < ENOUGH:
        return _quantile(ordered, 0.9)
    return max(_quantile(ordered, 0.5), mean(ordered) + P90 * stdev(ordered))


def _quantile(ordered: Sequence[float], part: float) -> float:
    """Return the quantile, between the two nearest values."""
    place = part * len(ordered) - 0.5
    low = min(max(math.floor(place), 0), len(ordered) - 1)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * min(max(place - low, 0.0), 1.0)
