"""Policy dally: which devices a job accepts and when, who goes first, and how the timers are tuned."""

from __future__ import annotations

import math

import pytest
from rack_pools import RACKS, hold, started, wide

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job, Offer, Preempt, Progress, Tier
from gpu_flows.schedulers.network.shape import Shape, tier_of
from gpu_flows.schedulers.policies.dally import Dally, Timers, Tuner
from gpu_flows.schedulers.policy import PolicyError, make_policy
from gpu_flows.schedulers.protection import UNPROTECTED, Protection

PATIENT = {"timers": "manual", "node_timer_s": 100.0, "rack_timer_s": 200.0, "lease_s": 10_000.0}


def pool(options: dict[str, object], cluster: str = RACKS, protection: Protection = UNPROTECTED) -> Engine:
    return Engine(declare(cluster), Dally(**options), can_preempt=True, protection=protection)


def shape_of(engine: Engine, job_id: str) -> Shape:
    return engine.cluster.shape(engine.running[job_id].devices)


# -- offers and delay timers --------------------------------------------------------------------


def test_a_node_is_taken_at_once() -> None:
    engine = pool(PATIENT)
    engine.submit(wide())
    assert started(engine.tick(0.0)) == ["wide"]
    assert shape_of(engine, "wide") == ((2,),)
    assert [(offer.tier, offer.accepted, offer.patience_s) for offer in engine.offers] == [
        (Tier.NODE, True, 0.0)
    ]


def test_one_rack_is_declined_until_the_node_timer_is_over() -> None:
    engine = pool(PATIENT)
    hold(engine, "node-1", "node-2", "node-3", "node-4")
    engine.submit(wide())
    assert engine.tick(0.0) == []
    assert engine.offers == (Offer(wide(), Tier.RACK, False, 0.0, 100.0),)
    assert engine.wake_at == 100.0
    engine.plan_again()
    assert engine.tick(60.0) == []
    assert engine.offers == (), "the same decline is noted once"
    assert started(engine.tick(100.0)) == ["wide"]
    assert tier_of(shape_of(engine, "wide")) == Tier.RACK
    assert engine.offers == (Offer(wide(), Tier.RACK, True, 100.0, 100.0),)


def test_devices_across_racks_are_declined_until_the_rack_timer_is_over() -> None:
    engine = pool(PATIENT)
    hold(engine, "node-1", "node-1", "node-2", "node-3", "node-3", "node-4")
    engine.submit(wide())
    for now in (0.0, 100.0, 199.0):
        engine.plan_again()
        assert engine.tick(now) == []
    assert engine.wake_at == 200.0
    assert started(engine.tick(200.0)) == ["wide"]
    assert tier_of(shape_of(engine, "wide")) == Tier.CLUSTER


@pytest.mark.parametrize(
    ("node_timer_s", "rack_timer_s", "first_plan"),
    [(100.0, 100.0, 0.0), (100.0, 50.0, 0.0), (100.0, 200.0, 300.0), (1e-12, 1e-12, 1e6)],
)
def test_a_job_whose_timers_end_together_goes_through_both(
    node_timer_s: float, rack_timer_s: float, first_plan: float
) -> None:
    timers = {"timers": "manual", "node_timer_s": node_timer_s, "rack_timer_s": rack_timer_s}
    engine = pool({**timers, "lease_s": 1e9})
    hold(engine, "node-1", "node-1", "node-2", "node-3", "node-3", "node-4")
    engine.submit(wide(submitted=min(0.0, first_plan)))
    engine.tick(first_plan)
    for _ in range(2):
        if "wide" not in engine.running:
            assert engine.wake_at is not None, "the job would wait for ever"
            engine.tick(engine.wake_at)
    assert tier_of(shape_of(engine, "wide")) == Tier.CLUSTER
    assert not engine.policy_error


def test_a_freed_node_ends_the_wait() -> None:
    engine = pool(PATIENT)
    hold(engine, "node-1", "node-2", "node-3", "node-4")
    engine.submit(wide())
    engine.tick(0.0)
    engine.ended("held-2-node-3")
    assert started(engine.tick(10.0)) == ["wide"]
    assert engine.running["wide"].nodes == ("node-3",)


@pytest.mark.parametrize(("gpus", "tier"), [(4, Tier.RACK), (6, Tier.CLUSTER)])
def test_a_job_does_not_wait_for_what_could_never_hold_it(gpus: int, tier: Tier) -> None:
    engine = pool(PATIENT)
    engine.submit(wide(gpus=gpus))
    assert started(engine.tick(0.0)) == ["wide"]
    assert tier_of(shape_of(engine, "wide")) == tier
    assert engine.offers[0].patience_s == 0.0


def test_a_node_that_is_down_is_not_waited_for() -> None:
    engine = pool(PATIENT, "1x4@1+2x2@2")
    engine.set_node("node-1", False, "repaired tomorrow")
    engine.submit(wide(gpus=4))
    assert started(engine.tick(0.0)) == ["wide"]


def test_without_timers_a_job_takes_what_is_free() -> None:
    engine = pool({"timers": "none"})
    hold(engine, "node-1", "node-1", "node-2", "node-3", "node-3", "node-4")
    engine.submit(wide())
    assert started(engine.tick(0.0)) == ["wide"]


def test_consolidated_jobs_wait_as_long_as_it_takes() -> None:
    engine = pool({"timers": "consolidated", "lease_s": 1e9})
    hold(engine, "node-1", "node-2", "node-3", "node-4")
    engine.submit(wide())
    assert engine.tick(0.0) == []
    engine.plan_again()
    assert engine.tick(1e7) == []
    ((_, reason),) = engine.reasons(now=1e7)
    assert "it declined a placement in one rack; waits for one node." in reason.summary


def test_a_job_that_may_not_span_nodes_is_offered_nothing_else() -> None:
    engine = pool({"timers": "none"})
    hold(engine, "node-1", "node-2", "node-3", "node-4")
    engine.submit(Job("narrow", gpus=2))
    assert engine.tick(0.0) == []
    assert engine.offers == ()


def test_devices_of_another_model_are_no_offer() -> None:
    engine = pool(PATIENT, "2x2:A100:40@2+2x2:T4:16@2")
    hold(engine, "node-1", "node-1", "node-2")
    engine.submit(Job("picky", gpus=2, may_span_nodes=True, models=("A100",)))
    assert engine.tick(0.0) == []
    assert engine.offers == ()


def test_a_job_behind_one_of_the_same_size_accepts_first_if_it_waited_longer() -> None:
    """The first in order never ran and has just arrived; the other one ran and has waited for long."""
    engine = pool(PATIENT)
    hold(engine, "node-1", "node-2", "node-3", "node-4")
    engine.submit(wide("new", submitted=150.0))
    engine.submit(wide("old"), Progress(1, ran_s=10.0, gpu_s=20.0, work_s=10.0, stopped=0.0))
    assert started(engine.tick(150.0)) == ["old"]


def test_a_job_that_declines_devices_says_how_long_it_still_waits() -> None:
    engine = pool(PATIENT)
    hold(engine, "node-1", "node-1", "node-2", "node-3", "node-3", "node-4")
    engine.submit(wide())
    engine.plan_again()
    engine.tick(160.0)
    ((_, reason),) = engine.reasons(now=160.0)
    assert "2 such are free, but it declined a placement across racks" in reason.summary
    assert "waits up to 40 s more for one rack (until " in reason.summary


# -- the order, leases and preemption ------------------------------------------------------------


def ran(work_s: float, stopped: float = 0.0) -> Progress:
    return Progress(1, ran_s=100.0, gpu_s=100.0, work_s=work_s, stopped=stopped)


def test_the_job_that_the_network_hurt_most_goes_first_and_a_new_one_before_it() -> None:
    engine = pool({"lease_s": 60.0}, "1x1")
    engine.submit(Job("whole"), ran(90.0))
    engine.submit(Job("hurt"), ran(50.0))
    engine.submit(Job("new", submitted=5.0))
    engine.submit(Job("hurt as much, stopped later"), ran(50.0, stopped=3.0))
    order = [job.id for job in engine.first_waiting()]
    assert order == ["new", "hurt", "hurt as much, stopped later", "whole"]


def test_after_its_lease_a_job_gives_way_to_one_with_a_lower_score() -> None:
    engine = pool({"lease_s": 60.0}, "1x1")
    engine.submit(Job("first"))
    engine.tick(0.0)
    engine.submit(Job("second", submitted=1.0))
    assert engine.tick(1.0) == []
    assert engine.wake_at == 60.0
    assert engine.tick(59.0) == []
    actions = engine.tick(60.0)
    assert [action.running.job.id for action in actions if isinstance(action, Preempt)] == ["first"]
    assert started(actions) == ["second"]


def test_after_its_lease_a_job_with_the_lower_score_stays() -> None:
    engine = pool({"lease_s": 60.0}, "1x1")
    engine.submit(Job("slow"))
    engine.tick(0.0)
    engine.set_rate("slow", 0.0, 0.2)
    engine.submit(Job("quick"), ran(90.0))
    assert engine.tick(60.0) == []
    assert list(engine.running) == ["slow"]


def test_a_wide_job_takes_the_devices_of_all_whose_lease_is_over() -> None:
    engine = pool({"lease_s": 60.0}, "1x4")
    for number in range(4):
        engine.submit(Job(f"narrow-{number}", submitted=float(number)))
        engine.tick(float(number))
    engine.submit(Job("wide", submitted=10.0, gpus=4))
    assert engine.tick(62.0) == [], "one lease is not over"
    actions = engine.tick(63.0)
    assert started(actions) == ["wide"]
    assert sum(isinstance(action, Preempt) for action in actions) == 4


def test_protected_jobs_keep_their_devices_after_their_lease() -> None:
    engine = pool({"lease_s": 60.0}, "1x2", Protection(min_run_seconds=100, most_preemptions=0))
    engine.submit(Job("first"))
    engine.submit(Job("never", preemptible=False))
    engine.tick(0.0)
    engine.submit(Job("second", submitted=1.0))
    engine.submit(Job("third", submitted=2.0))
    preempted = []
    now = 0.0
    while now < 400.0:
        now = engine.wake_at if engine.wake_at is not None else math.inf
        preempted += [(now, a.running.job.id) for a in engine.tick(now) if isinstance(a, Preempt)]
    assert not engine.policy_error
    assert min(at for at, _ in preempted) >= 100.0
    assert "never" not in {job_id for _, job_id in preempted}


def test_a_spread_job_moves_to_one_node_when_its_lease_is_over() -> None:
    engine = pool({"timers": "none", "lease_s": 60.0})
    hold(engine, "node-1", "node-2", "node-3", "node-4")
    engine.submit(wide())
    engine.tick(0.0)
    assert len(shape_of(engine, "wide")[0]) == 2
    engine.ended("held-3-node-4")
    assert engine.tick(30.0) == []
    engine.tick(60.0)
    assert engine.running["wide"].nodes == ("node-4",)


def test_a_spread_job_that_finds_nothing_better_goes_on() -> None:
    engine = pool({"timers": "none", "lease_s": 60.0})
    engine.submit(Job("full", gpus=2))
    hold(engine, "node-2", "node-3", "node-4")
    engine.submit(wide())
    engine.tick(0.0)
    before = engine.running["wide"]
    for now in (60.0, 120.0):
        engine.plan_again()
        assert not engine.tick(now)
    assert engine.running["wide"] is before


def test_a_spread_job_goes_on_when_one_of_its_nodes_is_drained() -> None:
    engine = pool({"timers": "none", "lease_s": 60.0})
    engine.submit(Job("full", gpus=2))
    hold(engine, "node-2", "node-3", "node-4")
    engine.submit(wide())
    engine.tick(0.0)
    drained = engine.running["wide"].nodes[0]
    engine.set_node(drained, False, "drained")
    assert engine.tick(60.0) == []
    assert "wide" in engine.running


# -- the auto-tuner -----------------------------------------------------------------------------


def test_timers_are_mean_plus_two_deviations_of_the_waits_in_leases() -> None:
    tuner = Tuner(lease_s=10.0, history=30)
    tuner.learn(4, Tier.NODE, 0.0, 60.0)  # 6 leases
    tuner.learn(4, Tier.NODE, 5.0, 100.0)  # 10 leases: mean 8, deviation 2
    tuner.learn(4, Tier.RACK, 5.0, 100.0)
    tuner.learn(4, Tier.RACK, 5.0, 190.0)  # 10 and 19 leases: mean 14.5, deviation 4.5
    assert tuner.timers(4, 10.0) == Timers(120.0, 240.0)
    assert tuner.timers(8, 10.0) == Timers(60.0, 120.0), "another demand has a history of its own"


def test_timers_have_bounds_and_forget() -> None:
    tuner = Tuner(lease_s=10.0, history=24)
    tuner.learn(2, Tier.NODE, 0.0, 9.0)
    assert tuner.timers(2, 0.0) == Timers(60.0, 120.0), (
        "a wait for a node of less than a lease does not count"
    )
    tuner.learn(2, Tier.NODE, 0.0, 400.0)
    tuner.learn(2, Tier.RACK, 0.0, 400.0)
    assert tuner.timers(2, 0.0) == Timers(200.0, 240.0), "0.8 of the history, rounded up, and the history"
    assert tuner.timers(2, 239.0) == Timers(200.0, 240.0)
    assert tuner.timers(2, 240.0) == Timers(60.0, 120.0)


def test_accepted_offers_tune_the_timers() -> None:
    engine = pool({"timers": "tuned", "lease_s": 10.0, "history": 24})
    for node in ("node-1", "node-2", "node-3", "node-4"):
        engine.submit(Job(f"held {node}", nodes=(node,), preemptible=False))
    engine.tick(0.0)
    engine.submit(wide("first", submitted=0.0))
    engine.tick(0.0)
    engine.tick(10.0)  # the leases of the jobs that hold the nodes are over
    assert engine.wake_at == 60.0, "six leases"
    engine.tick(60.0)
    assert tier_of(shape_of(engine, "first")) == Tier.RACK
    engine.ended("first")
    engine.ended("held node-1")
    engine.submit(wide("second", submitted=-20.0))
    engine.tick(61.0)  # waited for 8.1 leases
    assert engine.running["second"].nodes == ("node-1",)
    engine.submit(wide("third", submitted=61.0))
    engine.tick(61.0)
    assert engine.offers[0].patience_s == 90.0, "8.1 leases, rounded up"


def test_the_tuner_keeps_only_what_it_needs() -> None:
    tuner = Tuner(lease_s=10.0, history=24)
    for now in range(0, 100_000, 10):
        tuner.learn(2, Tier.RACK, float(now), 100.0)
    (waits,) = tuner._waits.values()
    assert len(waits._entries) == 24

    for options in ({"timers": "manual", "lease_s": 10.0}, {"timers": "tuned", "lease_s": 10.0}):
        engine = pool(options)
        job = wide() if options["timers"] == "manual" else Job("narrow", gpus=2)
        engine.submit(job)
        engine.tick(100.0)
        assert job.id in engine.running
        assert not engine.policy._tuner._waits, "nobody asks for these timers"


@pytest.mark.parametrize(
    "options", [{"timers": "sometimes"}, {"lease_s": 0}, {"history": 0}, {"node_timer_s": -1}]
)
def test_wrong_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(PolicyError, match="dally"):
        make_policy("dally", options)
