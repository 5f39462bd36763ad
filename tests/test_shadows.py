"""Shadows plan on the state of a pool without any effect, and are compared with what was decided."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.forecast import shadows as module
from gpu_flows.schedulers.forecast.projection import Projection, project
from gpu_flows.schedulers.forecast.shadows import Moves, Shadows, TookTooLong, Verdict
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.policies.fifo import Fifo
from gpu_flows.schedulers.policy import Policy, State, make_policy
from gpu_flows.schedulers.protection import Protection
from gpu_flows.schedulers.workload import Arrival
from tests.small_pools import pool, submit
from tests.test_forecast import exactly, make_state, waiting
from tests.test_policy_properties import EVERY, MOTLEY, WITH_OPTIONS
from tests.test_policy_properties import quick as usual
from tests.workloads import motley_workloads

quick = settings(usual, max_examples=6)  # each asks the policy at every job that comes


class Clock:
    """Time passes when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def observe(shadows: Shadows, engine: Engine, now: float = 100.0) -> dict[str, Verdict]:
    """Let the engine's policy decide, and return what the shadows would have done."""
    before = describe(engine)
    with_plan = deepcopy(engine)
    decided = with_plan.make_plan(now)
    assert not with_plan.policy_error
    found = {verdict.shadow: verdict for verdict in shadows.observe(engine, Moves.of(decided), now)}
    assert describe(engine) == before, "no shadow changes the state of the pool"
    return found


def of(names: Mapping[str, Mapping[str, Any]] | list[str], **settings: Any) -> Shadows:
    shadows = Shadows(settings.pop("clock", Clock()), **settings)
    shadows.choose(names if isinstance(names, Mapping) else {name: {} for name in names})
    assert not any(shadows.errors().values())
    return shadows


def describe(engine: Engine) -> object:
    """The state of an engine: its cluster, and its waiting and running jobs, all in order. The ranks of jobs
    are not part of it: a policy may change its mind about them."""
    cluster = engine.cluster
    devices = [
        (
            state.device,
            dict(state.holders),
            bool(state.holders) and state.exclusive,
            state.free_mb,
            state.healthy,
            state.utilization,
        )
        for state in cluster.devices.values()
    ]
    nodes = [
        (node.name, node.up, node.idle, pytest.approx(node.free_cpus), node.free_ram_mb)
        for node in cluster.nodes.values()
    ]
    sums = (
        cluster.idle,
        list(cluster._at_least),
        dict(cluster._held),
        [rack.idle for rack in cluster.racks.values()],
    )
    waiting = [(job, engine.progress(job.id)) for job in engine.waiting]
    running = [(job_id, replace(running)) for job_id, running in engine.running.items()]
    return devices, nodes, sums, waiting, running


# --- no effect ---


@pytest.mark.parametrize(("policy", "options"), WITH_OPTIONS, ids=str)
@given(arrivals=motley_workloads())
@quick
def test_a_rehearsal_leaves_the_state_as_it_was(
    policy: str, options: dict[str, object], arrivals: list[Arrival]
) -> None:
    engine = Engine(MOTLEY, make_policy(policy, options), can_preempt=True)
    for number, arrival in enumerate(arrivals):
        engine.submit(replace(arrival.job, submitted=float(number)))
        before = describe(engine)
        engine.rehearse(number + 0.5)
        assert not engine.policy_error
        assert describe(engine) == before
        if number % 3 == 2:
            engine.tick(number + 0.6)
        if number % 5 == 4 and engine.running:
            engine.ended(next(iter(engine.running)))


@pytest.mark.parametrize("policy", EVERY)
@given(arrivals=motley_workloads())
@quick
def test_a_shadow_has_the_state_of_the_pool_at_each_decision(policy: str, arrivals: list[Arrival]) -> None:
    engine, shadows = Engine(MOTLEY, make_policy("srtf"), can_preempt=True), of([policy])
    for number, arrival in enumerate(arrivals):
        engine.submit(replace(arrival.job, submitted=float(number)))
        observe(shadows, engine, number + 0.5)
        shadow = shadows._shadows[policy]
        assert not shadow.error
        assert shadow._engine
        theirs, mine = describe(shadow._engine), describe(engine)
        assert jobs_of(theirs) == jobs_of(mine)
        assert theirs[:3] == mine[:3]  # type: ignore[index]
        engine.tick(number + 0.6)
        if number % 4 == 3 and engine.running:
            engine.ended(next(iter(engine.running)))


def jobs_of(described: Any) -> object:
    """The jobs of a state, without what only the pool's own engine knows of them."""
    waiting, running = described[3:]
    held = {job_id: (each.job, each.devices, each.since, each.before) for job_id, each in running}
    return waiting, held


# --- agreement ---


def test_agreement_counts_the_moves_that_both_make() -> None:
    # FIFO stops at `wide`, which does not fit beside `old`; sjf passes it.
    engine = pool("fifo", "1x3")
    submit(engine, Job("old", 0.0, 2), Job("wide", 1.0, 3), Job("short", 2.0, expected_s=5.0))
    found = observe(of(["fifo", "sjf"]), engine)
    assert found["fifo"] == Verdict("fifo", 1, 0, True, True, 1.0)
    assert found["sjf"] == Verdict("sjf", 2, 0, False, False, 1 / 2)


def test_the_same_jobs_on_other_devices_are_told_apart() -> None:
    engine = pool("fifo", "2x2", placement="pack")
    submit(engine, Job("first", 0.0, 1))
    engine.tick(0.0)
    submit(engine, Job("next", 1.0, 1))
    found = observe(of({"fifo": {"placement": "pack"}, "sjf": {"placement": "spread"}}), engine)
    assert found["fifo"] == Verdict("fifo", 1, 0, True, True, 1.0)
    assert found["sjf"] == Verdict("sjf", 1, 0, True, False, 1.0)


def test_preemptions_are_moves() -> None:
    engine = pool("fifo", "1x1", preempt=True)
    submit(engine, Job("long", 0.0, 1, expected_s=1000.0))
    engine.tick(0.0)
    engine.started("long", 0.0, 1)
    submit(engine, Job("short", 1.0, 1, expected_s=5.0))
    shadows = of(["fifo", "srtf"])
    found = observe(shadows, engine, 200.0)
    assert "fifo" not in found, "neither of them moves anything"
    assert (found["srtf"].started, found["srtf"].preempted, found["srtf"].agreement) == (1, 1, 0.0)
    engine.set_protection(Protection(min_run_seconds=3600))
    assert not observe(shadows, engine, 300.0), "the pool protects its jobs from its shadows as well"


def test_jobs_without_devices_are_nobodys_decision() -> None:
    engine = pool("fifo", "1x1")
    submit(engine, Job("coordinator", 0.0, 0))
    assert not observe(of(["sjf"]), engine)


# --- suspension ---


class Odd(Fifo):
    """Does what a test says."""

    name = "odd"
    deed: Callable[[], object] = staticmethod(lambda: None)

    def plan(self, state: State) -> None:
        super().plan(state)
        type(self).deed()


def open_odd(deed: Callable[[], object]) -> Callable[[str, dict[str, Any]], Policy]:
    odd = type("OddNow", (Odd,), {"deed": staticmethod(deed)})
    return lambda name, options: odd(**options) if name == "odd" else make_policy(name, options)


def raise_zero() -> None:
    raise ZeroDivisionError("by a policy")


@pytest.mark.parametrize(
    ("deed", "reason"),
    [(raise_zero, "ZeroDivisionError: by a policy"), (lambda: exit(3), "SystemExit: 3"), (lambda: 3 / 0, "")],
)
def test_a_shadow_that_fails_is_suspended_until_the_block_is_saved_again(
    deed: Callable[[], object], reason: str
) -> None:
    engine = pool("fifo", "1x4")
    submit(engine, Job("a", 0.0, 1))
    shadows = of(["odd", "sjf"], open_policy=open_odd(deed))
    found = observe(shadows, engine)
    assert reason in found["odd"].error
    assert found["sjf"].same_jobs, "the others are not affected"
    assert shadows.errors() == {"odd": found["odd"].error, "sjf": ""}
    assert observe(shadows, engine).keys() == {"sjf"}
    shadows.choose({"odd": {}, "sjf": {}})
    assert observe(shadows, engine).keys() == {"odd", "sjf"}


def test_a_shadow_that_is_slow_is_suspended_and_one_that_uses_its_share_is_not_asked() -> None:
    engine, clock, takes_s = pool("fifo", "1x4"), Clock(), 0.9
    submit(engine, Job("a", 0.0, 1))

    def plan() -> None:
        clock.now += takes_s

    shadows = of(["odd", "sjf"], open_policy=open_odd(plan), clock=clock)
    asked = [observe(shadows, engine) for _ in range(8)]
    assert ["odd" in found for found in asked] == [True] * 3 + [False] * 5, "it has used what it had at first"
    assert all("sjf" in found for found in asked)
    clock.now += 20.0
    assert observe(shadows, engine)["odd"].skipped == 5
    takes_s = module.PLAN_WITHIN_S + 0.1
    clock.now += 100.0
    assert observe(shadows, engine)["odd"].error == "it did not plan within 1 s"


def test_a_plan_is_broken_off_after_its_time() -> None:
    engine, guarded = pool("fifo", "1x4"), []

    @contextmanager
    def guard(name: str, seconds: float) -> Iterator[None]:
        guarded.append((name, seconds))
        yield

    def break_off() -> None:
        raise TookTooLong

    submit(engine, Job("a", 0.0, 1))
    shadows = of(["odd"], open_policy=open_odd(break_off), guard=guard)
    assert observe(shadows, engine)["odd"].error == "it did not plan within 1 s"
    assert guarded == [("odd", module.PLAN_WITHIN_S)]


def test_an_unknown_shadow_or_option_is_told_and_disturbs_nothing() -> None:
    engine = pool("fifo", "1x4")
    submit(engine, Job("a", 0.0, 1))
    shadows = Shadows(Clock())
    shadows.choose({"sjff": {}, "fifo": {"skip": "perhaps"}, "sjf": {}})
    errors = shadows.errors()
    assert "sjf" in errors.pop("sjff")
    assert "skip" in errors.pop("fifo")
    assert errors == {"sjf": ""}
    assert observe(shadows, engine).keys() == {"sjf"}
    shadows.choose({"sjf": {}})
    assert shadows.errors() == {"sjf": ""}


def test_an_edit_of_one_shadow_leaves_what_the_others_keep_in_mind() -> None:
    shadows = of(["sjf", "tiresias"])
    sjf, tiresias = shadows._shadows["sjf"].policy, shadows._shadows["tiresias"].policy
    shadows.choose({"sjf": {}, "tiresias": {"quantum": 10.0}})
    assert shadows._shadows["sjf"].policy is sjf
    assert shadows._shadows["tiresias"].policy is not tiresias


def test_skipped_decisions_are_counted() -> None:
    engine = pool("fifo", "1x4")
    submit(engine, Job("a", 0.0, 1))
    shadows = of(["sjf"])
    shadows.skip()
    shadows.skip()
    assert observe(shadows, engine)["sjf"].skipped == 2
    assert observe(shadows, engine)["sjf"].skipped == 0


# --- projections ---


def test_the_turnaround_under_other_policies_is_projected() -> None:
    # `wide` needs both devices at 160; fifo lets `small` wait for it until 210, sjf starts it at once.
    state = make_state(waiting=(waiting("wide", 2, 70.0), waiting("small", 1, 80.0)))
    expected = {"wide": 50, "small": 10, "a": 100}
    state = replace(state, durations={job_id: exactly(each) for job_id, each in expected.items()})
    fifo, sjf = project(state, {"sjf": {}})
    assert fifo == Projection("fifo", 3, (110 + 140 + 140) / 3, 170.0)
    assert sjf == Projection("sjf", 3, (110 + 140 + 30) / 3, 160.0)


def test_a_projection_leaves_out_what_cannot_be_simulated() -> None:
    assert [each.policy for each in project(make_state(), {"nothing": {}, "sjf": {}})] == ["fifo", "sjf"]
    assert project(make_state(), {"sjf": {}}, is_late=lambda: True) == []
