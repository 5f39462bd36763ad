"""Fair share: how much each user gets, and which device time counts."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job, Start
from gpu_flows.schedulers.policy import PolicyError, make_policy
from gpu_flows.schedulers.simulation.estimates import Stated
from gpu_flows.schedulers.simulation.simulator import simulate
from gpu_flows.schedulers.workload import Arrival


def backlog(user: str, jobs: int, seed: int, sizes: tuple[int, ...] = (1,)) -> list[Arrival]:
    """More jobs than can run, all there from the beginning."""
    chance = random.Random(seed)
    return [
        Arrival(Job(f"{user}{n:04}", gpus=chance.choice(sizes), user=user), chance.uniform(100, 1000))
        for n in range(jobs)
    ]


def device_time(
    arrivals: list[Arrival], until: float, nodes: str = "2x4", **options: object
) -> dict[str, float]:
    """Return the service of each user until then. No durations are known."""
    found = simulate(arrivals, declare(nodes), make_policy("fair_share", options), estimates=Stated())
    assert not found.policy_error
    assert all(job.ended is not None for job in found.jobs)
    had: dict[str, float] = {}
    for attempt in found.attempts:
        user = attempt.job_id.rstrip("0123456789")
        overlap = max(0.0, min(attempt.ended, until) - attempt.started)
        had[user] = had.get(user, 0.0) + overlap * len(attempt.devices)
    return had


def started(engine: Engine, now: float) -> list[str]:
    actions = engine.tick(now)
    assert not engine.policy_error
    return [action.job.id for action in actions if isinstance(action, Start)]


@pytest.mark.parametrize("half_life_s", [1e3, 1e4, 1e9])
def test_two_users_with_endless_jobs_get_device_time_by_weight(half_life_s: float) -> None:
    arrivals = backlog("ann", 400, 1) + backlog("bob", 400, 2)
    had = device_time(arrivals, 20_000, weights={"ann": 2}, half_life_s=half_life_s)
    assert had["ann"] / had["bob"] == pytest.approx(2, rel=0.05)
    assert sum(had.values()) == pytest.approx(8 * 20_000), "and nothing is idle meanwhile"


def test_wide_jobs_get_their_share_beside_narrow_ones() -> None:
    arrivals = backlog("wide", 60, 1, sizes=(4,)) + backlog("narrow", 300, 2)
    had = device_time(arrivals, 20_000)
    assert had["wide"] / had["narrow"] == pytest.approx(1, rel=0.1)


def test_devices_that_become_free_together_are_divided_by_weight() -> None:
    engine = Engine(declare("2x4"), make_policy("fair_share", {"weights": {"ann": 3}}))
    for arrival in backlog("ann", 20, 1) + backlog("bob", 20, 2):
        engine.submit(arrival.job)
    assert sorted(job_id[:3] for job_id in started(engine, 0)) == ["ann"] * 6 + ["bob"] * 2


def test_jobs_of_one_user_start_in_arrival_order() -> None:
    engine = Engine(declare("1x4"), make_policy("fair_share"))
    for number, gpus in enumerate((2, 1, 1, 2)):
        engine.submit(Job(f"job{number}", submitted=number, gpus=gpus, user="ann"))
    assert started(engine, 5) == ["job0", "job1", "job2"]


def test_queue_priority_comes_before_shares() -> None:
    engine = Engine(declare("1x1"), make_policy("fair_share"))
    engine.submit(Job("first", user="ann"))
    assert started(engine, 0) == ["first"]
    engine.submit(Job("urgent", user="ann", queue_priority=0))
    engine.submit(Job("other", user="bob", queue_priority=1))
    engine.ended("first")
    assert started(engine, 100) == ["urgent"]


def pool_after(*history: tuple[str, float, float]) -> Engine:
    """A pool of one device in which each user ran a job from one time to another."""
    engine = Engine(declare("1x1"), make_policy("fair_share", {"half_life_s": 1000}))
    for user, start, end in history:
        engine.submit(Job(f"{user}-{start}", submitted=start, user=user))
        assert started(engine, start) == [f"{user}-{start}"]
        engine.ended(f"{user}-{start}")
        engine.tick(end)
    return engine


def next_user(engine: Engine, now: float) -> str:
    for user in ("ann", "bob"):
        engine.submit(Job(f"{user}-next", submitted=now, user=user))
    return started(engine, now)[0].partition("-")[0]


def test_idle_time_is_not_charged() -> None:
    """The last job of a pool ends while no job waits; the time after it is not charged to its user."""
    assert next_user(pool_after(("bob", 0, 90), ("ann", 100, 180)), 5000) == "ann"


def test_old_device_time_counts_less() -> None:
    assert next_user(pool_after(("ann", 0, 400), ("bob", 4000, 4100)), 4200) == "ann"
    assert next_user(pool_after(("ann", 0, 400), ("bob", 500, 600)), 700) == "bob"


def test_running_jobs_are_charged_after_a_swap_too() -> None:
    engine = Engine(declare("1x3"), make_policy("fifo"))
    engine.submit(Job("long", user="ann"))
    assert started(engine, 0) == ["long"]
    engine.submit(Job("short", submitted=500, user="bob"))
    assert started(engine, 500) == ["short"]
    engine.swap(make_policy("fair_share"))
    assert next_user(engine, 1000) == "bob"


def test_a_requeued_job_is_charged_for_every_attempt() -> None:
    engine = Engine(declare("1x2"), make_policy("fair_share"))
    engine.submit(Job("unlucky", user="ann"))
    engine.submit(Job("steady", user="bob"))
    assert sorted(started(engine, 0)) == ["steady", "unlucky"]
    engine.requeue("unlucky")
    assert started(engine, 300) == ["unlucky"]
    engine.ended("unlucky")
    engine.tick(500)
    engine.submit(Job("more", submitted=510, user="bob"))
    engine.submit(Job("again", submitted=510, user="ann"))
    assert started(engine, 510) == ["again"], "500 device-seconds against 510"


def test_shared_devices_are_divided_by_weight_too() -> None:
    policy = make_policy("fair_share", {"sharing": "shared"})
    engine = Engine(declare("1x2:A100:80"), policy)
    for arrival in backlog("ann", 9, 1) + backlog("bob", 9, 2):
        engine.submit(replace(arrival.job, memory_mb=20 * 1024))
    assert sorted(job_id[:3] for job_id in started(engine, 0)) == ["ann"] * 4 + ["bob"] * 4


def test_weights_must_be_positive() -> None:
    with pytest.raises(PolicyError, match=r"weights\.ann: .*greater than 0"):
        make_policy("fair_share", {"weights": {"ann": 0}})
