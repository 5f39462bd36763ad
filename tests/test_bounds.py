"""No schedule beats a bound: neither the best there is, found in three unrelated ways, nor any other."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.model import Device, Job, Node, all_devices
from gpu_flows.schedulers.simulation.bounds import Speed, bounds
from gpu_flows.schedulers.simulation.optimum import Objective, Placed, optimum
from gpu_flows.schedulers.workload import Arrival

OBJECTIVES: tuple[Objective, ...] = ("makespan_s", "mean_turnaround_s")
NOISE = 1e-6

unhurried = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def arrival(number: int, duration: float, gpus: int = 1, submitted: float = 0, **ask: Any) -> Arrival:
    return Arrival(Job(id=f"job{number}", submitted=submitted, gpus=gpus, **ask), duration)


# -- where a bound can be met, it is ----------------------------------------------------------------


def test_a_job_alone_is_bounded_by_its_own_time() -> None:
    found = bounds([arrival(0, 70, gpus=3, submitted=1_000)], declare("2x4"))
    assert (found.makespan_s, found.mean_turnaround_s) == (70, 70)
    assert found.why_makespan == "job job0 arrives at second 0 and runs for 70 s"
    assert found.why_turnaround == "each job's fastest time"


def test_on_one_gpu_the_shortest_first_is_met() -> None:
    found = bounds([arrival(number, duration) for number, duration in enumerate((5, 1, 3))], declare("1x1"))
    assert found.makespan_s == pytest.approx(9)
    assert found.mean_turnaround_s == pytest.approx((1 + 4 + 9) / 3)


def test_on_one_gpu_the_least_left_first_is_met_when_jobs_come_later() -> None:
    jobs = [arrival(0, 10), arrival(1, 2, submitted=3), arrival(2, 4, submitted=9)]
    found = bounds(jobs, declare("1x1"))
    assert found.mean_turnaround_s == pytest.approx((12 + 2 + 7) / 3)
    assert "least remaining work first" in found.why_turnaround


def test_work_that_fills_the_cluster_to_the_brim_is_met() -> None:
    found = bounds([arrival(number, 10, gpus=2) for number in range(6)], declare("1x4"))
    assert found.makespan_s == pytest.approx(30)
    assert found.why_makespan == "30 s of work for 4 GPUs are left at second 0"


def test_work_that_comes_late_cannot_have_been_done_before() -> None:
    # at second 100 the first job must still have half its time to go, on one of two GPUs
    jobs = [arrival(0, 200), *(arrival(number, 60, submitted=100) for number in range(1, 6))]
    assert bounds(jobs, declare("1x2")).makespan_s == pytest.approx(100 + (100 + 5 * 60) / 2)


def test_jobs_of_more_than_half_the_cluster_run_one_after_the_other() -> None:
    wide = [arrival(number, 10, gpus=5, may_span_nodes=True) for number in range(3)]
    found = bounds(wide, declare("2x4"))
    assert found.makespan_s == pytest.approx(30)
    assert "a cluster that holds one large job at a time" in found.why_makespan


def test_jobs_of_more_than_half_a_node_have_it_alone() -> None:
    jobs = [arrival(number, 10, gpus=3) for number in range(4)]
    assert bounds(jobs, declare("2x4")).makespan_s == pytest.approx(20)
    # three GPUs of eight: two such jobs to a node
    jobs = [arrival(number, 10, gpus=3) for number in range(8)]
    assert bounds(jobs, declare("2x8")).makespan_s == pytest.approx(20)


def test_jobs_that_share_a_device_cost_their_share_of_it() -> None:
    nodes = declare("1x1:A100:40")
    assert bounds([arrival(n, 10, memory_mb=20 * 1024) for n in range(4)], nodes).makespan_s == pytest.approx(
        20
    )
    assert bounds([arrival(n, 10) for n in range(4)], nodes).makespan_s == pytest.approx(40)


def test_an_elastic_job_may_take_all_it_can() -> None:
    jobs = [arrival(0, 80, gpus=2, min_gpus=1, max_gpus=4)]
    assert bounds(jobs, declare("1x8")).makespan_s == 40
    assert bounds(jobs, declare("1x3")).makespan_s == pytest.approx(80 * 2 / 3)
    # with gains that shrink, more devices are faster and cost more: a crowd of jobs rather takes few
    found = bounds(
        [arrival(n, 80, min_gpus=1, max_gpus=4) for n in range(8)],
        declare("1x4"),
        speed=lambda job, model, gpus: gpus**0.5,
    )
    assert found.makespan_s == pytest.approx(8 * 80 / 4)


def speed_by_kind(job: Job, model: str, gpus: int) -> float:
    return {("cnn", "V100"): 4.0, ("rnn", "V100"): 2.0}.get((job.kind, model), 1.0) * gpus / job.gpus


def test_faster_models_go_to_the_jobs_that_gain_most() -> None:
    # On V100s the cnn jobs take 2 x 100 / 4 = 50 s, on K80s the rnn jobs 2 x 25 = 50 s: no split is better,
    # though the average GPU would promise less.
    jobs = [arrival(n, 100, kind="cnn") for n in range(2)] + [
        arrival(2 + n, 25, kind="rnn") for n in range(2)
    ]
    found = bounds(jobs, declare("1x1:V100:16+1x1:K80:12"), speed_by_kind)
    assert found.makespan_s == pytest.approx(50)


def test_a_gang_of_two_models_waits_for_its_slower_half() -> None:
    nodes = declare("1x1:V100:16+1x1:K80:12")
    jobs = [arrival(0, 100, gpus=2, kind="cnn", may_span_nodes=True)]
    assert bounds(jobs, nodes, speed_by_kind).makespan_s == 100
    jobs = [arrival(0, 100, kind="cnn", may_span_nodes=True)]
    assert bounds(jobs, nodes, speed_by_kind).makespan_s == 25


def test_parts_of_the_cluster_that_share_no_job_are_bounded_apart() -> None:
    left = [arrival(number, 10, nodes=("node-1",)) for number in range(3)]
    right = [arrival(9, 7, nodes=("node-2",))]
    found = bounds(left + right, declare("2x1"))
    assert found.makespan_s == pytest.approx(30)
    assert found.mean_turnaround_s == pytest.approx((10 + 20 + 30 + 7) / 4)


def test_a_job_that_never_fits_counts_for_nothing() -> None:
    jobs = [arrival(0, 10), arrival(1, 500, gpus=5), arrival(2, 500, models=("H100",))]
    found = bounds(jobs, declare("2x4"))
    assert (found.makespan_s, found.mean_turnaround_s) == (10, 10)
    assert bounds(jobs[1:], declare("2x4")).why_makespan == "no job can run on these nodes"
    assert bounds([], []).makespan_s == 0


def test_a_job_without_devices_takes_its_time_and_no_room() -> None:
    found = bounds([arrival(0, 10, gpus=0, memory_mb=5), arrival(1, 4), arrival(2, 0)], declare("1x1"))
    assert found.makespan_s == 10
    assert found.mean_turnaround_s == pytest.approx((10 + 4 + 0) / 3)


def test_a_large_trace_is_bounded_too() -> None:
    dice = random.Random(7)
    jobs = [
        arrival(n, dice.lognormvariate(6, 2), gpus=2 ** dice.randrange(4), submitted=n * 40.0)
        for n in range(20_000)
    ]
    found = bounds(jobs, declare("20x8"))
    assert "waiting for 160 GPUs" in found.why_turnaround


# -- the best schedule, with every freedom ----------------------------------------------------------


def best_preemptive(arrivals: Sequence[Arrival], nodes: list[Node], speed: Speed) -> dict[Objective, float]:
    """By brute force: fix the order of all comings and goings, and let a linear program share out the time
    in between over every combination of jobs and devices that may run side by side."""
    best = dict.fromkeys(OBJECTIVES, float("inf"))
    crowds = list(side_by_side(arrivals, nodes, speed))
    for events in orders(arrivals):
        for objective in OBJECTIVES:
            best[objective] = min(best[objective], shared_out(arrivals, events, crowds, objective))
    return best


Crowd = dict[int, float]  # job -> how much work it does per second
Event = tuple[str, int]


def side_by_side(arrivals: Sequence[Arrival], nodes: list[Node], speed: Speed) -> Iterator[Crowd]:
    ways: list[list[tuple[Device, ...]]] = []
    for job in (each.job for each in arrivals):
        sizes = range(job.min_gpus or job.gpus, (job.max_gpus or job.gpus) + 1)
        gangs = [
            gang for size in sizes for gang in combinations(filter(job.accepts, all_devices(nodes)), size)
        ]
        ways.append([(), *(gang for gang in gangs if job.may_span_nodes or len({d.node for d in gang}) == 1)])
    for gangs in product(*ways):
        if any(gangs) and all(fits(arrivals, gangs, device) for device in all_devices(nodes)):
            yield {
                number: min(speed(arrivals[number].job, device.model, len(gang)) for device in gang)
                for number, gang in enumerate(gangs)
                if gang
            }


def fits(arrivals: Sequence[Arrival], gangs: Sequence[tuple[Device, ...]], device: Device) -> bool:
    shares = [each.job.memory_mb for each, gang in zip(arrivals, gangs, strict=True) if device in gang]
    return len(shares) < 2 or (all(shares) and sum(shares) <= device.memory_mb)


def orders(arrivals: Sequence[Arrival]) -> Iterator[list[Event]]:
    """Every order of ends, mixed in every way with the submissions as they come."""
    numbers = sorted(range(len(arrivals)), key=lambda number: arrivals[number].job.submitted)
    for ends in permutations(numbers):
        for slots in combinations(range(2 * len(numbers)), len(numbers)):
            coming, going = iter(numbers), iter(ends)
            events = [
                ("end", next(going)) if s in slots else ("come", next(coming))
                for s in range(2 * len(numbers))
            ]
            if all(events.index(("come", number)) < events.index(("end", number)) for number in numbers):
                yield events


def shared_out(
    arrivals: Sequence[Arrival], events: list[Event], crowds: list[Crowd], objective: Objective
) -> float:
    """Variables: how long each crowd runs between two events, and how long it is between them."""
    gaps = len(events) - 1
    columns: list[tuple[int, Crowd]] = [
        (gap, crowd)
        for gap in range(gaps)
        for crowd in crowds
        if all(events.index(("come", n)) <= gap < events.index(("end", n)) for n in crowd)
    ]
    width = len(columns) + gaps
    worked = np.zeros((len(arrivals), width))
    filled = np.zeros((gaps, width))
    for column, (gap, crowd) in enumerate(columns):
        filled[gap, column] = 1
        for number, rate in crowd.items():
            worked[number, column] = rate
    filled[:, len(columns) :] = -np.eye(gaps)

    def at(event: Event) -> np.ndarray:
        return np.concatenate([np.zeros(len(columns)), np.arange(gaps) < events.index(event)])

    first = min(each.job.submitted for each in arrivals)
    numbers = range(len(arrivals))
    answer = linprog(
        at(events[-1]) if objective == "makespan_s" else sum(at(("end", n)) for n in numbers) / len(arrivals),
        A_ub=filled,
        b_ub=np.zeros(gaps),
        A_eq=np.vstack([worked, *(at(("come", n)) for n in numbers)]),
        b_eq=[each.duration_s for each in arrivals] + [each.job.submitted - first for each in arrivals],
    )
    if not answer.success:
        return float("inf")
    waited_before = (
        0.0 if objective == "makespan_s" else np.mean([each.job.submitted - first for each in arrivals])
    )
    return float(answer.fun - waited_before)


@st.composite
def free_jobs(draw: st.DrawFn) -> tuple[list[Arrival], list[Node], Speed]:
    """Tiny workloads with everything a job may ask for."""
    nodes = declare(
        draw(st.sampled_from(["1x2:A:8", "1x1:A:8+1x2:B:4", "2x2:A:8", "1x3:A:8", "1x1:A:8+1x1:B:16"]))
    )
    pace = {(kind, model): draw(st.sampled_from([0.5, 1.0, 3.0])) for kind in "xy" for model in "AB"}
    bend = draw(st.sampled_from([1.0, 0.5]))
    jobs = []
    for number in range(draw(st.integers(1, 3))):
        gpus = draw(st.integers(1, 2))
        low, high = draw(st.sampled_from([(0, 0), (1, gpus), (gpus, 3), (1, 3)]))
        job = Job(
            id=f"job{number}",
            submitted=draw(st.sampled_from([5, 5, 7, 12])),
            gpus=gpus,
            memory_mb=1024 * draw(st.sampled_from([0, 0, 2, 3, 4])),
            kind=draw(st.sampled_from("xy")),
            models=draw(st.sampled_from([(), (), ("A",), ("B",)])),
            nodes=draw(st.sampled_from([(), (), ("node-1",)])),
            may_span_nodes=draw(st.booleans()),
            min_gpus=low,
            max_gpus=high,
        )
        jobs.append(Arrival(job, draw(st.integers(1, 9))))
    return jobs, nodes, lambda job, model, gpus: pace[job.kind, model] * (gpus / job.gpus) ** bend


@settings(unhurried, max_examples=30)
@given(free_jobs())
def test_no_schedule_beats_the_bounds_whatever_it_may_do(
    case: tuple[list[Arrival], list[Node], Speed],
) -> None:
    jobs, nodes, speed = case
    served = [job for job in jobs if any(side_by_side([job], nodes, speed))]
    found = bounds(jobs, nodes, speed)
    if served:
        best = best_preemptive(served, nodes, speed)
        assert found.makespan_s <= best["makespan_s"] + NOISE
        assert found.mean_turnaround_s <= best["mean_turnaround_s"] + NOISE


# -- the best schedule without preemption -----------------------------------------------------------


@st.composite
def rigid_jobs(draw: st.DrawFn) -> tuple[list[Arrival], list[Node]]:
    nodes = declare(draw(st.sampled_from(["1x1", "1x4", "2x2", "2x3", "1x4+1x2"])))
    largest = max(len(node.devices) for node in nodes)
    return [
        arrival(
            number,
            draw(st.integers(1, 20)),
            gpus=draw(st.integers(1, largest)),
            submitted=draw(st.integers(0, 15)),
            may_span_nodes=draw(st.booleans()),
        )
        for number in range(draw(st.integers(1, 6)))
    ], nodes


@settings(unhurried, max_examples=15)
@given(rigid_jobs())
def test_the_proven_optimum_is_never_below_the_bounds(case: tuple[list[Arrival], list[Node]]) -> None:
    jobs, nodes = case
    found = bounds(jobs, nodes)
    for objective in OBJECTIVES:
        best = optimum(jobs, nodes, objective)
        assert best.proven
        assert getattr(found, objective) <= best.value + NOISE
        assert_possible(best.schedule, nodes)


def assert_possible(schedule: Sequence[Placed], nodes: list[Node]) -> None:
    for placed in schedule:
        assert placed.start >= placed.job.submitted
        assert sum(placed.gpus.values()) == placed.job.gpus
        assert placed.job.may_span_nodes or len(placed.gpus) == 1
        for node in nodes:
            running = [other for other in schedule if other.start <= placed.start < other.end]
            assert sum(other.gpus.get(node.name, 0) for other in running) <= len(node.devices)


def test_the_optimum_counts_fractions_of_seconds() -> None:
    best = optimum([arrival(0, 0.25, submitted=100.5), arrival(1, 0.5, submitted=100.5)], declare("1x1"))
    assert (best.value, best.proven) == (0.75, True)
    assert optimum([], declare("1x1")).schedule == ()


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (arrival(0, 1, memory_mb=1), "shares devices or is elastic"),
        (arrival(0, 1, min_gpus=1, max_gpus=2), "shares devices or is elastic"),
        (arrival(0, 1, gpus=3), "asks for 3 devices"),
    ],
)
def test_the_optimum_refuses_what_it_does_not_model(job: Arrival, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        optimum([job], declare("2x2:A100:40"))


def test_without_the_solver_the_optimum_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    with pytest.raises(ImportError, match=r"pip install 'gpu-flows\[optimum\]'"):
        optimum([], [])


# -- any other schedule -----------------------------------------------------------------------------

Order = Callable[[Arrival, float], float]  # job, work left -> the smallest goes first

ORDERS: dict[str, tuple[Order, bool]] = {
    "first come": (lambda each, left: each.job.submitted, False),
    "shortest": (lambda each, left: each.duration_s, False),
    "widest": (lambda each, left: -each.job.gpus, False),
    "least time left": (lambda each, left: left, True),
    "least service left": (lambda each, left: left * each.job.gpus, True),
}


def listed(arrivals: Sequence[Arrival], free: int, order: Order, preempts: bool) -> tuple[float, float]:
    """Makespan and mean turnaround of a list schedule on devices of one node."""
    left = {n: each.duration_s for n, each in enumerate(arrivals)}
    running: set[int] = set()
    now, turnarounds = 0.0, []
    while left:
        running = set() if preempts else running
        here = [n for n in left if arrivals[n].job.submitted <= now and n not in running]
        room = free - sum(arrivals[n].job.gpus for n in running)
        for n in sorted(here, key=lambda n: order(arrivals[n], left[n])):
            if arrivals[n].job.gpus <= room:
                running.add(n)
                room -= arrivals[n].job.gpus
        comings = [each.job.submitted for each in arrivals if each.job.submitted > now]
        then = min([*comings, *(now + left[n] for n in running)])
        for n in list(running):
            left[n] -= then - now
            if left[n] <= 1e-9:
                running.remove(n)
                del left[n]
                turnarounds.append(then - arrivals[n].job.submitted)
        now = then
    return now - min(each.job.submitted for each in arrivals), sum(turnarounds) / len(arrivals)


@settings(unhurried, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 6), st.integers(0, 60)), min_size=1, max_size=25),
    st.integers(6, 12),
)
def test_no_list_schedule_beats_the_bounds(asks: list[tuple[int, int, int]], devices: int) -> None:
    jobs = [arrival(number, *ask) for number, ask in enumerate(asks)]
    found = bounds(jobs, declare(f"1x{devices}"))
    for order, preempts in ORDERS.values():
        makespan, turnaround = listed(jobs, devices, order, preempts)
        assert found.makespan_s <= makespan + NOISE
        assert found.mean_turnaround_s <= turnaround + NOISE


def test_the_bound_on_turnaround_is_as_high_as_its_proof_allows() -> None:
    """Its definition taken literally: jobs cut into many pieces, piece i released i/pieces of its way in."""
    dice, pieces = random.Random(3), 400
    jobs = [arrival(n, dice.uniform(5, 200), dice.randint(1, 4), dice.uniform(0, 300)) for n in range(30)]
    drops = sorted(
        (each.job.submitted + piece / pieces * each.duration_s, each.job.gpus * each.duration_s / 8)
        for each in jobs
        for piece in range(pieces)
    )
    now, waited = 0.0, 0.0
    there: list[tuple[float, float]] = []
    for comes, work in [*drops, (float("inf"), 0.0)]:
        while there and now < comes:
            whole, came = heappop(there)
            now += whole / pieces
            waited += (now - came) / pieces
        now = max(now, comes)
        heappush(there, (work, comes))
    expected = (sum(each.duration_s for each in jobs) + waited) / len(jobs)
    found = bounds(jobs, declare("1x8"))
    assert found.why_turnaround == "each job's fastest time, and waiting for 8 GPUs"
    assert found.mean_turnaround_s == pytest.approx(expected, rel=0.01)
