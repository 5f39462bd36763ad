"""The figures of the jobs that count: of reality, and of each replay."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean

from gpu_flows.analytics.whatif.record import PoolRecord
from gpu_flows.analytics.whatif.workload import Workload
from gpu_flows.schedulers.model import Node, all_devices
from gpu_flows.schedulers.simulation.outcome import Attempt, JobResult, Simulation
from gpu_flows.schedulers.simulation.summary import Summary, outcome, summarize


@dataclass(frozen=True, slots=True)
class Figures:
    """Times are in seconds and of the jobs that finished; NaN if none did."""

    jobs: int
    finished: int
    makespan_s: float
    avg_turnaround_s: float
    p50_turnaround_s: float
    p90_turnaround_s: float
    avg_queueing_s: float
    allocation: float  # held part of all devices over the makespan, by these jobs
    preemptions: int  # of all jobs that were there
    moves: int

    @classmethod
    def of(cls, summary: Summary) -> Figures:
        return cls(**{each.name: getattr(summary, each.name) for each in fields(cls)})

    def change_from(self, base: Figures) -> dict[str, float | None]:
        """Return the relative change of each figure: 0.1 is a tenth more. None where there is no base."""
        pairs = {each.name: (getattr(self, each.name), getattr(base, each.name)) for each in fields(self)}
        return {
            name: value / before - 1 if before and math.isfinite(before) else None
            for name, (value, before) in pairs.items()
        }


@dataclass(frozen=True, slots=True)
class UserEffect:
    """What a scenario means for the jobs of a user."""

    user: str
    jobs: int
    avg_turnaround_s: float
    change_s: float | None  # of the mean turnaround, against the replay of what really ran; None for that


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How a job fared. It is the last attempt that ran on the devices."""

    job_id: str
    name: str
    user: str
    gpus: int
    submitted: float
    started: float | None
    ended: float | None
    ran_s: float
    attempts: int
    devices: tuple[str, ...]
    trouble: str  # why it did not finish


def as_recorded(record: PoolRecord, workload: Workload, nodes: Sequence[Node]) -> Simulation:
    """Return what really happened to the jobs that count, in the form of a simulation."""
    devices = {device.id: device for device in all_devices(nodes)}
    reality = Simulation("", nodes, [])
    for arrival in workload.arrivals:
        each = workload.jobs[arrival.job.id]
        if each.job.id not in workload.measured or each.ended is None:
            continue
        result = JobResult(arrival, each.attempts[0].started, each.ended, attempts=len(each.attempts))
        for attempt in each.attempts:
            # a process may end shortly after its job's last state; that time is not part of the job's
            end = max(attempt.started, min(attempt.until, each.ended))
            result.devices = tuple(devices[name] for name in attempt.devices if name in devices)
            result.ran_s += end - attempt.started
            number, outcome = attempt.number, attempt.outcome
            reality.attempts.append(
                Attempt(each.job.id, number, attempt.started, end, result.devices, outcome)
            )
        reality.jobs.append(result)
    stops = [
        attempt.outcome for each in record.jobs for attempt in each.attempts if attempt.until > record.began
    ]
    reality.preemptions = stops.count("preempted")
    reality.moves = stops.count("moved") + stops.count("resized")
    return reality


def only_measured(simulation: Simulation, workload: Workload) -> Simulation:
    """Return the part of a simulation that is about the jobs that count."""
    kept = Simulation(simulation.policy, simulation.nodes, [])
    kept.jobs = [result for result in simulation.jobs if result.arrival.job.id in workload.measured]
    kept.attempts = [attempt for attempt in simulation.attempts if attempt.job_id in workload.measured]
    kept.preemptions, kept.moves = simulation.preemptions, simulation.moves
    kept.policy_error = simulation.policy_error
    return kept


def figures(simulation: Simulation) -> Figures:
    return Figures.of(summarize(simulation))


def list_jobs(simulation: Simulation) -> list[JobOutcome]:
    return [
        JobOutcome(
            job_id=result.arrival.job.id,
            name=result.arrival.job.name or result.arrival.job.id,
            user=result.arrival.job.user,
            gpus=result.arrival.job.gpus,
            submitted=result.arrival.job.submitted,
            started=result.started,
            ended=result.ended,
            ran_s=result.ran_s,
            attempts=result.attempts,
            devices=tuple(device.id for device in result.devices),
            trouble=f"{outcome(result)}: {result.reason}" if result.reason else "",
        )
        for result in simulation.jobs
    ]


def effects_on_users(simulation: Simulation, baseline: Simulation | None) -> list[UserEffect]:
    """Return what every user gains or loses, those who gain most first."""
    own, before = _turnarounds(simulation), _turnarounds(baseline) if baseline else {}
    effects = list(_compare(own, before, baseline is not None))
    return sorted(effects, key=lambda effect: (effect.change_s or 0.0, effect.user))


def _compare(
    own: Mapping[str, Mapping[str, float]], before: Mapping[str, Mapping[str, float]], has_base: bool
) -> Iterator[UserEffect]:
    """Compare the jobs that finished in both."""
    for user, turnarounds in own.items():
        known = before.get(user, {})
        both = [job_id for job_id in turnarounds if job_id in known]
        change = fmean(turnarounds[each] - known[each] for each in both) if both else None
        yield UserEffect(user, len(turnarounds), fmean(turnarounds.values()), change if has_base else None)


def _turnarounds(simulation: Simulation) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for result in simulation.jobs:
        if result.ended is not None:
            job = result.arrival.job
            found.setdefault(job.user, {})[job.id] = result.turnaround_s
    return found
