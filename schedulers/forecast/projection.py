"""The mean turnaround of the jobs that a pool knows, under its own policy and under others.

The pool is simulated forward with the median durations until all of its jobs have ended, once for each
policy. Nothing is assumed about jobs that will come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Any

from gpu_flows.schedulers.forecast.forward import begin, medians, run_until
from gpu_flows.schedulers.forecast.pool_state import PoolState
from gpu_flows.schedulers.policy import PolicyError
from gpu_flows.schedulers.simulation.simulator import JobResult


@dataclass(frozen=True, slots=True)
class Projection:
    """What comes out under one policy. The same jobs count under each: those that end under all."""

    policy: str
    jobs: int
    turnaround_s: float  # their mean
    makespan_s: float  # from the first submission to the last end


def project(
    state: PoolState,
    others: Mapping[str, Mapping[str, Any]],
    is_late: Callable[[], bool] = lambda: False,
) -> list[Projection]:
    """Return what comes out under the pool's policy and under others, given by name with their options. A
    policy that fails is left out; when `is_late`, all that are not done are. Raises UnknownDurations."""
    durations = medians(state)
    ended: dict[str, dict[str, JobResult]] = {}
    for policy, options in {state.policy: state.options, **others}.items():
        found = _simulate(state.under(policy, options), durations, is_late)
        if found is not None:
            ended[policy] = found
    common = set.intersection(*(set(found) for found in ended.values())) if ended else set()
    if not common:
        return []
    return [_summarize(policy, [found[job_id] for job_id in common]) for policy, found in ended.items()]


def _simulate(
    state: PoolState, durations: Mapping[str, float], is_late: Callable[[], bool]
) -> dict[str, JobResult] | None:
    """Return the jobs that end, by id; None if the policy fails or the time is up."""
    try:
        run = begin(state, durations)
    except PolicyError:
        return None
    run_until(run, lambda _: is_late())
    if run.simulation.policy_error or is_late():
        return None
    results = {job_id: run.result(job_id) for job_id in durations}
    return {job_id: result for job_id, result in results.items() if result.ended is not None}


def _summarize(policy: str, results: list[JobResult]) -> Projection:
    first = min(result.arrival.job.submitted for result in results)
    last = max(result.ended or 0.0 for result in results)
    return Projection(policy, len(results), mean(result.turnaround_s for result in results), last - first)
