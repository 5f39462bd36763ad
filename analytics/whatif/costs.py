"""What launching, releasing, stopping and restarting jobs took in a pool: medians of what it recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from gpu_flows.analytics.whatif.record import PoolRecord, RecordedAttempt, RecordedJob

Waits = Mapping[tuple[str, float], float]
"""When the devices of a planned launch were free: by the job and the moment of the plan."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A median, and how many events it is taken over; 0 seconds if there was none."""

    seconds: float = 0.0
    events: int = 0

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Measured:
        known = [max(0.0, value) for value in values if value is not None]
        return cls(median(known), len(known)) if known else cls()


@dataclass(frozen=True, slots=True)
class PoolCosts:
    """What the steps of an attempt take."""

    launch: Measured  # from the plan, or when its devices were free, until its process exists
    release: Measured  # from its end until its devices are free
    stop: Measured  # from the decision to preempt it until its devices are free
    report: Measured  # from then until it waits again
    restart: Measured  # until a job that runs again has loaded its checkpoint
    migration: Measured  # how much longer that takes on other nodes
    lost: Measured  # work that was not saved when a job was preempted


def measure_costs(record: PoolRecord) -> PoolCosts:
    """Take the costs of launches from the jobs of the record, those of preemptions from the whole pool."""
    waits, stops = find_waits(record.jobs), record.interruptions
    attempts = [(job.job.id, attempt) for job in record.jobs for attempt in job.attempts]
    here = Measured.of(row["restart_s"] for row in stops if not row["is_migration"])
    elsewhere = Measured.of(row["restart_s"] for row in stops if row["is_migration"])
    return PoolCosts(
        launch=Measured.of(launch_s(job_id, attempt, waits) for job_id, attempt in attempts),
        release=Measured.of(release_s(attempt) for _, attempt in attempts if not attempt.requested),
        stop=Measured.of(row["stop_s"] for row in stops),
        report=Measured.of(row["report_s"] for row in stops),
        restart=here if here.events else elsewhere,
        migration=Measured(max(0.0, elsewhere.seconds - here.seconds), elsewhere.events)
        if here.events and elsewhere.events
        else Measured(),
        lost=Measured.of(row["lost_s"] for row in stops),
    )


def find_waits(jobs: Iterable[RecordedJob]) -> dict[tuple[str, float], float]:
    """Return until when planned launches had to wait for jobs that were preempted for them."""
    waits: dict[tuple[str, float], float] = {}
    for job_id, requested, free in _list_stops(jobs):
        waits[job_id, requested] = max(free, waits.get((job_id, requested), free))
    return waits


def _list_stops(jobs: Iterable[RecordedJob]) -> Iterator[tuple[str, float, float]]:
    """Yield the jobs for which others made room, when that was requested, and when it was done."""
    for job in jobs:
        for attempt in job.attempts:
            if attempt.requested is not None:
                free = attempt.until if attempt.released is None else attempt.released
                for other in attempt.freed_for:
                    yield other, attempt.requested, free
                yield job.job.id, attempt.requested, attempt.requeued or free


def launch_s(job_id: str, attempt: RecordedAttempt, waits: Waits) -> float:
    """Return how long it took to launch an attempt once its devices were free."""
    begins = max(attempt.planned, waits.get((job_id, attempt.planned), attempt.planned))
    return max(0.0, attempt.started - begins)


def release_s(attempt: RecordedAttempt) -> float | None:
    """Return how long an attempt held its devices after its end; None if that is not recorded."""
    return None if attempt.released is None else max(0.0, attempt.released - attempt.until)
