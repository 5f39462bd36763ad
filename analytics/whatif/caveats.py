"""What a replay knew, what it measured, and what it assumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from gpu_flows.analytics.whatif.costs import Measured, PoolCosts
from gpu_flows.analytics.whatif.record import STOPPED, PoolRecord, RecordedJob
from gpu_flows.analytics.whatif.running import policies_in_force
from gpu_flows.analytics.whatif.workload import WAITS, Workload
from gpu_flows.schedulers.model import all_devices
from gpu_flows.schedulers.policy import policies
from gpu_flows.schedulers.simulation.outcome import Simulation

HELD_S = 5.0  # a job that entered the queue later than this after its submission was held back


def list_caveats(
    record: PoolRecord, workload: Workload, costs: PoolCosts, simulations: Sequence[Simulation]
) -> tuple[list[str], list[str]]:
    """Return what is known, and what is assumed, each in sentences."""
    stops = any(simulation.preemptions + simulation.moves for simulation in simulations)
    known = [*_known_jobs(record, workload), *_known_costs(costs, stops)]
    assumed = [
        *_assumed_of_jobs(record, workload),
        *_assumed_of_costs(record, workload, costs, stops),
        *_assumed_of_policies(record, simulations),
        *_assumed_of_devices(record, simulations),
    ]
    return known, assumed


def _known_jobs(record: PoolRecord, workload: Workload) -> Iterator[str]:
    count = len(workload.measured)
    yield f"{_jobs(count)} with recorded durations; figures are of these."
    others = len(workload.arrivals) - count
    if others:
        are = _form(others, "is", "are")
        yield f"{_jobs(others, 'other job')} that competed with them {are} replayed and not counted."
    if told := sum(bool(each.reports) for each in record.counted):
        their, have = _form(told, "its", "their"), _form(told, "it has", "they have")
        yield f"{_jobs(told)} told {their} progress: policies are told the same when {have} done as much."
    for why, number in workload.left_out.items():
        yield f"{_jobs(number)} not counted: {why}."


def _known_costs(costs: PoolCosts, stops: bool) -> Iterator[str]:
    yield _measured("Launching a job", costs.launch, "each job's own where it was launched")
    if costs.release.events:
        yield _measured("Freeing devices after a job", costs.release, "each job's own")
    if not stops:
        return
    if costs.stop.events:
        yield _measured("Stopping a job", costs.stop)
    if costs.restart.events:
        yield _measured("Loading a checkpoint", costs.restart)
    if costs.lost.seconds:
        yield _measured("Work lost by a stop", costs.lost)


def _measured(what: str, cost: Measured, how: str = "") -> str:
    of = f"median of {cost.events:,}" + (f"; {how}" if how else "")
    return f"{what} takes {cost.seconds:.3g} s ({of})."


def _assumed_of_jobs(record: PoolRecord, workload: Workload) -> Iterator[str]:
    took_part = [workload.jobs[arrival.job.id] for arrival in workload.arrivals]
    if number := sum(not each.is_complete and each.has_run for each in took_part):
        yield (
            f"{_jobs(number)} recorded before gpu-flows kept what jobs ask for: nodes, GPU models,"
            " priorities of work queues and elastic sizes of these are not known."
        )
    for why, number in workload.estimated.items():
        guess = "or as the typical job" if why == WAITS else "at least as long as so far"
        verb = _form(number, f"{why}s", why)
        yield f"{_jobs(number)} that still {verb}: as long as expected, {guess}."
    if workload.cancelled:
        number = len(workload.cancelled)
        leave, run = _form(number, "leaves", "leave"), _form(number, "it runs", "they run")
        yield f"{_jobs(number, 'cancelled job')} {leave} at the time of the cancellation, also if {run}."
    held = [each for each in took_part if each.counts and each.entered - each.job.submitted > HELD_S]
    if held:
        yield (
            f"{_jobs(len(held))} entered the queue later than submitted (limits, holds, dependencies, or no"
            " worker): in the replay, too."
        )
    breaks = Counter(why for each in took_part for why in _list_breaks(each))
    for why, number in breaks.items():
        yield f"{_jobs(number)} {why}: in the replay {_form(number, 'goes', 'go')} on without that break."


def _list_breaks(each: RecordedJob) -> set[str]:
    """Return why a job was off its devices between attempts, other than by a decision of a policy."""
    if each.ran_after_end:
        return {"run again after the end"}
    return {
        "suspended by people" if attempt.outcome == "suspended" else "run again after a failure"
        for attempt, following in pairwise(each.attempts)
        if attempt.outcome not in STOPPED and following.planned > attempt.until
    }


def _assumed_of_costs(record: PoolRecord, workload: Workload, costs: PoolCosts, stops: bool) -> Iterator[str]:
    if not costs.release.events:
        yield "Devices are free the moment a job ends: this was not recorded."
    if stops and not costs.stop.events:
        yield "Stopping and restarting a job costs nothing: none was ever stopped in this pool."
    elif stops and not costs.restart.events:
        yield "Restarting a job costs its launch only: no job reported that it loaded a checkpoint."
    if stops and not costs.lost.seconds:
        yield "A job that is preempted keeps its work."


def _assumed_of_policies(record: PoolRecord, simulations: Sequence[Simulation]) -> Iterator[str]:
    yield "What a policy keeps in mind from before the period is not known."
    ran = {simulation.policy for simulation in simulations}
    needs = {need for name, policy in policies().items() if name in ran for need in policy.needs}
    unknown = sum(each.job.expected_s is None and not each.reports for each in record.counted if each.has_run)
    if "expected duration" in needs and unknown:
        yield (
            f"{_jobs(unknown)} had no expected duration, neither stated nor predicted: policies that need one"
            f" take {_form(unknown, 'it', 'them')} for endless."
        )
    if not record.protections:
        yield "Jobs are protected from preemption as by default: the settings were not recorded."
    if len(policies_in_force(record)) > 1:
        yield "The replay of what ran changes the policy at the recorded times."


def _assumed_of_devices(record: PoolRecord, simulations: Sequence[Simulation]) -> Iterator[str]:
    if len({device.model for device in all_devices(simulations[0].nodes)}) > 1:
        yield "A job takes as long on any GPU model."
    if any(each.job.least != each.job.most for each in record.jobs):
        yield "Twice the devices are twice as fast for jobs that can be resized."
    if any(each.job.may_span_nodes for each in record.jobs):
        yield "A job is as fast on several nodes as on one."
    if any(each.job.memory_mb for each in record.jobs):
        yield "Jobs that share a device do not slow each other down."
    yield "Devices are away when they were recorded as sick or gone; drained nodes were not recorded."


def _jobs(number: int, noun: str = "job") -> str:
    return f"{number:,} {_form(number, noun, f'{noun}s')}"


def _form(number: int, of_one: str, of_many: str) -> str:
    return of_one if number == 1 else of_many
