"""The figures of a simulation: the summary, a row for every job, and device use over time.

turnaround = end - submission; queueing = turnaround - time on devices; makespan = last end - first
submission. All of them count only finished jobs. Percentiles are nearest-rank: the p90 is the
turnaround of a real job, and nine in ten jobs took no longer. A job misses its deadline if it ends
later or does not end. Communication is the time on devices that jobs lose to the network: what they take
longer than on one node.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_flows.schedulers.model import Tier, all_devices
from gpu_flows.schedulers.simulation.outcome import JobResult, Simulation

FINISHED, IMPOSSIBLE, UNFINISHED = "finished", "impossible", "unfinished"

Floats = NDArray[np.float64]

CLOCK_NOISE_S = 1e-6  # sums of floats are not exact, so allow for a little delay


class JobsLost(Exception):
    """A job has neither ended nor a reason why not. This is a bug in the simulator."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a simulation. Times are NaN if no job finished."""

    jobs: int
    finished: int
    makespan_s: float
    avg_turnaround_s: float
    p50_turnaround_s: float
    p90_turnaround_s: float
    p99_turnaround_s: float
    avg_queueing_s: float
    utilization: float  # mean utilization of all devices over the makespan
    preemptions: int
    events: int  # arrivals, starts and stops
    allocation: float  # held part of all devices over the makespan
    moves: int
    losses: int
    impossible: int
    unfinished: int
    ooms: int  # attempts that ran out of memory
    memory_use: float  # truly used part of all device memory over the makespan; NaN if no job states any
    decisions: int
    policy_error: str
    deadlines: int  # jobs that have one
    deadlines_missed: int
    avg_comm_s: float  # time that a job lost to the network
    comm: float  # the part of the time on devices that jobs lost to the network
    attempts_in_node: int
    attempts_in_rack: int  # on several nodes of one rack
    attempts_across_racks: int


def summarize(simulation: Simulation, use: DeviceUse | None = None) -> Summary:
    """Compute the figures of a simulation. Raises JobsLost if a job has no outcome.

    `use` is the result of `device_use`, if the caller has computed it already.
    """
    ended = [job for job in simulation.jobs if job.ended is not None]
    outcomes = [outcome(job) for job in simulation.jobs]
    finished, impossible = outcomes.count(FINISHED), outcomes.count(IMPOSSIBLE)
    unfinished = outcomes.count(UNFINISHED)
    if finished + impossible + unfinished != len(simulation.jobs):
        lost = [job.arrival.job.id for job in simulation.jobs if not outcome(job)]
        raise JobsLost(
            f"{len(lost)} of {len(simulation.jobs)} jobs have no outcome: {', '.join(lost[:5])} ..."
        )
    use = use or device_use(simulation)
    turnarounds = np.sort(turnarounds_s(simulation))
    makespan_s = makespan(ended)
    capacity = use.devices * makespan_s
    missed = [missed_deadline(job) for job in simulation.jobs]
    tiers = Counter(attempt.tier for attempt in simulation.attempts)
    comm_s, ran_s = math.fsum(job.comm_s for job in ended), math.fsum(job.ran_s for job in ended)
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
        ooms=simulation.ooms,
        memory_use=memory_use(simulation, makespan_s),
        decisions=simulation.decisions,
        policy_error=simulation.policy_error,
        deadlines=len(missed) - missed.count(None),
        deadlines_missed=missed.count(True),
        avg_comm_s=comm_s / len(ended) if ended else math.nan,
        comm=comm_s / ran_s if ran_s else math.nan,
        attempts_in_node=tiers[Tier.NODE],
        attempts_in_rack=tiers[Tier.RACK],
        attempts_across_racks=tiers[Tier.CLUSTER],
    )


def outcome(job: JobResult) -> str:
    """Return the outcome of a job; empty if it is unknown, which is a bug."""
    if job.ended is not None:
        return FINISHED if job.reason is None else ""
    if job.reason is None:
        return ""
    return IMPOSSIBLE if job.reason.code == "impossible" else UNFINISHED


def missed_deadline(job: JobResult) -> bool | None:
    """Whether the job ended after its deadline or did not end; None if it has no deadline."""
    deadline = job.arrival.job.deadline
    if deadline is None:
        return None
    return job.ended is None or job.ended > deadline + CLOCK_NOISE_S


def makespan(ended: Sequence[JobResult]) -> float:
    """Return the time from the first submission to the last end."""
    ends = [job.ended for job in ended if job.ended is not None]
    return max(ends) - min(job.arrival.job.submitted for job in ended) if ends else math.nan


def turnarounds_s(simulation: Simulation) -> Floats:
    """Return the turnarounds of the finished jobs in arrival order."""
    return np.array([job.turnaround_s for job in simulation.jobs if job.ended is not None])


def memory_use(simulation: Simulation, makespan_s: float) -> float:
    """Return the mean part of all device memory that jobs truly needed while they held it; NaN if no job or
    no device states its memory. A job that ran out of memory had no more than its device has."""
    needs = {job.arrival.job.id: job.arrival.true_memory_mb for job in simulation.jobs}
    capacity = makespan_s * sum(device.memory_mb for device in all_devices(simulation.nodes))
    if not capacity or not any(needs.values()):
        return math.nan
    used = math.fsum(
        (attempt.ended - attempt.started) * min(needs[attempt.job_id], device.memory_mb)
        for attempt in simulation.attempts
        for device in attempt.devices
    )
    return used / capacity


def _mean(values: Floats) -> float:
    return math.fsum(values) / len(values) if len(values) else math.nan


def _percentile(ascending: Floats, percent: int) -> float:
    rank = -(-len(ascending) * percent // 100)
    return float(ascending[rank - 1]) if rank else math.nan


# -- a row for every job ----------------------------------------------------------------------

JOB_COLUMNS = (
    *("job_id", "user", "gpus", "submit", "start", "end", "turnaround", "queueing"),
    *("communication", "attempts", "devices", "outcome", "reason", "deadline", "priority", "missed"),
)


def job_rows(simulation: Simulation) -> Iterator[tuple[object, ...]]:
    """Yield the values of JOB_COLUMNS for each job in arrival order; None for a value that is missing."""
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
            result.comm_s,
            result.attempts,
            [device.id for device in result.devices],
            outcome(result),
            str(result.reason or ""),
            job.deadline,
            job.priority,
            missed_deadline(result),
        )


# -- devices over time ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class DeviceUse:
    """When devices were held. Each entry of the arrays is an interval in which one device has the same
    holders."""

    devices: int  # number of devices in the cluster
    device: NDArray[np.int64]  # number of the device, node by node
    since: Floats
    until: Floats
    load: Floats  # utilization of the device by all its jobs, 0 to 1

    @property
    def held_s(self) -> float:
        """Held device-seconds. A device that several jobs share counts once."""
        return float((self.until - self.since).sum())

    @property
    def busy_s(self) -> float:
        return float(((self.until - self.since) * self.load).sum())

    def over_time(self, edges: Floats) -> Floats:
        """Return the mean utilization of all devices between each two edges, from 0 to 1."""
        times = np.concatenate([self.since, self.until])
        order = np.argsort(times)
        times, busy = times[order], np.concatenate([self.load, -self.load])[order].cumsum()
        done = np.concatenate([[0.0], (busy[:-1] * np.diff(times)).cumsum()])  # busy device-seconds so far
        share = np.diff(np.interp(edges, times, done)) / np.diff(edges) / self.devices
        return np.asarray(np.clip(share, 0.0, 1.0), float)


def device_use(simulation: Simulation) -> DeviceUse:
    """Compute when each device was held and how much it was used. Every start or stop on a device ends
    one interval and begins another."""
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
    # no job is left after the last stop on a device, so no interval extends to the next device
    kept = np.flatnonzero(jobs[:-1] > 0) if len(jobs) else np.array([], int)
    return DeviceUse(len(numbers), device[kept], time[kept], time[kept + 1], np.clip(busy[kept], 0.0, 1.0))
