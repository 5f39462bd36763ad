"""LWF-kappa and A-SRPT against plain replays of their rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job, Start
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.simulation.simulator import JobResult, simulate
from gpu_flows.schedulers.workload import Arrival


class Ask(NamedTuple):
    submitted: int
    gpus: int
    duration: int


asks = st.builds(Ask, st.integers(0, 60), st.sampled_from([1, 1, 1, 2, 3, 4, 6, 8]), st.integers(0, 80))
workloads = st.lists(asks, min_size=1, max_size=25)


def simulated(policy: str, jobs: Sequence[Ask], **options: Any) -> list[JobResult]:
    arrivals = [
        Arrival(Job(id=f"{i:03}", submitted=job.submitted, gpus=job.gpus, may_span_nodes=True), job.duration)
        for i, job in enumerate(jobs)
    ]
    found = simulate(arrivals, declare("2x4"), make_policy(policy, options))
    assert found.policy_error == ""
    assert found.preemptions == found.moves == 0
    return sorted(found.jobs, key=lambda result: result.arrival.job.id)


def run_in_order(
    jobs: Sequence[Ask],
    ready: Sequence[Fraction],
    order: Callable[[int], Any],
    choose: Callable[[Ask, dict[int, Fraction], Fraction], list[int]],
) -> list[tuple[float, set[int]]]:
    """End and devices of every job: at each event, those that are ready start in order where they fit."""
    held: dict[int, Fraction] = {}  # device -> when it is free again
    ends: dict[int, tuple[Fraction, set[int]]] = {}
    now = min(ready)
    while True:
        held = {device: end for device, end in held.items() if end > now}
        for i in sorted((i for i in range(len(jobs)) if ready[i] <= now and i not in ends), key=order):
            devices = choose(jobs[i], held, now)
            if devices:
                ends[i] = (now + jobs[i].duration, set(devices))
                held |= dict.fromkeys(devices, ends[i][0])
        if now in held.values():  # a job of no duration ends in an event of its own, at the same time
            continue
        later = [at for at in (*ready, *held.values()) if at > now]
        if not later:
            return [(float(ends[i][0]), ends[i][1]) for i in range(len(jobs))]
        now = min(later)


# -- LWF-kappa ----------------------------------------------------------------------------------


def least_work(kappa: int) -> Callable[[Ask, dict[int, Fraction], Fraction], list[int]]:
    """The rule on two servers of four devices, where free devices have no work left."""

    def choose(job: Ask, held: dict[int, Fraction], now: Fraction) -> list[int]:
        servers = [range(4), range(4, 8)]
        if job.gpus > kappa:
            servers.sort(key=lambda server: sum(held.get(device, now) - now for device in server))
            servers.sort(key=lambda server: sum(device not in held for device in server) < job.gpus)
        free = [device for server in servers for device in server if device not in held]
        return free[: job.gpus] if len(free) >= job.gpus else []

    return choose


@settings(max_examples=100, deadline=None)
@given(workloads, st.sampled_from([0, 1, 2, 8]))
def test_lwf_gives_every_job_the_devices_of_the_plain_rule(jobs: list[Ask], kappa: int) -> None:
    found = simulated("lwf_kappa", jobs, kappa=kappa)
    numbers = {device.id: n for n, device in enumerate(d for node in declare("2x4") for d in node.devices)}
    said = run_in_order(
        jobs,
        [Fraction(job.submitted) for job in jobs],
        lambda i: (jobs[i].duration * jobs[i].gpus, jobs[i].submitted, i),
        least_work(kappa),
    )
    assert [(job.ended, {numbers[device.id] for device in job.devices}) for job in found] == said


def started(engine: Engine, now: float) -> dict[str, str]:
    """job id -> its devices as node.index."""
    return {
        action.job.id: " ".join(f"{device.node[-1]}.{device.index}" for device in action.devices)
        for action in engine.tick(now)
        if isinstance(action, Start)
    }


def shared(id: str, expected_s: float, gpus: int = 1, gb: int = 4, submitted: float = 0) -> Job:
    return Job(
        id=id,
        submitted=submitted,
        gpus=gpus,
        memory_mb=gb * 1024,
        expected_s=expected_s,
        may_span_nodes=True,
    )


def test_lwf_on_shared_devices_goes_where_the_least_work_is_left_and_memory_suffices() -> None:
    engine = Engine(declare("1x3:V100:16"), make_policy("lwf_kappa", {"sharing": "shared"}))
    for job in (shared("short", 100, gb=14), shared("middle", 200), shared("long", 300)):
        engine.submit(job)
    assert started(engine, 0) == {"short": "1.0", "middle": "1.1", "long": "1.2"}
    engine.submit(shared("next", 250, submitted=50))
    assert started(engine, 50) == {"next": "1.1"}  # the least work is on 1.0, but no memory
    engine.submit(shared("last", 10, submitted=60))
    assert started(engine, 60) == {"last": "1.2"}  # 240 left there, 140 and 240 on 1.1


@pytest.mark.parametrize(("kappa", "devices"), [(1, "1.0 1.1"), (2, "2.0 1.0")])
def test_lwf_keeps_a_job_wider_than_kappa_on_the_server_with_the_least_work(kappa: int, devices: str) -> None:
    engine = Engine(declare("2x2:V100:16"), make_policy("lwf_kappa", {"sharing": "shared", "kappa": kappa}))
    for job in (shared("a", 900), shared("b", 20), shared("c", 1000), shared("d", 980)):
        engine.submit(job)
    assert started(engine, 0) == {"b": "1.0", "a": "1.1", "d": "2.0", "c": "2.1"}
    engine.ended("d")
    engine.submit(shared("wide", 50, gpus=2, submitted=10))
    assert started(engine, 10) == {"wide": devices}  # left: 10 and 890 on one, 0 and 990 on the other


def test_lwf_splits_a_job_only_when_no_server_holds_it() -> None:
    engine = Engine(declare("3x4"), make_policy("lwf_kappa"))
    for name, gpus, expected_s in (("a", 3, 900), ("b", 2, 1000), ("c", 1, 5000)):
        engine.submit(
            Job(id=name, gpus=gpus, expected_s=expected_s, nodes=(f"node-{'abc'.index(name) + 1}",))
        )
    engine.tick(0)
    engine.submit(Job(id="d", gpus=3, expected_s=1, may_span_nodes=True, submitted=1))
    assert started(engine, 1) == {"d": "3.1 3.2 3.3"}  # the only one with three, whatever its work
    engine.submit(Job(id="e", gpus=3, expected_s=1, may_span_nodes=True, submitted=2))
    assert started(engine, 2) == {"e": "2.2 2.3 1.3"}  # 2,000 left on node 2, 2,700 on node 1


# -- A-SRPT -------------------------------------------------------------------------------------


NEVER = Fraction(10**9)


def virtual_ends(jobs: Sequence[Ask], speed: int) -> list[Fraction]:
    """When a single machine of this speed, always on the job with the least left, ends each job."""
    left = {i: Fraction(job.duration * job.gpus, speed) for i, job in enumerate(jobs)}
    ends: dict[int, Fraction] = {}
    now = Fraction(0)
    while left:
        there = [i for i in left if jobs[i].submitted <= now]
        coming = min((Fraction(jobs[i].submitted) for i in left if jobs[i].submitted > now), default=NEVER)
        if not there:
            now = coming
            continue
        i = min(there, key=lambda i: (left[i], jobs[i].submitted, i))
        spent = left[i] if now + left[i] <= coming else coming - now
        left[i] -= spent
        now += spent
        if not left[i] and now <= coming:
            ends[i] = now
            del left[i]
    return [ends[i] for i in range(len(jobs))]


def any_free(job: Ask, held: dict[int, Fraction], now: Fraction) -> list[int]:
    free = [device for device in range(8) if device not in held]
    return free[: job.gpus] if len(free) >= job.gpus else []


@settings(max_examples=100, deadline=None)
@given(workloads)
def test_a_srpt_starts_jobs_as_the_virtual_machine_ends_them(jobs: list[Ask]) -> None:
    ready = virtual_ends(jobs, speed=8)
    found = simulated("a_srpt", jobs, placement="any", patience_s=0)
    said = run_in_order(jobs, ready, lambda i: (ready[i], jobs[i].submitted, i), any_free)
    assert [job.ended for job in found] == [end for end, _ in said]


def test_a_srpt_holds_a_job_back_for_its_share_of_the_cluster_only() -> None:
    assert [job.started for job in simulated("a_srpt", [Ask(0, 1, 80), Ask(0, 2, 80)])] == [10, 30]


def test_a_srpt_waits_for_a_server_of_its_own_as_long_as_its_patience_lasts() -> None:
    def wide(patience_s: float) -> tuple[float | None, int]:
        """When it starts, and on how many nodes: each has one device left until 1100."""
        jobs = [Ask(0, 3, 800), Ask(0, 3, 900), Ask(700, 2, 8)]
        job = simulated("a_srpt", jobs, patience_s=patience_s)[2]
        return job.started, len({device.node for device in job.devices})

    assert [wide(patience_s) for patience_s in (0, 100, 1000)] == [(702, 2), (802, 2), (1100, 1)]


def test_a_srpt_accepts_whole_servers_for_a_job_wider_than_any() -> None:
    job = simulated("a_srpt", [Ask(0, 8, 80)], patience_s=1000)[0]
    assert job.started == 80


def test_a_srpt_passes_over_what_does_not_fit_only_if_it_may() -> None:
    jobs = [Ask(0, 7, 100), Ask(90, 2, 4), Ask(91, 1, 50)]
    assert [simulated("a_srpt", jobs, skip=skip)[2].started for skip in (True, False)] == [97.25, 187.5]


def test_a_srpt_starts_jobs_of_unknown_duration_last() -> None:
    engine = Engine(declare("1x1"), make_policy("a_srpt"))
    engine.submit(Job(id="unknown"))
    engine.submit(Job(id="known", expected_s=5, submitted=1))
    assert started(engine, 1) == {}
    assert engine.wake_at == 6
    assert started(engine, 6) == {"known": "1.0"}
    engine.ended("known")
    assert started(engine, 11) == {"unknown": "1.0"}


def test_a_srpt_forgets_a_job_that_was_withdrawn_or_asks_for_something_else() -> None:
    engine = Engine(declare("1x2"), make_policy("a_srpt"))
    engine.submit(Job(id="gone", expected_s=10))
    engine.submit(Job(id="changed", expected_s=20, submitted=1))
    assert started(engine, 1) == {}
    engine.withdraw("gone")
    engine.submit(Job(id="changed", gpus=2, expected_s=20, submitted=1))
    assert started(engine, 2) == {}
    assert engine.wake_at == 22  # all of 40 GPU-seconds, from now on
    assert started(engine, 22) == {"changed": "1.0 1.1"}


def test_a_srpt_keeps_the_turn_of_a_job_that_lost_its_devices() -> None:
    engine = Engine(declare("1x1"), make_policy("a_srpt"))
    engine.submit(Job(id="first", expected_s=10))
    engine.tick(0)
    assert started(engine, 10) == {"first": "1.0"}
    engine.submit(Job(id="second", expected_s=1, submitted=11))
    engine.tick(11)
    engine.tick(12)
    engine.requeue("first")
    assert started(engine, 13) == {"first": "1.0"}
