"""Policy patient: a job waits for near devices as long as the wait costs less than the distance."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rack_pools import RACKS, hold, started, wide

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job, Preempt, Progress, Start, Tier
from gpu_flows.schedulers.network.shape import Shape, tier_of
from gpu_flows.schedulers.policies.patient import Patient
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.simulation.simulator import simulate
from gpu_flows.schedulers.workload import Arrival


def network(job: Job, shape: Shape) -> float:
    """A job with a kind takes 1.5 times as long in one rack and three times across racks; or ten times."""
    sizes = {count for nodes in shape for count in nodes}
    if job.kind == "uneven is bad" and len(sizes) > 1:
        return 10.0
    return (1.0, 1.5, 3.0)[tier_of(shape)] if job.kind else 1.0


def pool(cluster: str = RACKS, **options: object) -> Engine:
    return Engine(declare(cluster), Patient(**options), can_preempt=True, network=network)


def test_an_insensitive_job_takes_distant_devices_at_once_and_a_sensitive_one_waits() -> None:
    engine = pool()
    hold(engine, "node-1", "node-2", "node-3", "node-4")
    engine.submit(wide("sensitive", "sensitive"))
    engine.submit(wide("insensitive"))
    assert started(engine.tick(0.0)) == ["insensitive"]
    offers = {offer.job.id: (offer.tier, offer.accepted, offer.patience_s) for offer in engine.offers}
    assert offers == {
        "sensitive": (Tier.RACK, False, 500.0),  # 1000 s, half as long again
        "insensitive": (Tier.RACK, True, 0.0),
    }


def test_it_accepts_when_it_has_waited_for_as_long_as_it_would_lose() -> None:
    engine = pool()
    hold(engine, "node-1", "node-2", "node-3", "node-4")
    engine.submit(wide("sensitive", "sensitive"))
    engine.tick(0.0)
    engine.plan_again()
    assert engine.tick(460.0) == []
    ((_, reason),) = engine.reasons(now=460.0)
    assert "declined a placement in one rack; waits up to 40 s more for one node (until " in reason.summary
    assert started(engine.tick(500.0)) == ["sensitive"]


def test_a_job_that_accepts_is_not_hidden_behind_one_that_declines() -> None:
    engine = pool()
    hold(engine, "node-1", "node-2", "node-3", "node-4")
    engine.submit(wide("patient", "sensitive", expected_s=1000.0))
    engine.tick(0.0)
    engine.submit(replace(wide("shorter", "sensitive", expected_s=900.0), submitted=400.0))
    assert engine.tick(400.0) == []
    assert [job.id for job in engine.first_waiting()] == ["shorter", "patient"]
    assert engine.wake_at == 500.0
    assert started(engine.tick(500.0)) == ["patient"]
    assert engine.wake_at == 850.0, "the shorter job then accepts the other rack"


def test_a_job_that_does_not_divide_evenly_accepts_two_racks_in_the_end() -> None:
    engine = pool("2x3@1", lease_s=1e9)
    hold(engine, "node-1", "node-2")
    engine.submit(wide("odd", "sensitive", gpus=3))
    assert engine.tick(0.0) == []
    assert engine.wake_at == 2000.0
    assert started(engine.tick(2000.0)) == ["odd"]


def test_a_job_that_no_node_can_hold_any_more_accepts_a_rack_at_once() -> None:
    engine = pool("1x4@1+2x2@2")
    engine.submit(Job("first", gpus=4, nodes=("node-1",), preemptible=False, expected_s=1e6))
    engine.tick(0.0)
    engine.submit(wide("job", "sensitive", gpus=4))
    assert engine.tick(0.5) == []
    engine.set_node("node-1", False, "drained")
    assert started(engine.tick(1.0)) == ["job"]


def test_a_spread_job_goes_on_when_one_of_its_nodes_is_drained() -> None:
    engine = pool(lease_s=600.0, move_s=10.0)
    hold(engine, "node-1", "node-2", "node-3", "node-4")
    engine.submit(wide("job", "sensitive", expected_s=2000.0))
    engine.tick(0.0)
    engine.tick(1000.0)
    engine.set_node(engine.running["job"].nodes[0], False, "drained")
    assert engine.tick(1600.0) == []
    assert "job" in engine.running


def test_a_job_that_is_almost_done_waits_for_less_time() -> None:
    engine = pool()
    hold(engine, "node-1", "node-2", "node-3", "node-4")
    engine.submit(wide("sensitive", "sensitive"), Progress(1, 900.0, 1800.0, 900.0, stopped=0.0))
    assert engine.tick(49.0) == []
    assert started(engine.tick(50.0)) == ["sensitive"]


def test_a_job_of_unknown_duration_is_expected_to_take_as_long_again() -> None:
    engine = pool(unknown_s=100.0)
    hold(engine, "node-1", "node-2", "node-3", "node-4")
    engine.submit(wide("new", "sensitive", expected_s=None))
    engine.submit(wide("old", "sensitive", expected_s=None), Progress(1, 800.0, 1600.0, 800.0, stopped=0.0))
    engine.tick(0.0)
    assert started(engine.tick(50.0)) == ["new"]
    assert engine.tick(399.0) == []
    engine.ended("new")
    assert started(engine.tick(400.0)) == ["old"]


def test_equal_parts_are_preferred_if_the_network_likes_them_better() -> None:
    engine = pool("2x4@2")
    hold(engine, "node-1", "node-2")
    engine.submit(wide("job", "uneven is bad", gpus=4))
    engine.tick(1e6)
    assert engine.cluster.shape(engine.running["job"].devices) == ((2, 2),)


def test_the_least_remaining_service_goes_first_and_counts_the_network() -> None:
    engine = pool()
    engine.submit(Job("long", expected_s=3000.0))
    engine.submit(wide("wide and sensitive", "sensitive", gpus=4, expected_s=600.0))  # 600 x 1.5 x 4
    engine.submit(Job("half done", expected_s=4000.0), Progress(1, 2000.0, 2000.0, 2000.0, stopped=0.0))
    hold_all = Job("first", gpus=8, may_span_nodes=True, expected_s=1.0)
    engine.submit(hold_all)
    engine.tick(0.0)
    assert [job.id for job in engine.first_waiting()] == ["half done", "long", "wide and sensitive"]


def test_a_longer_job_gives_way_after_its_lease() -> None:
    engine = pool("1x1", lease_s=60.0)
    engine.submit(Job("long", expected_s=1000.0))
    engine.tick(0.0)
    engine.submit(Job("short", expected_s=100.0))
    assert engine.tick(30.0) == []
    assert engine.wake_at == 60.0
    actions = engine.tick(60.0)
    assert [type(action) for action in actions] == [Preempt, Start]
    assert list(engine.running) == ["short"]


@pytest.mark.parametrize(("move_s", "moves"), [(10.0, True), (10_000.0, False)])
def test_a_spread_job_moves_to_one_node_if_that_saves_more_than_the_move(move_s: float, moves: bool) -> None:
    engine = pool(lease_s=600.0, move_s=move_s)
    hold(engine, "node-1", "node-2", "node-3", "node-4")
    engine.submit(wide("job", "sensitive"))
    engine.tick(0.0)
    engine.tick(500.0)
    assert len(engine.running["job"].nodes) == 2
    engine.set_rate("job", 500.0, 1 / 1.5)
    engine.ended("held-3-node-4")
    engine.tick(600.0)
    engine.tick(1100.0)
    assert (engine.running["job"].nodes == ("node-4",)) == moves


def test_a_job_that_may_not_span_nodes_waits_for_one() -> None:
    engine = pool()
    hold(engine, "node-1", "node-2", "node-3", "node-4")
    engine.submit(Job("narrow", gpus=2, expected_s=10.0))
    assert engine.tick(1e6) == []
    assert engine.offers == ()


def test_a_job_that_takes_no_time_is_not_spread_against_its_wish() -> None:
    """It would lose nothing on distant devices, but does not allow them."""
    halves = [Arrival(Job(node, 0.0, 2, nodes=(node,)), 9.0) for node in ("node-1", "node-2")]
    arrivals = [*halves, Arrival(Job("short", 1.0, 3), 0.0)]
    found = simulate(arrivals, declare("2x4"), make_policy("patient"))
    assert not found.policy_error
    assert all(job.ended is not None for job in found.jobs)
