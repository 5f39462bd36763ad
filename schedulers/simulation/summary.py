"""What came of a simulation, in figures: the summary, a row for every job, and device use over time.

turnaround = end - submission; queueing = turnaround - time on devices; makespan = last end - first
submission. All of them are about the jobs that finished. Percentiles are nearest-rank: the p90 is
the turnaround of a real job, and nine in ten jobs took no longer. A deadline is missed by a job that
ended later, or never.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_flows.schedulers.model import all_devices
from gpu_flows.schedulers.simulation.simulator import JobResult, Simulation

FINISHED, IMPOSSIBLE, UNFINISHED = "finished", "impossible", "unfinished"

Floats = NDArray[np.float64]

CLOCK_NOISE_S = 1e-6  # sums of times are not exact: so little too late is in time


class JobsLost(Exception):
    """The simulation says of some job neither that it ended nor why it did not. Always our mistake."""


@dataclass(frozen=True, slots=True)
class Summary:
    """One simulation in numbers. Times are NaN if no job finished."""

    jobs: int
    finished: int
    makespan_s: float
    avg_turnaround_s: float
    p50_turnaround_s: float
    p90_turnaround_s: float
    p99_turnaround_s: float
    avg_queueing_s: float
    utilization: float  # of all devices over the makespan: how busy the jobs keep those that they hold
    preemptions: int
    events: int  # arrivals, starts and stops
    allocation: float  # of all devices over the makespan: how many are held
    moves: int
    losses: int
    impossible: int
    unfinished: int
    decisions: int
    policy_error: str
    deadlines: int  # jobs that have one
    deadlines_missed: int


def summarize(simulation: Simulation, use: Use | None = None) -> Summary:
    """The figures of a run. Raises JobsLost unless every job is accounted for.

    Whoever has the use of the devices at hand already may save the time to work it out again.
    """
    ended = [job for job in simulation.jobs if job.ended is not None]
    outcomes = [outcome(job) for job in simulation.jobs]
    finished, impossible = outcomes.count(FINISHED), outcomes.count(IMPOSSIBLE)
    unfinished = outcomes.count(UNFINISHED)
    if finished + impossible + unfinished != len(simulation.jobs):
        lost = [job.arrival.job.id for job in simulation.jobs if not outcome(job)]
        raise JobsLost(f"{len(lost)} of {len(simulation.jobs)} jobs got lost: {', '.join(lost[:5])} ...")
    use = use or device_use(simulation)
    turnarounds = np.sort(turnarounds_s(simulation))
    makespan_s = makespan(ended)
    capacity = use.devices * makespan_s
    missed = [missed_deadline(job) for job in simulation.jobs]
    return Summary(
        jobs=len(simulation.jobs),
        finished=finished,
        makespan_s=makespan_s,
        avg_turnaround_s=_mean(turnarounds),
        p50_turnaround_s=_percentile(turnarounds, 50),
        p90_turnaround_s=_percentile(turnarounds, 90),
        p99_turnaround_s=_percentile(turnarounds, 99),
        avg_queueing_s=_mean(np.array([job.queueing_s for job in ended])),
        utilization=use.busy_s / capacity if capacity else math.nan,
        preemptions=simulation.preemptions,
        events=len(simulation.jobs) + sum(job.attempts for job in simulation.jobs) + len(simulation.attempts),
        allocation=use.held_s / capacity if capacity else math.nan,
        moves=simulation.moves,
        losses=simulation.losses,
        impossible=impossible,
        unfinished=unfinished,
        decisions=simulation.decisions,
        policy_error=simulation.policy_error,
        deadlines=len(missed) - missed.count(None),
        deadlines_missed=missed.count(True),
    )


def outcome(job: JobResult) -> str:
    """What became of a job; empty if nobody knows, which must not be."""
    if job.ended is not None:
        return FINISHED if job.trouble is None else ""
    if job.trouble is None:
        return ""
    return IMPOSSIBLE if job.trouble.code == "impossible" else UNFINISHED


def missed_deadline(job: JobResult) -> bool | None:
    """Whether it ended too late, or never. None if there is no deadline to miss."""
    deadline = job.arrival.job.deadline
    if deadline is None:
        return None
    return job.ended is None or job.ended > deadline + CLOCK_NOISE_S


def makespan(ended: Sequence[JobResult]) -> float:
    """From the first submission to the last end."""
    ends = [job.ended for job in ended if job.ended is not None]
    return max(ends) - min(job.arrival.job.submitted for job in ended) if ends else math.nan


def turnarounds_s(simulation: Simulation) -> Floats:
    """Of the finished jobs, in arrival order."""
    return np.array([job.turnaround_s for job in simulation.jobs if job.ended is not None])


def _mean(values: Floats) -> float:
    return math.fsum(values) / len(values) if len(values) else math.nan


def _percentile(ascending: Floats, percent: int) -> float:
    rank = -(-len(ascending) * percent // 100)
    return float(ascending[rank - 1]) if rank else math.nan


# -- a row for every job ----------------------------------------------------------------------

ROW = (
    *("job_id", "user", "gpus", "submit", "start", "end", "turnaround", "queueing", "attempts"),
    *("devices", "outcome", "reason", "deadline", "priority", "missed"),
)


def rows(simulation: Simulation) -> Iterator[tuple[object, ...]]:
    """The jobs in arrival order, each with the values that ROW names. None where nothing came of it."""
    for result in simulation.jobs:
        job, done = result.arrival.job, result.ended is not None
        yield (
            job.id,
            job.user,
            job.gpus,
            job.submitted,
            result.started,
            result.ended,
            result.turnaround_s if done else None,
            result.queueing_s if done else None,
            result.attempts,
            [device.id for device in result.devices],
            outcome(result),
            str(result.trouble or ""),
            job.deadline,
            job.priority,
            missed_deadline(result),
        )


# -- devices over time ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """When devices were held: one stretch of one device an entry, cut where its jobs change."""

    devices: int  # how many there are
    device: NDArray[np.int64]  # which one, counted through all nodes
    since: Floats
    until: Floats
    load: Floats  # 0 to 1: how busy its jobs keep the device; several share one up to its limit

    @property
    def held_s(self) -> float:
        """Device-seconds; a device that several jobs share counts once."""
        return float((self.until - self.since).sum())

    @property
    def busy_s(self) -> float:
        return float(((self.until - self.since) * self.load).sum())

    def over_time(self, edges: Floats) -> Floats:
        """The mean utilization of all devices between each two edges, from 0 to 1."""
        times = np.concatenate([self.since, self.until])
        order = np.argsort(times)
        times, busy = times[order], np.concatenate([self.load, -self.load])[order].cumsum()
        done = np.concatenate([[0.0], (busy[:-1] * np.diff(times)).cumsum()])  # busy device-seconds so far
        share = np.diff(np.interp(edges, times, done)) / np.diff(edges) / self.devices
        return np.asarray(np.clip(share, 0.0, 1.0), float)


def device_use(simulation: Simulation) -> Use:
    """Walks each device through time, once for all of them: at every start or stop on it the number
    of its jobs, and how busy they keep it, changes."""
    numbers = {device.id: number for number, device in enumerate(all_devices(simulation.nodes))}
    load_of = {job.arrival.job.id: job.arrival.utilization / 100 for job in simulation.jobs}
    attempts = simulation.attempts
    held = np.array([numbers[device.id] for attempt in attempts for device in attempt.devices], int)
    counts = np.array([len(attempt.devices) for attempt in attempts], int)
    since = np.repeat(np.array([attempt.started for attempt in attempts], float), counts)
    until = np.repeat(np.array([attempt.ended for attempt in attempts], float), counts)
    load = np.repeat(np.array([load_of[attempt.job_id] for attempt in attempts], float), counts)
    device = np.tile(held, 2)
    time = np.concatenate([since, until])
    order = np.lexsort((time, device))
    device, time = device[order], time[order]
    jobs = np.concatenate([np.ones(len(held), int), -np.ones(len(held), int)])[order].cumsum()
    busy = np.concatenate([load, -load])[order].cumsum()
    # the last stop on a device leaves no job on it, so no stretch reaches over to the next device
    kept = np.flatnonzero(jobs[:-1] > 0) if len(jobs) else np.array([], int)
    return Use(len(numbers), device[kept], time[kept], time[kept + 1], np.clip(busy[kept], 0.0, 1.0))
