"""Simulates a pool forward from its present state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from gpu_flows.schedulers.forecast.duration_spread import draw_durations
from gpu_flows.schedulers.forecast.pool_state import PoolState
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.prediction.estimate import Estimate
from gpu_flows.schedulers.simulation.estimates import Stated
from gpu_flows.schedulers.simulation.simulator import Run
from gpu_flows.schedulers.workload import Arrival


class UnknownDurations(ValueError):
    """Nothing is known about how long some of the jobs take, so nobody can say what happens after them."""


def medians(state: PoolState) -> dict[str, float]:
    """Return the median of the duration of every job, given how much of it is done. Raises
    UnknownDurations."""
    done = state.work()
    return {
        job_id: draw_durations(expected(state, job), done[job_id], 1)[0]
        for job_id, job in state.jobs().items()
    }


def expected(state: PoolState, job: Job) -> Estimate:
    """Return what is expected of the duration of a job. Raises UnknownDurations."""
    found = state.duration(job.id)
    if found is None:
        raise UnknownDurations(
            f"Nothing is known about how long {job.name or job.id} takes: no like job has ended yet, and its"
            " owner did not state it (expected_seconds, --expected)."
        )
    return found


def begin(
    state: PoolState,
    durations: Mapping[str, float],
    later: Iterable[Arrival] = (),
    launches: Mapping[str, float] | None = None,
) -> Run:
    """Return the simulation that continues from this state, with these durations and launches (else the
    median) and with jobs that come later. Raises PolicyError."""
    took, launch_s = launches or {}, state.costs.launch_s
    arrivals = [
        Arrival(job, durations[job_id], launch_s=took.get(job_id, launch_s))
        for job_id, job in state.jobs().items()
    ]
    policy, conditions = state.make_policy(), state.conditions()
    changes = state.changes()
    if conditions.network:
        changes.network = conditions.network.slowdown
    return Run([*arrivals, *later], state.nodes, policy, conditions, Stated(), begin=changes)


def run_until(run: Run, is_enough: Callable[[Run], bool]) -> None:
    """Let the simulation proceed until this is true, or all jobs have ended."""
    for _ in run.events():
        if is_enough(run):
            return
