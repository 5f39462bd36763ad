"""The optimum of tiny workloads with preemption, moves, sharing and resizing, by brute force."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations, product

import numpy as np
from scipy.optimize import linprog

from gpu_flows.schedulers.model import Device, Node, all_devices
from gpu_flows.schedulers.simulation.bounds import Speed
from gpu_flows.schedulers.simulation.optimum import Objective
from gpu_flows.schedulers.workload import Arrival

OBJECTIVES: tuple[Objective, ...] = ("makespan_s", "mean_turnaround_s")


def find_preemptive_optimum(
    arrivals: Sequence[Arrival], nodes: list[Node], speed: Speed
) -> dict[Objective, float]:
    """Find the optimum by brute force: for every order of all arrivals and ends, let a linear program divide
    the time in between among all combinations of jobs and devices that may run at the same time."""
    best = dict.fromkeys(OBJECTIVES, float("inf"))
    combos = list(list_combinations(arrivals, nodes, speed))
    for events in _list_event_orders(arrivals):
        for objective in OBJECTIVES:
            best[objective] = min(best[objective], _divide_time(arrivals, events, combos, objective))
    return best


Combination = dict[int, float]  # number of the job -> work that it does per second
Event = tuple[str, int]


def list_combinations(arrivals: Sequence[Arrival], nodes: list[Node], speed: Speed) -> Iterator[Combination]:
    """Yield every combination of jobs and devices that may run at the same time."""
    ways: list[list[tuple[Device, ...]]] = []
    for job in (arrival.job for arrival in arrivals):
        sizes = range(job.min_gpus or job.gpus, (job.max_gpus or job.gpus) + 1)
        gangs = [
            gang for size in sizes for gang in combinations(filter(job.accepts, all_devices(nodes)), size)
        ]
        ways.append([(), *(gang for gang in gangs if job.may_span_nodes or len({d.node for d in gang}) == 1)])
    for gangs in product(*ways):
        if any(gangs) and all(_fits(arrivals, gangs, device) for device in all_devices(nodes)):
            yield {
                number: min(speed(arrivals[number].job, device.model, len(gang)) for device in gang)
                for number, gang in enumerate(gangs)
                if gang
            }


def _fits(arrivals: Sequence[Arrival], gangs: Sequence[tuple[Device, ...]], device: Device) -> bool:
    shares = [arrival.job.memory_mb for arrival, gang in zip(arrivals, gangs, strict=True) if device in gang]
    return len(shares) < 2 or (all(shares) and sum(shares) <= device.memory_mb)


def _list_event_orders(arrivals: Sequence[Arrival]) -> Iterator[list[Event]]:
    """Yield every order of the ends, merged in every way with the arrivals."""
    numbers = sorted(range(len(arrivals)), key=lambda number: arrivals[number].job.submitted)
    for ends in permutations(numbers):
        for slots in combinations(range(2 * len(numbers)), len(numbers)):
            next_arrivals, next_ends = iter(numbers), iter(ends)
            events = [
                ("end", next(next_ends)) if s in slots else ("arrival", next(next_arrivals))
                for s in range(2 * len(numbers))
            ]
            if all(events.index(("arrival", number)) < events.index(("end", number)) for number in numbers):
                yield events


def _divide_time(
    arrivals: Sequence[Arrival], events: list[Event], combos: list[Combination], objective: Objective
) -> float:
    """Solve the linear program. Its variables are how long each combination runs between two events, and
    the time between them."""
    gaps = len(events) - 1
    columns: list[tuple[int, Combination]] = [
        (gap, combination)
        for gap in range(gaps)
        for combination in combos
        if all(events.index(("arrival", n)) <= gap < events.index(("end", n)) for n in combination)
    ]
    width = len(columns) + gaps
    worked = np.zeros((len(arrivals), width))
    filled = np.zeros((gaps, width))
    for column, (gap, combination) in enumerate(columns):
        filled[gap, column] = 1
        for number, rate in combination.items():
            worked[number, column] = rate
    filled[:, len(columns) :] = -np.eye(gaps)

    def time_of(event: Event) -> np.ndarray:
        return np.concatenate([np.zeros(len(columns)), np.arange(gaps) < events.index(event)])

    first = min(arrival.job.submitted for arrival in arrivals)
    numbers = range(len(arrivals))
    solution = linprog(
        time_of(events[-1])
        if objective == "makespan_s"
        else sum(time_of(("end", n)) for n in numbers) / len(arrivals),
        A_ub=filled,
        b_ub=np.zeros(gaps),
        A_eq=np.vstack([worked, *(time_of(("arrival", n)) for n in numbers)]),
        b_eq=[arrival.duration_s for arrival in arrivals]
        + [arrival.job.submitted - first for arrival in arrivals],
    )
    if not solution.success:
        return float("inf")
    mean_submitted = (
        0.0 if objective == "makespan_s" else np.mean([arrival.job.submitted - first for arrival in arrivals])
    )
    return float(solution.fun - mean_submitted)
