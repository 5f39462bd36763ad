"""The recorded jobs as a workload: when each entered the queue, and how much work it was.

What a job did on its devices counts as its work, without the time that it took to launch, to load a
checkpoint, and to repeat or to save what a preemption interrupted: the replay adds these again wherever its
policy stops a job. Work counts for the number of devices that the job asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from gpu_flows.analytics.whatif.costs import PoolCosts, Waits, find_waits, launch_s, release_s
from gpu_flows.analytics.whatif.record import STOPPED, PoolRecord, RecordedAttempt, RecordedJob
from gpu_flows.schedulers.model import NO_PROGRESS, Progress
from gpu_flows.schedulers.workload import Arrival

RUNS, WAITS = "run", "wait"  # what jobs still do whose duration is estimated


@dataclass(frozen=True, slots=True)
class Workload:
    arrivals: list[Arrival]
    jobs: dict[str, RecordedJob]  # by id
    measured: set[str]  # the jobs that count in the figures
    cancelled: dict[str, float]  # job id -> when it was cancelled while it waited
    left_out: Counter[str] = field(default_factory=Counter)  # why jobs that count otherwise do not
    estimated: Counter[str] = field(
        default_factory=Counter
    )  # jobs with an estimated duration, by what they still do


def build_workload(record: PoolRecord, costs: PoolCosts) -> Workload:
    """Return what the replay runs. The jobs that count in the figures are those that ran and ended."""
    waits = find_waits(record.jobs)
    found = Workload([], {each.job.id: each for each in record.jobs}, set(), {})
    lasted = [work_s(each, costs) for each in record.jobs if each.has_run]
    typical_s = median(lasted) if lasted else 0.0
    for each in record.jobs:
        duration_s = _find_duration(each, costs, typical_s, found)
        if duration_s is None:
            continue
        if each.has_run and each.counts and not each.ran_after_end:
            found.measured.add(each.job.id)
        queued = each.queued if each.entered > each.job.submitted else None
        found.arrivals.append(
            Arrival(
                each.job,
                duration_s,
                launch_s=_find_launch(each, waits, costs),
                release_s=_find_release(each, costs),
                queued=queued,
            )
        )
    return found


def _find_duration(each: RecordedJob, costs: PoolCosts, typical_s: float, found: Workload) -> float | None:
    """Return the duration with which a job takes part; None if it does not. Note why it does not count."""
    left_out = found.left_out if each.counts else Counter[str]()
    if each.ended is None:
        left_out["has not ended"] += 1
        if each.attempts:
            so_far_s = work_s(each, costs)
            found.estimated[RUNS] += 1
            return max(so_far_s, each.job.expected_s or 0.0)
        found.estimated[WAITS] += 1
        return each.job.expected_s or typical_s
    if each.attempts:
        if not each.job.gpus:
            left_out["holds no device"] += 1
        elif each.ran_after_end:  # how long it was nobody's job is not part of its turnaround
            left_out["was run again after its end"] += 1
        return work_s(each, costs)
    if each.outcome == "cancelled":
        left_out["was cancelled while it waited"] += 1
        found.cancelled[each.job.id] = each.ended
        return each.job.expected_s or typical_s
    left_out[f"never ran: {each.outcome}"] += 1
    return None


def work_s(each: RecordedJob, costs: PoolCosts) -> float:
    """Return how much work a job did in all its attempts."""
    return sum(work_s for *_, work_s in list_work(each, each.attempts, costs))


def progress_at(each: RecordedJob, time: float, costs: PoolCosts) -> Progress:
    """Return how far a job had come in the attempts that had ended by then."""
    done = [attempt for attempt in each.attempts if attempt.until <= time]
    if not done:
        return NO_PROGRESS
    return Progress(
        attempts=done[-1].number,
        ran_s=sum(attempt.until - attempt.started for attempt in done),
        gpu_s=sum((attempt.until - attempt.started) * len(attempt.devices) for attempt in done),
        work_s=sum(work_s for *_, work_s in list_work(each, done, costs)),
        stopped=done[-1].until,
        preemptions=sum(attempt.outcome == "preempted" for attempt in done),
    )


def list_work(
    each: RecordedJob, attempts: Sequence[RecordedAttempt], costs: PoolCosts
) -> Iterator[tuple[RecordedAttempt, float, float]]:
    """Yield each attempt with when it began to work, and how much it did. What it took to go on after a crash
    counts as work, too: no policy can avoid it."""
    is_restart = False
    for attempt in attempts:
        begin, end = attempt.started, attempt.until
        if is_restart:
            begin = begin + costs.restart.seconds if attempt.restored is None else attempt.restored
        is_restart = attempt.outcome in STOPPED
        if is_restart:
            end = min(end - attempt.lost_s, attempt.requested or end)
        yield attempt, begin, max(0.0, end - begin) * attempt_speed(each, attempt)


def attempt_speed(each: RecordedJob, attempt: RecordedAttempt) -> float:
    """Return how fast an attempt worked, relative to one on the devices that the job asked for."""
    return len(attempt.devices) / each.job.gpus if each.job.gpus and attempt.devices else 1.0


def _find_launch(each: RecordedJob, waits: Waits, costs: PoolCosts) -> float:
    """Return the median of the job's own launches; that of the pool if it was never launched."""
    own = [launch_s(each.job.id, attempt, waits) for attempt in each.attempts]
    return median(own) if own else costs.launch.seconds


def _find_release(each: RecordedJob, costs: PoolCosts) -> float:
    own = release_s(each.attempts[-1]) if each.attempts else None
    return costs.release.seconds if own is None else own
