"""Bounds: known cases, and that no schedule is below them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from preemptive_optimum import find_preemptive_optimum, list_combinations

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.model import Job, Node
from gpu_flows.schedulers.simulation.bounds import Speed, bounds
from gpu_flows.schedulers.workload import Arrival

NOISE = 1e-6

unhurried = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def arrival(number: int, duration: float, gpus: int = 1, submitted: float = 0, **ask: Any) -> Arrival:
    return Arrival(Job(id=f"job{number}", submitted=submitted, gpus=gpus, **ask), duration)


# -- cases in which a schedule meets the bound ------------------------------------------------------


def test_a_job_alone_is_bounded_by_its_own_time() -> None:
    found = bounds([arrival(0, 70, gpus=3, submitted=1_000)], declare("2x4"))
    assert (found.makespan_s, found.mean_turnaround_s) == (70, 70)
    assert found.why_makespan == "job job0 arrives at second 0 and runs for 70 s"
    assert found.why_turnaround == "each job's fastest time"


def test_shortest_first_on_one_gpu() -> None:
    found = bounds([arrival(number, duration) for number, duration in enumerate((5, 1, 3))], declare("1x1"))
    assert found.makespan_s == pytest.approx(9)
    assert found.mean_turnaround_s == pytest.approx((1 + 4 + 9) / 3)


def test_least_remaining_work_first_on_one_gpu() -> None:
    jobs = [arrival(0, 10), arrival(1, 2, submitted=3), arrival(2, 4, submitted=9)]
    found = bounds(jobs, declare("1x1"))
    assert found.mean_turnaround_s == pytest.approx((12 + 2 + 7) / 3)
    assert "least remaining work first" in found.why_turnaround


def test_work_that_fills_the_cluster_completely() -> None:
    found = bounds([arrival(number, 10, gpus=2) for number in range(6)], declare("1x4"))
    assert found.makespan_s == pytest.approx(30)
    assert found.why_makespan == "30 s of work for 4 GPUs are left at second 0"


def test_work_cannot_be_done_before_it_arrives() -> None:
    # at second 100 at least half of the first job is left, on one of two GPUs
    jobs = [arrival(0, 200), *(arrival(number, 60, submitted=100) for number in range(1, 6))]
    assert bounds(jobs, declare("1x2")).makespan_s == pytest.approx(100 + (100 + 5 * 60) / 2)


def test_jobs_of_more_than_half_the_cluster_run_one_after_the_other() -> None:
    wide = [arrival(number, 10, gpus=5, may_span_nodes=True) for number in range(3)]
    found = bounds(wide, declare("2x4"))
    assert found.makespan_s == pytest.approx(30)
    assert "a cluster that holds one large job at a time" in found.why_makespan


def test_jobs_of_more_than_half_a_node_hold_it_alone() -> None:
    jobs = [arrival(number, 10, gpus=3) for number in range(4)]
    assert bounds(jobs, declare("2x4")).makespan_s == pytest.approx(20)
    # three GPUs of eight: two such jobs per node
    jobs = [arrival(number, 10, gpus=3) for number in range(8)]
    assert bounds(jobs, declare("2x8")).makespan_s == pytest.approx(20)


def test_jobs_that_share_a_device_cost_their_share_of_it() -> None:
    nodes = declare("1x1:A100:40")
    assert bounds([arrival(n, 10, memory_mb=20 * 1024) for n in range(4)], nodes).makespan_s == pytest.approx(
        20
    )
    assert bounds([arrival(n, 10) for n in range(4)], nodes).makespan_s == pytest.approx(40)


def test_elastic_job_may_use_all_devices() -> None:
    jobs = [arrival(0, 80, gpus=2, min_gpus=1, max_gpus=4)]
    assert bounds(jobs, declare("1x8")).makespan_s == 40
    assert bounds(jobs, declare("1x3")).makespan_s == pytest.approx(80 * 2 / 3)
    # with diminishing returns, more devices are faster but cost more, so many jobs each use few
    found = bounds(
        [arrival(n, 80, min_gpus=1, max_gpus=4) for n in range(8)],
        declare("1x4"),
        speed=lambda job, model, gpus: gpus**0.5,
    )
    assert found.makespan_s == pytest.approx(8 * 80 / 4)


def speed_by_kind(job: Job, model: str, gpus: int) -> float:
    return {("cnn", "V100"): 4.0, ("rnn", "V100"): 2.0}.get((job.kind, model), 1.0) * gpus / job.gpus


def test_jobs_that_gain_most_use_the_faster_models() -> None:
    # On V100s the cnn jobs take 2 x 100 / 4 = 50 s, on K80s the rnn jobs 2 x 25 = 50 s: no split is better,
    # although the average GPU suggests a smaller makespan.
    jobs = [arrival(n, 100, kind="cnn") for n in range(2)] + [
        arrival(2 + n, 25, kind="rnn") for n in range(2)
    ]
    found = bounds(jobs, declare("1x1:V100:16+1x1:K80:12"), speed_by_kind)
    assert found.makespan_s == pytest.approx(50)


def test_gang_on_two_models_runs_at_the_slower_speed() -> None:
    nodes = declare("1x1:V100:16+1x1:K80:12")
    jobs = [arrival(0, 100, gpus=2, kind="cnn", may_span_nodes=True)]
    assert bounds(jobs, nodes, speed_by_kind).makespan_s == 100
    jobs = [arrival(0, 100, kind="cnn", may_span_nodes=True)]
    assert bounds(jobs, nodes, speed_by_kind).makespan_s == 25


def test_parts_of_the_cluster_without_common_jobs_are_bounded_separately() -> None:
    left = [arrival(number, 10, nodes=("node-1",)) for number in range(3)]
    right = [arrival(9, 7, nodes=("node-2",))]
    found = bounds(left + right, declare("2x1"))
    assert found.makespan_s == pytest.approx(30)
    assert found.mean_turnaround_s == pytest.approx((10 + 20 + 30 + 7) / 4)


def test_impossible_job_is_ignored() -> None:
    jobs = [arrival(0, 10), arrival(1, 500, gpus=5), arrival(2, 500, models=("H100",))]
    found = bounds(jobs, declare("2x4"))
    assert (found.makespan_s, found.mean_turnaround_s) == (10, 10)
    assert bounds(jobs[1:], declare("2x4")).why_makespan == "no job can run on these nodes"
    assert bounds([], []).makespan_s == 0


def test_job_without_devices_takes_only_time() -> None:
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


# -- the optimum with preemption --------------------------------------------------------------------


@st.composite
def free_jobs(draw: st.DrawFn) -> tuple[list[Arrival], list[Node], Speed]:
    """Tiny workloads with everything that a job may ask for."""
    nodes = declare(
        draw(st.sampled_from(["1x2:A:8", "1x1:A:8+1x2:B:4", "2x2:A:8", "1x3:A:8", "1x1:A:8+1x1:B:16"]))
    )
    speeds = {(kind, model): draw(st.sampled_from([0.5, 1.0, 3.0])) for kind in "xy" for model in "AB"}
    exponent = draw(st.sampled_from([1.0, 0.5]))
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
    return jobs, nodes, lambda job, model, gpus: speeds[job.kind, model] * (gpus / job.gpus) ** exponent


@settings(unhurried, max_examples=30)
@given(free_jobs())
def test_no_schedule_with_preemption_beats_the_bounds(
    case: tuple[list[Arrival], list[Node], Speed],
) -> None:
    jobs, nodes, speed = case
    served = [job for job in jobs if any(list_combinations([job], nodes, speed))]
    found = bounds(jobs, nodes, speed)
    if served:
        best = find_preemptive_optimum(served, nodes, speed)
        assert found.makespan_s <= best["makespan_s"] + NOISE
        assert found.mean_turnaround_s <= best["mean_turnaround_s"] + NOISE


# -- list schedules ---------------------------------------------------------------------------------

Order = Callable[[Arrival, float], float]  # job, remaining time -> the smallest comes first

ORDERS: dict[str, tuple[Order, bool]] = {
    "first come": (lambda arrival, left: arrival.job.submitted, False),
    "shortest": (lambda arrival, left: arrival.duration_s, False),
    "widest": (lambda arrival, left: -arrival.job.gpus, False),
    "least remaining time": (lambda arrival, left: left, True),
    "least remaining service": (lambda arrival, left: left * arrival.job.gpus, True),
}


def run_list_schedule(
    arrivals: Sequence[Arrival], free: int, order: Order, preempts: bool
) -> tuple[float, float]:
    """Return makespan and mean turnaround of a list schedule on the devices of one node."""
    left = {n: arrival.duration_s for n, arrival in enumerate(arrivals)}
    running: set[int] = set()
    now, turnarounds = 0.0, []
    while left:
        running = set() if preempts else running
        waiting = [n for n in left if arrivals[n].job.submitted <= now and n not in running]
        room = free - sum(arrivals[n].job.gpus for n in running)
        for n in sorted(waiting, key=lambda n: order(arrivals[n], left[n])):
            if arrivals[n].job.gpus <= room:
                running.add(n)
                room -= arrivals[n].job.gpus
        arrival_times = [arrival.job.submitted for arrival in arrivals if arrival.job.submitted > now]
        then = min([*arrival_times, *(now + left[n] for n in running)])
        for n in list(running):
            left[n] -= then - now
            if left[n] <= 1e-9:
                running.remove(n)
                del left[n]
                turnarounds.append(then - arrivals[n].job.submitted)
        now = then
    return now - min(arrival.job.submitted for arrival in arrivals), sum(turnarounds) / len(arrivals)


@settings(unhurried, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 6), st.integers(0, 60)), min_size=1, max_size=25),
    st.integers(6, 12),
)
def test_no_list_schedule_beats_the_bounds(asks: list[tuple[int, int, int]], devices: int) -> None:
    jobs = [arrival(number, *ask) for number, ask in enumerate(asks)]
    found = bounds(jobs, declare(f"1x{devices}"))
    for order, preempts in ORDERS.values():
        makespan, turnaround = run_list_schedule(jobs, devices, order, preempts)
        assert found.makespan_s <= makespan + NOISE
        assert found.mean_turnaround_s <= turnaround + NOISE


def test_turnaround_bound_equals_its_definition() -> None:
    """Cut jobs into many pieces, as in the definition, and serve the job with the least work first."""
    rng, pieces = random.Random(3), 400
    jobs = [arrival(n, rng.uniform(5, 200), rng.randint(1, 4), rng.uniform(0, 300)) for n in range(30)]
    units = sorted(
        (job.job.submitted + piece / pieces * job.duration_s, job.job.gpus * job.duration_s / 8)
        for job in jobs
        for piece in range(pieces)
    )
    now, waited = 0.0, 0.0
    waiting: list[tuple[float, float]] = []
    for released, work in [*units, (float("inf"), 0.0)]:
        while waiting and now < released:
            whole, since = heappop(waiting)
            now += whole / pieces
            waited += (now - since) / pieces
        now = max(now, released)
        heappush(waiting, (work, released))
    expected = (sum(job.duration_s for job in jobs) + waited) / len(jobs)
    found = bounds(jobs, declare("1x8"))
    assert found.why_turnaround == "each job's fastest time, and waiting for 8 GPUs"
    assert found.mean_turnaround_s == pytest.approx(expected, rel=0.01)
