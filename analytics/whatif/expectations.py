"""What policies were told of running jobs from their progress, by the amount of work that was done then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_flows.analytics.whatif.costs import PoolCosts
from gpu_flows.analytics.whatif.record import RecordedJob
from gpu_flows.analytics.whatif.workload import attempt_speed, list_work
from gpu_flows.schedulers.prediction.told_end import ToldEnd
from gpu_flows.schedulers.simulation.told_progress import Told


def find_expectations(jobs: Sequence[RecordedJob], costs: PoolCosts) -> dict[str, list[Told]]:
    """Return what each job that reported its progress let expect."""
    return {each.job.id: list(_list_told(each, costs)) for each in jobs if each.reports}


def _list_told(each: RecordedJob, costs: PoolCosts) -> Iterator[Told]:
    done_s = 0.0
    for attempt, begin, work_s in list_work(each, each.attempts, costs):
        told, speed = ToldEnd(), attempt_speed(each, attempt)
        for report in each.reports:
            if report.attempt == attempt.number and told.update(report.time, report.remaining_s):
                yield Told(done_s + max(0.0, report.time - begin) * speed, report.remaining_s * speed)
        done_s += work_s
