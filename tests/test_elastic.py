"""Elastic policies: shares against brute force and the papers, and the moves that realize them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import NO_PROGRESS, Job, Preempt, Running
from gpu_flows.schedulers.plan_draft import Draft
from gpu_flows.schedulers.policies.afs_l import one_by_one
from gpu_flows.schedulers.policies.ffdl import largest_sum
from gpu_flows.schedulers.policy import Speed, State, linear, make_policy
from gpu_flows.schedulers.policy_support.elastic import Division, ElasticOptions, Shares, by_gain, in_rounds
from gpu_flows.schedulers.policy_support.resizing import resize
from gpu_flows.schedulers.running_order import RunningOrder
from gpu_flows.schedulers.waiting_queue import WaitingQueue

quick = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def state_of(jobs: Sequence[Job], spec: str, speed: Speed = linear) -> State:
    """All of these jobs waiting for an empty cluster."""
    cluster = Cluster(declare(spec))
    queue, running_order = WaitingQueue(make_policy("fifo")), RunningOrder(make_policy("fifo"))
    for job in jobs:
        queue.add(job, NO_PROGRESS)
    running: dict[str, Running] = {}
    draft = Draft(cluster, queue, running, running_order, can_preempt=True)
    return State(0.0, queue, running, running_order, cluster, draft, speed=speed)


def tabled(job: Job, model: str, gpus: int) -> float:
    """The speed is written in the job's kind: `2,3.5` is 2 on one device, 3.5 on two."""
    return float(job.kind.split(",")[gpus - 1])


@st.composite
def curves(draw: st.DrawFn, falling: bool = True) -> list[Job]:
    """A few jobs, each with its own least, most and speeds; some get slower with more devices."""
    jobs = []
    for number in range(draw(st.integers(1, 5))):
        steps = draw(st.lists(st.integers(-3 if falling else 1, 12), min_size=4, max_size=4))
        speeds = [max(1, sum(steps[:count])) for count in range(1, 5)]
        least = draw(st.integers(1, 3))
        jobs.append(
            Job(
                id=f"{number}",
                submitted=float(number),
                kind=",".join(map(str, speeds)),
                min_gpus=least,
                max_gpus=draw(st.integers(least, 4)),
                queue_priority=draw(st.integers(0, 1)) if not falling else 0,
                expected_s=draw(st.integers(1, 20)) * 10.0,
                may_span_nodes=True,
            )
        )
    return jobs


# -- who gets how many ---------------------------------------------------------------------------


def speedup(job: Job, gpus: int) -> float:
    return tabled(job, "", gpus) / tabled(job, "", 1)


@given(curves(), st.integers(1, 9))
@quick
def test_ffdl_finds_the_largest_sum_of_speedups(jobs: list[Job], devices: int) -> None:
    division = Division(state_of(jobs, f"1x{devices}", tabled))
    row = division.select(jobs)
    shares = largest_sum(division, row)
    assert list(shares) == [job.id for job in row]
    assert sum(shares.values()) <= devices
    assert all(job.least <= shares[job.id] <= job.most for job in row)
    found = sum(speedup(job, shares[job.id]) for job in row)
    best = max(
        sum(map(speedup, row, counts))
        for counts in product(*(range(job.least, job.most + 1) for job in row))
        if sum(counts) <= devices
    )
    assert found == pytest.approx(best)


def test_ffdl_on_cases_with_a_known_answer() -> None:
    def best(devices: int, *kinds: str) -> list[int]:
        jobs = [Job(f"{n}", n, kind=kind, min_gpus=1, max_gpus=4) for n, kind in enumerate(kinds)]
        division = Division(state_of(jobs, f"1x{devices}", tabled))
        return list(largest_sum(division, division.select(jobs)).values())

    assert best(4, "1,2,3,4", "1,1.1,1.2,1.3") == [3, 1], "both run, then the better one grows"
    assert best(4, "1,1.1,1.2,1.3", "1,2,3,4") == [1, 3]
    assert best(2, "1,2,3,4", "1,2,3,4", "1,9,9,9") == [1, 1], "the oldest run, however fast the third"
    assert best(5, "1,1,1,9", "1,1.5,1.8,2") == [4, 1], "three useless steps before a great one"
    assert best(8, "1,2,3,4", "1,2,3,4", "1,2,3,4") == [4, 3, 1], "older ones first, among equals"
    assert best(8, "1,1,1,1", "1,2,2,2") == [1, 2], "no more than is of use"


def by_the_letter(jobs: list[Job], lengths: dict[str, float], devices: int) -> Shares:
    """AFS-L with nothing saved: every device a walk over all jobs."""
    free, count, out = devices, {job.id: 0 for job in jobs}, set[str]()
    first: list[str] = []
    known = {job.id: job for job in jobs}

    def s(job: Job, gpus: int) -> float:
        return speedup(job, gpus) if gpus else 0.0

    def after(job: Job) -> int:
        return count[job.id] + 1 if count[job.id] else job.least

    def ends(job: Job) -> tuple[float, bool]:
        held = count[job.id]
        return (lengths[job.id] / s(job, held) if held else math.inf, not held)

    def better(one: Job, two: Job) -> Job:
        if not count[one.id] and not count[two.id]:
            return min(one, two, key=lambda job: (job.queue_priority, lengths[job.id], job.submitted, job.id))
        a, b = (two, one) if ends(two) < ends(one) else (one, two)
        gain_b = (s(b, after(b)) - s(b, count[b.id])) / s(b, after(b))
        gain_a = (s(a, after(a)) - s(a, count[a.id])) / s(a, count[a.id])
        return b if gain_b > gain_a else a

    while free:
        have = [known[job_id] for job_id in first if job_id not in out]
        walk = have + [job for job in jobs if not count[job.id] and job.id not in out]
        if not walk:
            break
        winner = walk[0]
        for job in walk[1:]:
            winner = better(winner, job)
        step = after(winner) - count[winner.id]
        if step > free:
            out.add(winner.id)
            continue
        if not count[winner.id]:
            first.append(winner.id)
        count[winner.id] += step
        free -= step
        if count[winner.id] == winner.most:
            out.add(winner.id)
    return {job_id: count[job_id] for job_id in first}


@given(curves(falling=False), st.integers(1, 12))
@settings(quick, max_examples=80)
def test_afs_l_hands_out_devices_as_in_the_paper(jobs: list[Job], devices: int) -> None:
    division = Division(state_of(jobs, f"1x{devices}", tabled))
    lengths = {job.id: (job.expected_s or 0.0) / tabled(job, "", 1) for job in jobs}
    by_length = sorted(jobs, key=lambda job: (job.queue_priority, lengths[job.id], job.submitted))
    shares = one_by_one(division, iter([(job, lengths[job.id]) for job in by_length]))
    expected = by_the_letter(jobs, lengths, devices)
    assert shares == expected
    assert list(shares) == list(expected)


def test_afs_l_weighs_length_against_efficiency() -> None:
    short = Job("short", kind="1,1.2,1.3,1.4", min_gpus=1, max_gpus=4, expected_s=10)
    long = Job("long", kind="1,2,3,4", min_gpus=1, max_gpus=4, expected_s=100)
    division = Division(state_of([short, long], "1x4", tabled))
    assert one_by_one(division, iter([(short, 10.0), (long, 100.0)])) == {"short": 1, "long": 3}
    alike = replace(short, kind="1,2,3,4")
    division = Division(state_of([alike, long], "1x4", tabled))
    assert one_by_one(division, iter([(alike, 10.0), (long, 100.0)])) == {"short": 3, "long": 1}


def test_rules_give_the_least_to_all_then_more_in_rounds_or_by_gain() -> None:
    jobs = [
        Job("a", 0, kind="1,1.1,1.2,1.3", min_gpus=1, max_gpus=4),
        Job("b", 1, kind="1,2,3,4", min_gpus=2, max_gpus=3),
        Job("c", 2, kind="1,1.5,2,2.5", min_gpus=1, max_gpus=4),
    ]
    division = Division(state_of(jobs, "1x8", tabled))
    assert in_rounds(division, jobs) == {"a": 3, "b": 3, "c": 2}
    assert by_gain(division, jobs) == {"a": 1, "b": 3, "c": 4}


# -- what becomes of shares ----------------------------------------------------------------------


def ticked(engine: Engine, now: float) -> tuple[dict[str, int], set[str]]:
    """Return the devices that each running job has after a tick, and the jobs that it stopped."""
    actions = engine.tick(now)
    assert not engine.policy_error
    stopped = {action.running.job.id for action in actions if isinstance(action, Preempt)}
    return {job_id: len(each.devices) for job_id, each in engine.running.items()}, stopped


def test_a_running_job_shrinks_for_a_new_one_and_grows_when_one_ends() -> None:
    engine = Engine(declare("1x4"), make_policy("fifo", {"elastic": True}), can_preempt=True)
    engine.submit(Job("a", 0, gpus=2, min_gpus=1, max_gpus=4))
    assert ticked(engine, 0) == ({"a": 4}, set())
    before = set(engine.running["a"].devices)
    engine.submit(Job("b", 1, gpus=2, min_gpus=1, max_gpus=4))
    assert ticked(engine, 1) == ({"a": 2, "b": 2}, {"a"})
    assert set(engine.running["a"].devices) < before
    engine.submit(Job("c", 2))
    assert ticked(engine, 2) == ({"a": 2, "b": 1, "c": 1}, {"b"}), "a job that keeps its share is not stopped"
    engine.ended("a")
    assert ticked(engine, 3) == ({"b": 3, "c": 1}, {"b"})
    engine.ended("b")
    assert ticked(engine, 4) == ({"c": 1}, set()), "a rigid job has no use for more"


def test_without_preemption_only_idle_devices_are_handed_out() -> None:
    engine = Engine(declare("1x4"), make_policy("fifo", {"elastic": True}))
    engine.submit(Job("a", 0, min_gpus=1, max_gpus=3))
    assert ticked(engine, 0) == ({"a": 3}, set())
    engine.submit(Job("b", 1, min_gpus=1, max_gpus=3))
    assert ticked(engine, 1) == ({"a": 3, "b": 1}, set())
    engine.ended("a")
    assert ticked(engine, 2) == ({"b": 1}, set())


def test_a_share_that_fits_nowhere_shrinks_to_what_does() -> None:
    jobs = [Job("a", 0, min_gpus=1, max_gpus=3), Job("b", 1, min_gpus=1, max_gpus=3)]
    jobs += [Job("c", 2, min_gpus=1, max_gpus=2)]
    for may_span, expected in ((False, [3, 3, 1]), (True, [3, 3, 2])):
        state = state_of([replace(job, may_span_nodes=may_span) for job in jobs], "2x4")
        resize(Division(state), ElasticOptions(), {"a": 3, "b": 3, "c": 2})
        assert [len(state.running[job.id].devices) for job in jobs] == expected


def test_the_first_job_does_not_wait_for_devices_that_later_ones_hold() -> None:
    engine = Engine(declare("2x4"), make_policy("ffdl", {}), can_preempt=True)
    for number in range(4):
        engine.submit(Job(f"{number}", 10.0 + number, gpus=2))
    ticked(engine, 10)
    engine.ended("0")
    engine.ended("2")  # two idle devices on each node
    engine.submit(Job("old", 1.0, gpus=4))
    sizes, stopped = ticked(engine, 20)
    assert sizes == {"old": 4, "1": 2, "3": 2}
    assert stopped == {"3"}, "the youngest moved"


def test_devices_that_no_share_could_use_are_not_left_idle() -> None:
    """The oldest jobs need devices that are taken; the jobs behind them get the rest and keep it."""
    engine = Engine(declare("1x2:A100:80+1x2:T4:16"), make_policy("ffdl", {}), can_preempt=True)
    for number in range(6):
        engine.submit(Job(f"a{number}", number, models=("A100",)))
    engine.submit(Job("t", 9, models=("T4",), min_gpus=1, max_gpus=2))
    assert ticked(engine, 10) == ({"a0": 1, "a1": 1, "t": 1}, set())
    engine.ended("a0")
    sizes, stopped = ticked(engine, 11)
    assert sizes == {"a1": 1, "a2": 1, "t": 1}
    assert not stopped


def test_a_resize_must_gain_enough() -> None:
    for min_gain, expected in ((0.0, ({"a": 4}, {"a"})), (0.5, ({"a": 3}, set()))):
        policy = make_policy("fifo", {"elastic": True, "min_gain": min_gain})
        engine = Engine(declare("1x4"), policy, can_preempt=True)
        engine.submit(Job("a", 0, min_gpus=1, max_gpus=4))
        engine.submit(Job("b", 1))
        ticked(engine, 0)
        engine.ended("b")
        assert ticked(engine, 1) == expected, "a third more"


def test_jobs_on_shared_devices_are_not_resized() -> None:
    engine = Engine(declare("1x3:T4:16"), make_policy("fifo", {"sharing": "shared"}), can_preempt=True)
    for number in range(2):
        engine.submit(Job(f"{number}", memory_mb=4096, min_gpus=1, max_gpus=3))
    ticked(engine, 0)
    assert len({device.id for each in engine.running.values() for device in each.devices}) == 1
    engine.swap(make_policy("ffdl"))
    engine.submit(Job("new", 1, min_gpus=1, max_gpus=3))
    assert ticked(engine, 1) == ({"0": 1, "1": 1, "new": 2}, set())
    engine.swap(make_policy("afs_l", {"sharing": "shared"}))
    engine.submit(Job("small", 2, memory_mb=4096, max_gpus=3))
    assert ticked(engine, 2)[0]["small"] == 1, "shared devices are not divided"
