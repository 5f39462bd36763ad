"""A pool with racks: jobs decline distant devices or take them, and runs, SQL and commands show it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from conftest import eventually
from live import Pool

from gpu_flows.bootstrap.local_stack import Stack

pytestmark = pytest.mark.slow

RACKS = "4x2:GTX 1080 Ti:11@2"  # nodes 1 and 2 are in a rack, and 3 and 4
NODES = ("node-1", "node-2", "node-3", "node-4")
DECLINED = "declined a placement in one rack; waits up to "


def open_pool(stack: Stack) -> tuple[Pool, dict[str, str]]:
    """A pool in which a job holds one of the two devices of each node. Returns also these jobs, by node."""
    pool = Pool(stack)
    blockers = {node: pool.command("sleep 900", grace_seconds=0, nodes=[node]) for node in NODES}
    for run in blockers.values():
        pool.until(run, "Running")
    return pool, blockers


def submit_pair(pool: Pool, model: str = "vgg16", **variables: Any) -> str:
    """Submit a job for two devices, on any nodes, that trains the model by name."""
    return pool.submit(f"sleep 3 # --model={model}", gpus=2, may_span_nodes=True, **variables)


def offers_to(pool: Pool, run: str) -> list[tuple[Any, ...]]:
    return pool.sql(f"select tier, accepted, policy from offer_history where job_id = '{run}' order by time")


def tier_of(pool: Pool, run: str) -> str:
    """The tier of the job's attempt, as soon as it is in the warehouse."""
    query = f"select tier from attempt_tiers where job_id = '{run}'"
    return str(eventually(lambda: pool.sql(query), "its attempt is recorded")[0][0])


def waiting(pool: Pool, run: str) -> dict[str, Any]:
    return next((job for job in pool.status().waiting if job["id"] == run), {})


@pytest.mark.long
def test_timers_decide_how_long_a_job_waits_for_one_node(new_stack: Callable[..., Stack]) -> None:
    pool, blockers = open_pool(new_stack(RACKS))
    timers = {"timers": "manual", "lease_s": 3600, "rack_timer_s": 3600}
    pool.use_policy("dally", **timers, node_timer_s=600)
    patient = submit_pair(pool)
    message = eventually(
        lambda: DECLINED in (text := str(pool.run(patient)["state"]["message"])) and text, "a state message"
    )
    assert " more for one node (until " in message
    assert pool.state(patient) == "AwaitingGPU"
    offer = eventually(lambda: waiting(pool, patient).get("offer"), "the status shows the offer")
    assert (offer["tier"], offer["patience_s"]) == ("rack", 600)
    assert waiting(pool, patient)["reason"] == "declined"
    eventually(lambda: offers_to(pool, patient) == [("rack", False, "dally")], "the declined offer in SQL")
    eventually(lambda: DECLINED in pool.logs(patient), "the log says it as well")

    pool.cancel(blockers["node-3"])
    pool.until(patient, "Completed")
    assert tier_of(pool, patient) == "node"
    assert offers_to(pool, patient) == [("rack", False, "dally"), ("node", True, "dally")]
    assert pool.logs(patient).count("declined a placement") == 1

    blocker = pool.command("sleep 900", grace_seconds=0, nodes=["node-3"])
    pool.until(blocker, "Running")
    pool.use_policy("dally", **timers, node_timer_s=10)
    hasty = submit_pair(pool)
    pool.until(hasty, "Completed")
    assert tier_of(pool, hasty) == "rack"
    waits = pool.sql(f"select accepted, waited_s from offers where job_id = '{hasty}' order by time")
    assert [accepted for accepted, _ in waits] == [False, True]
    assert waits[1][1] >= 10, "it waited as long as the timer says"


@pytest.mark.long
def test_a_sensitive_job_waits_for_one_node_and_an_insensitive_one_does_not(
    new_stack: Callable[..., Stack],
) -> None:
    """The network table of the pool tells that AlexNet loses much on two nodes, and a short ResNet little."""
    pool, blockers = open_pool(new_stack(RACKS))
    pool.use_policy("patient")
    sensitive = submit_pair(pool, "alexnet", expected_seconds=3600)
    eventually(lambda: waiting(pool, sensitive).get("reason") == "declined", "it declines")
    insensitive = submit_pair(pool, "resnet50", expected_seconds=1)
    pool.until(insensitive, "Completed")
    assert tier_of(pool, insensitive) == "rack"
    assert pool.state(sensitive) == "AwaitingGPU"
    eventually(lambda: DECLINED in str(pool.run(sensitive)["state"]["message"]), "a state message")

    pool.cancel(blockers["node-1"])
    pool.until(sensitive, "Completed")
    assert tier_of(pool, sensitive) == "node"
    rows = pool.sql("select job_id, tier, slowdown from offer_history where accepted")
    assert {(job_id, tier) for job_id, tier, _ in rows} == {(sensitive, "node"), (insensitive, "rack")}
    slowdowns = pool.sql(f"select slowdown from offers where job_id = '{sensitive}' and not accepted")
    assert min(slowdown for (slowdown,) in slowdowns) > 2
