"""Offers that jobs accept or decline: what is recorded of them, what a waiting job says, what SQL answers."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import duckdb
import pytest
from analytics_history import History, T, copy_empty_warehouse
from fake_pool import FakePool, in_event_loop
from offering_policy import Offering

from gpu_flows.analytics import simulated_facts
from gpu_flows.analytics.facts import (
    Allocated,
    AttemptEnded,
    AttemptStarted,
    NodeSeen,
    Offered,
    ProgressReported,
)
from gpu_flows.analytics.sql_files import named_queries
from gpu_flows.common.clock import describe_time
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job, Offer, Reason, Start, Tier
from gpu_flows.schedulers.network.tiers import Tiers
from gpu_flows.schedulers.offer_log import Declined, OfferLog
from gpu_flows.schedulers.policy import State, make_policy
from gpu_flows.schedulers.simulation.conditions import Conditions
from gpu_flows.schedulers.simulation.simulator import simulate
from gpu_flows.schedulers.workload import Arrival

RACKS = "4x2@2"  # nodes 1 and 2 are in a rack, and 3 and 4


def wide(job_id: str, submitted: float = 0.0, gpus: int = 2) -> Job:
    return Job(job_id, submitted, gpus, may_span_nodes=True)


def occupy(engine: Engine, *nodes: str) -> None:
    """Let a job hold one device on each of these nodes."""
    for node in nodes:
        job = Job(f"on-{node}", gpus=1, nodes=(node,))
        assert engine.adopt(job, engine.cluster.nodes[node].node.devices[:1], 0.0, 1)


def engine_of(patience_s: float = 40.0, *, occupied: int = 4) -> Engine:
    engine = Engine(declare(RACKS), Offering(patience_s=patience_s))
    occupy(engine, *[f"node-{number}" for number in range(1, occupied + 1)])
    return engine


def reason_of(engine: Engine, now: float | None = None) -> Reason:
    [(_, reason)] = engine.reasons(now=now)
    return reason


# What is news


def test_an_offer_that_repeats_the_last_one_is_no_news() -> None:
    engine = engine_of()
    engine.submit(wide("a"))
    assert engine.tick(1.0) == []
    [offer] = engine.offers
    assert (offer.tier, offer.accepted, offer.waited_s) == (Tier.RACK, False, 1.0)
    for now in (2.0, 3.0):
        engine.plan_again()
        assert engine.tick(now) == []
        assert engine.offers == ()
    assert engine.wake_at == 40.0
    [start] = engine.tick(40.0)
    assert isinstance(start, Start)
    [offer] = engine.offers
    assert (offer.accepted, offer.waited_s) == (True, 40.0)
    assert engine.declined("a") is None


def test_another_tier_and_the_next_wait_are_news() -> None:
    log, job = OfferLog(), wide("a")

    def add(tier: Tier, accepted: bool = False) -> int:
        return len(log.add([Offer(job, tier, accepted, 1.0, 9.0)], now=1.0))

    assert [add(Tier.CLUSTER), add(Tier.CLUSTER), add(Tier.RACK), add(Tier.CLUSTER)] == [1, 0, 1, 1]
    assert add(Tier.RACK, accepted=True) == 1
    log.forget("a")
    assert log.declined("a") is None
    assert add(Tier.CLUSTER) == 1, "it was preempted, and waits again"


def test_what_a_job_declined_is_forgotten_when_it_leaves_or_the_policy_changes() -> None:
    engine = engine_of()
    for leave in (lambda: engine.withdraw("a"), lambda: engine.swap(make_policy("priority"))):
        engine.swap(Offering())
        engine.submit(wide("a"))
        engine.tick(1.0)
        assert engine.declined("a")
        leave()
        assert engine.declined("a") is None


def test_what_a_job_declined_is_forgotten_when_it_starts_or_asks_for_something_else() -> None:
    engine = Engine(declare(RACKS), Offering(), can_preempt=True)
    occupy(engine, *[f"node-{number}" for number in range(1, 5)])
    engine.submit(wide("a"))
    engine.tick(1.0)
    assert engine.declined("a")
    engine.submit(wide("a", gpus=3))
    assert engine.declined("a") is None
    engine.tick(2.0)
    assert engine.declined("a")

    def start_without_an_offer(state: State) -> None:
        [job] = state.waiting
        free = [each.device for node in state.cluster for each in node.devices if not each.holders]
        state.draft.start(job, tuple(free[: job.gpus]))

    engine.policy.plan = start_without_an_offer  # type: ignore[method-assign]
    engine.plan_again()
    assert len(engine.tick(3.0)) == 1
    assert engine.declined("a") is None


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"tier": 0}, "tier is 0 and not a Tier"),
        ({"accepted": None}, "accepted is None and not True or False"),
        ({"patience_s": None}, "patience_s is None and not a number"),
        ({"patience_s": math.nan}, "patience_s is nan and not a number"),
        ({"waited_s": "long"}, "must be finite numbers"),
        ({"slowdown": math.inf}, "must be finite numbers"),
        ({"sensitivity": math.nan}, "must be finite numbers"),
        ({"job": wide("b")}, "an offer to job b, which neither waits nor starts"),
        ({"job": wide("on-node-1")}, "an offer to job on-node-1, which neither waits nor starts"),
    ],
)
def test_an_invalid_offer_is_an_error_of_the_policy(wrong: dict[str, Any], reason: str) -> None:
    class Wrong(Offering):
        name = "wrong"

        def plan(self, state: State) -> None:
            [job] = state.waiting
            state.draft.note(Offer(job, Tier.NODE, False, 1.0, math.inf)._replace(**wrong))

    engine = Engine(declare(RACKS), Wrong())
    occupy(engine, "node-1")
    engine.submit(wide("a"))
    [start] = engine.tick(1.0)
    assert isinstance(start, Start), "FIFO starts it"
    assert reason in engine.policy_error
    assert engine.offers == ()


def test_an_offer_of_infinite_patience_and_one_to_a_job_that_this_plan_started_are_valid() -> None:
    class Late(Offering):
        name = "late"

        def plan(self, state: State) -> None:
            for job in list(state.waiting):
                state.draft.start(job, state.cluster.nodes["node-1"].node.devices)
                state.draft.note(Offer(job, Tier.NODE, True, 1, math.inf))

    engine = Engine(declare(RACKS), Late())
    engine.submit(wide("a"))
    assert len(engine.tick(1.0)) == 1
    assert engine.policy_error == ""
    assert [offer.figures()["patience_s"] for offer in engine.offers] == [None]


def test_a_job_that_keeps_its_devices_was_offered_none() -> None:
    class Restarting(Offering):
        name = "restarting"
        moves_running = True

        def plan(self, state: State) -> None:
            for running in list(state.running.values()):
                state.draft.preempt(running.job.id)
                state.draft.start(running.job, running.devices)
                state.draft.note(Offer(running.job, Tier.NODE, True, 0.0, 0.0))

    engine = Engine(declare(RACKS), Restarting(), can_preempt=True)
    occupy(engine, "node-1")
    assert engine.tick(1.0) == []
    assert (engine.policy_error, engine.offers) == ("", ())


class Failing(Offering):
    """Makes offers, and then the plan fails or is undone."""

    name = "failing"
    undo = False

    def plan(self, state: State) -> None:
        checkpoint = state.draft.checkpoint()
        super().plan(state)
        if self.undo:
            state.draft.rollback(checkpoint)
        else:
            raise ValueError("no")


def test_a_rejected_plan_leaves_no_offers() -> None:
    engine = Engine(declare(RACKS), Failing())
    engine.submit(wide("a"))
    assert len(engine.tick(1.0)) == 1, "FIFO starts it"
    assert engine.policy_error
    assert engine.offers == ()
    assert engine.declined("a") is None


def test_an_offer_whose_start_is_undone_was_not_accepted() -> None:
    engine, policy = engine_of(occupied=3), Failing()
    policy.undo = True
    engine.swap(policy)
    engine.submit(wide("near"))
    engine.submit(wide("far", 0.5))
    assert engine.tick(1.0) == []
    assert [(offer.job.id, offer.accepted) for offer in engine.offers] == [("far", False)]


# What a waiting job says


def test_a_job_that_declined_says_what_it_waits_for_and_how_long() -> None:
    engine = engine_of()
    engine.submit(wide("a", gpus=3))
    engine.tick(1.0)
    at = describe_time(40.0, 2.5, with_zone=True)
    reason = reason_of(engine, now=2.5)
    assert reason.code == "declined"
    assert reason.summary == (
        "1st in the queue, needs 3 GPUs; 4 such are free, but it declined a placement across racks; "
        f"waits up to 38 s more for one rack (until {at})."
    )
    assert "policy set" in reason.fix
    assert "waits for one rack." in reason_of(engine).summary, "without a clock"
    occupy_rest = wide("rest", gpus=2)
    engine.adopt(occupy_rest, (declare(RACKS)[0].devices[1], declare(RACKS)[1].devices[1]), 2.0, 1)
    assert reason_of(engine, now=2.5).code == "capacity", "nothing is free that it could take"


@pytest.mark.parametrize(
    ("tier", "left_s", "text"),
    [
        (Tier.RACK, 0.4, "declined a placement in one rack; waits up to 1 s more for one node (until "),
        (Tier.RACK, 119.5, "waits up to 120 s more for one node"),
        (Tier.RACK, 600.0, "waits up to 10 min more"),
        (Tier.CLUSTER, 9 * 3600.0, "waits up to 9 h more for one rack"),
        (Tier.CLUSTER, math.inf, "declined a placement across racks; waits for one rack"),
        (Tier.CLUSTER, 1e18, "declined a placement across racks; waits for one rack"),
        (Tier.CLUSTER, math.nan, "declined a placement across racks; waits for one rack"),
    ],
)
def test_the_rest_of_the_wait_is_rounded(tier: Tier, left_s: float, text: str) -> None:
    now = 1_700_000_000.0
    declined = Declined(Offer(wide("a"), tier, False, 0.0, 0.0), now + left_s)
    assert text in declined.describe(now)
    assert ("until" in declined.describe(now)) == (left_s < 1e9)


# Facts


def offers(facts: list[Any]) -> list[tuple[Any, ...]]:
    found = [fact for fact in facts if isinstance(fact, Offered)]
    return [(f.job_id, f.policy, f.tier, f.accepted, f.waited_s, f.patience_s, f.slowdown) for f in found]


async def check_recorded(pool: FakePool, name: str) -> None:
    """The second job finds room on two nodes only, and takes it when it has waited for 40 s."""
    pool.engine.set_network(Tiers(nodes=1.5).slowdown)
    pool.submit("first", gpus=3, may_span_nodes=True)
    await pool.wait_for_running("first")
    pool.submit("second", gpus=5, may_span_nodes=True)
    await pool.wait_for(lambda: pool.engine.declined("second"), "it declines")
    pool.runtime.now += 2
    pool.dispatcher.plan_again()
    await pool.settle()
    assert not pool.engine.policy_error
    pool.runtime.now += 38
    pool.dispatcher.plan_again()
    await pool.wait_for_running("first", "second")
    assert offers(pool.facts) == [
        ("first", name, "node", True, 0.0, 40.0, 1.0),
        ("second", name, "rack", False, 0.0, 40.0, 1.5),
        ("second", name, "rack", True, 40.0, 40.0, 1.5),
    ]
    await pool.dispatcher.close()


@in_event_loop
async def test_offers_are_recorded(tmp_path: Path) -> None:
    await check_recorded(FakePool(tmp_path, "2x4", Offering()), "offering")


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the policy as another package, for child processes."""
    info = tmp_path / "plugin" / "plugin-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[gpu_flows.policies]\noffering = offering_policy:Offering\n")
    path = [str(info.parent), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))


@pytest.mark.usefixtures("plugin")
def test_offers_of_a_policy_of_another_package_are_recorded(tmp_path: Path) -> None:
    @in_event_loop
    async def check() -> None:
        pool = FakePool(tmp_path, "2x4")
        policy = await pool.dispatcher.open_policy("offering", {}, is_new_choice=False)
        pool.dispatcher.swap(policy, {}, "priority")
        await check_recorded(pool, "offering")

    check()


def test_simulated_offers_are_facts(tmp_path: Path) -> None:
    database = copy_empty_warehouse(tmp_path)
    jobs = wide("a", 0.0, 3), wide("b", 1.0, 3), wide("c", 2.0, 2)
    arrivals = [Arrival(job, 100.0) for job in jobs]
    found = simulate(arrivals, declare("2x4@1"), Offering(patience_s=20.0))
    experiment = simulated_facts.Experiment.of("test", {}, arrivals)
    for _ in range(2):  # recording it again changes nothing
        simulated_facts.write_simulations(database, experiment, {"offering": found}, now=T)
    with duckdb.connect(str(database), read_only=True) as connection:
        rows = connection.execute(
            "select name, tier, accepted, waited_s, patience_s, experiment from offer_history order by time"
        ).fetchall()
        tiers = connection.execute(
            "select tier, count(*) from attempt_tiers group by tier order by tier"
        ).fetchall()
        for query in named_queries():
            given = {each.name: each.default for each in query.parameters}
            assert connection.execute(query.sql, given).description
    assert [row[:-1] for row in rows] == [
        ("a", "node", True, 0.0, 20.0),
        ("b", "node", True, 0.0, 20.0),
        ("c", "cluster", False, 0.0, 20.0),
        ("c", "cluster", True, 20.0, 20.0),
    ]
    assert {row[-1] for row in rows} == {experiment.name}
    assert tiers == [("cluster", 1), ("node", 2)]


def test_simulated_attempts_know_what_the_network_took(tmp_path: Path) -> None:
    """A job across racks takes twice as long as on one node: half of its time is communication."""
    database = copy_empty_warehouse(tmp_path)
    arrivals = [Arrival(wide("far", 0.0, 6), 50.0), Arrival(wide("near", 0.0, 2), 50.0)]
    conditions = Conditions(network=Tiers(nodes=1.5, racks=2.0))
    experiment = simulated_facts.Experiment.of("test", {}, arrivals)
    found = {"fifo": simulate(arrivals, declare("2x4@1"), make_policy("fifo"), conditions)}
    simulated_facts.write_simulations(database, experiment, found, now=T)
    with duckdb.connect(str(database), read_only=True) as connection:
        rows = connection.execute(
            "select name, tier, run_s, comm_s, comm_percent from communication order by name"
        ).fetchall()
    assert rows == [("far", "cluster", 100.0, 50.0, 50.0), ("near", "node", 50.0, 0.0, 0.0)]


# Views


def place(history: History, job_id: str, attempt: int, at: float, *nodes: str) -> None:
    """Record an attempt of ten seconds with a device on each of these nodes, by name."""
    comm_s = 2.5 if len(set(nodes)) > 1 else None
    history.record(
        AttemptStarted(job_id, attempt, "dally", "process", "[]", T + at, T + at),
        *(Allocated(job_id, attempt, f"{node}-{at}-{n}", node, 0, T + at) for n, node in enumerate(nodes)),
        AttemptEnded(job_id, attempt, T + at + 10, "preempted", 0, comm_s=comm_s),
    )


def test_the_tier_of_an_attempt_follows_the_racks_of_that_time(tmp_path: Path) -> None:
    history = History(tmp_path)
    for node, rack in (("n1", "east"), ("n2", "east"), ("n3", "west")):
        history.record(NodeSeen(T, "pool", node, rack))
    history.record(NodeSeen(T + 100, "pool", "n3", "east"), NodeSeen(T, "other", "n2", "west"))
    history.job("a", 0)
    for attempt, nodes in enumerate((["n1", "n1"], ["n1", "n2"], ["n1", "n3"]), start=1):
        place(history, "a", attempt, 10.0 * attempt, *nodes)
    place(history, "a", 4, 110.0, "n1", "n3")
    place(history, "a", 5, 130.0, "n1", "unknown")
    assert history.query("select attempt, tier, nodes, racks from attempt_tiers order by attempt") == [
        (1, "node", 1, 1),
        (2, "rack", 2, 1),
        (3, "cluster", 2, 2),
        (4, "rack", 2, 1),
        (5, None, 2, 1),
    ]


def test_declined_offers_show_how_long_the_job_waited_for_a_better_one(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.job("a", 0)
    for at, tier, accepted, patience_s in (
        (5.0, Tier.CLUSTER, False, math.inf),
        (10.0, Tier.RACK, False, 40.0),
        (25.0, Tier.NODE, True, 0.0),
        (50.0, Tier.RACK, False, 40.0),
    ):
        offer = Offer(wide("a"), tier, accepted, at, patience_s, 1.5, 0.25)
        history.record(Offered.of(offer, "a", "pool", "dally", T + at))
    history.record(Offered.of(Offer(wide("b"), Tier.RACK, False, 0.0, 9.0), "b", "pool", "dally", T))
    history.record(Offered.of(Offer(wide("b"), Tier.RACK, True, 0.0, 9.0), "b", "pool", "dally", T))
    both = history.query("select accepted from offers where job_id = 'b' order by accepted")
    assert both == [(False,), (True,)], "one plan may decline devices of a tier and take others"
    columns = "tier, patience_s, more_s, waited_after_s"
    rows = history.query(f"select {columns} from offer_history where job_id = 'a' order by time")
    assert rows == [
        ("cluster", None, None, 20.0),
        ("rack", 40.0, 30.0, 15.0),
        ("node", 0.0, None, None),
        ("rack", 40.0, 0.0, None),
    ]


def test_the_cost_of_the_network_is_told_by_attempt(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.record(NodeSeen(T, "pool", "n1", "east"), NodeSeen(T, "pool", "n2", "west"))
    history.job("a", 0)
    place(history, "a", 1, 10.0, "n1", "n1")
    place(history, "a", 2, 30.0, "n1", "n2")
    for attempt, began, per_s in ((1, 10.0, 0.01), (2, 30.0, 0.004)):
        for second in (1, 3, 9):
            report = ProgressReported("a", attempt, T + began + second, second * per_s, 1.0, "tqdm")
            history.record(report)
    columns = "tier, run_s, comm_s, comm_percent, work_per_hour, slowdown"
    rows = history.query(f"select {columns} from communication order by attempt")
    assert rows[0] == ("node", 10.0, None, None, pytest.approx(36), pytest.approx(1))
    assert rows[1] == ("cluster", 10.0, 2.5, 25.0, pytest.approx(14.4), pytest.approx(2.5))
