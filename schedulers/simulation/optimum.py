"""The best possible schedule, for small cases of about a dozen jobs.

Tests check `bounds` against it, and policies can be compared with it. Google's CP-SAT searches for the
schedule and proves that no other is better. The model covers what most policies do: a job holds all its
devices at the same time, as whole devices, without interruption, and on one node unless it may span nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

from gpu_flows.schedulers.model import Job, Node
from gpu_flows.schedulers.workload import Arrival

Objective = Literal["makespan_s", "mean_turnaround_s"]  # the names of the fields of `Bounds`


@dataclass(frozen=True, slots=True)
class Placed:
    """When a job runs, and how many devices it holds on which nodes."""

    job: Job
    start: float
    end: float
    gpus: dict[str, int]


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best schedule found. `proven` states whether the solver has proven that no other is better."""

    value: float
    schedule: tuple[Placed, ...]
    proven: bool
    seconds_limit: float


def optimum(
    arrivals: Sequence[Arrival],
    nodes: Sequence[Node],
    objective: Objective = "makespan_s",
    seconds_limit: float = 10.0,
) -> Optimum:
    """Find the schedule with the smallest makespan or mean turnaround, to the millisecond."""
    cp_sat = _import_cp_sat()
    for arrival in arrivals:
        _check_supported(arrival.job, nodes)
    if not arrivals:
        return Optimum(0.0, (), True, seconds_limit)

    first = min(arrival.job.submitted for arrival in arrivals)
    ticks = _ticks_per_second([time for a in arrivals for time in (a.job.submitted - first, a.duration_s)])
    releases = [round((arrival.job.submitted - first) * ticks) for arrival in arrivals]
    lengths = [round(arrival.duration_s * ticks) for arrival in arrivals]
    horizon = max(releases) + sum(lengths)  # enough to run one job after the other

    model = cp_sat.CpModel()
    starts = [model.new_int_var(release, horizon, "") for release in releases]
    ends = [start + length for start, length in zip(starts, lengths, strict=True)]
    last = model.new_int_var(0, horizon, "")
    model.add_max_equality(last, ends)
    held = _add_devices(model, [arrival.job for arrival in arrivals], starts, lengths, nodes)
    model.minimize(last if objective == "makespan_s" else sum(ends))

    solver = cp_sat.CpSolver()
    solver.parameters.max_time_in_seconds = seconds_limit
    solver.parameters.num_workers = 1  # for the same result every time
    solver.parameters.linearization_level = 2  # proves mean turnarounds several times faster
    status = solver.solve(model)
    if status not in (cp_sat.OPTIMAL, cp_sat.FEASIBLE):
        raise RuntimeError(
            f"The exact optimum found no schedule in {seconds_limit:g} s: take fewer jobs, "
            "or leave out --optimum."
        )
    schedule = []
    for arrival, start, length, counts in zip(arrivals, starts, lengths, held, strict=True):
        begin = solver.value(start)
        gpus = {node.name: solver.value(count) for node, count in zip(nodes, counts, strict=True)}
        on = {name: number for name, number in gpus.items() if number}
        schedule.append(Placed(arrival.job, first + begin / ticks, first + (begin + length) / ticks, on))
    return Optimum(_evaluate(schedule, objective), tuple(schedule), status == cp_sat.OPTIMAL, seconds_limit)


def _import_cp_sat() -> ModuleType:
    """Import the solver, which is an optional dependency."""
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise ImportError(
            "The exact optimum needs OR-Tools, which is not installed: pip install 'gpu-flows[optimum]'"
        ) from error
    return cp_model


def _check_supported(job: Job, nodes: Sequence[Node]) -> None:
    if job.memory_mb or job.min_gpus not in (0, job.gpus) or job.max_gpus not in (0, job.gpus):
        raise ValueError(
            f"Job {job.id} shares devices or is elastic, which the exact optimum does not model: "
            "leave out --optimum, or the columns gpu_memory_gb, min_gpus and max_gpus."
        )
    fitting = [sum(map(job.accepts, node.devices)) for node in nodes]
    if any(0 < fit < len(node.devices) for fit, node in zip(fitting, nodes, strict=True)):
        raise ValueError(
            f"Job {job.id} accepts only some devices of a node, which the exact optimum does not model: "
            "leave out --optimum, or declare the node as several, each with devices of one model."
        )
    if job.gpus > (sum(fitting) if job.may_span_nodes else max(fitting, default=0)):
        raise ValueError(
            f"Job {job.id} asks for {job.gpus} devices, which these nodes never have: leave out --optimum, "
            "or this job."
        )


def _ticks_per_second(times: Sequence[float]) -> int:
    """Return how many ticks of the solver make a second: the fewest that represent all times exactly, at
    most 1000."""
    return next((ticks for ticks in (1, 10, 100) if all(time * ticks % 1 == 0 for time in times)), 1000)


def _add_devices(
    model: Any, jobs: Sequence[Job], starts: Sequence[Any], lengths: Sequence[int], nodes: Sequence[Node]
) -> list[list[Any]]:
    """Limit each node to its devices. Return how many devices each job holds on each node.

    Counting is enough: if jobs never need more than n devices at the same time, n devices can be assigned
    to them.
    """
    runs = [model.new_fixed_size_interval_var(*run, "") for run in zip(starts, lengths, strict=True)]
    # redundant, but it speeds up the solver: the same limit for the whole cluster
    model.add_cumulative(runs, [job.gpus for job in jobs], sum(len(node.devices) for node in nodes))
    held: list[list[Any]] = [[] for _ in jobs]
    for node in nodes:
        here: list[Any] = []
        demands: list[Any] = []
        for job, start, length, run, counts in zip(jobs, starts, lengths, runs, held, strict=True):
            fits = all(map(job.accepts, node.devices))
            if job.may_span_nodes:
                counts.append(model.new_int_var(0, min(job.gpus, len(node.devices)) if fits else 0, ""))
                here.append(run)
                demands.append(counts[-1])
            else:
                present = model.new_int_var(0, int(fits and job.gpus <= len(node.devices)), "")
                counts.append(job.gpus * present)
                here.append(model.new_optional_fixed_size_interval_var(start, length, present, ""))
                demands.append(job.gpus)
        model.add_cumulative(here, demands, len(node.devices))
    for job, counts in zip(jobs, held, strict=True):
        model.add(sum(counts) == job.gpus)
    return held


def _evaluate(schedule: Sequence[Placed], objective: Objective) -> float:
    if objective == "makespan_s":
        return max(placed.end for placed in schedule) - min(placed.job.submitted for placed in schedule)
    return sum(placed.end - placed.job.submitted for placed in schedule) / len(schedule)
