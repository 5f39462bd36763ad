"""Policy schedtune: packs by memory bounds and interference, prefers fast GPUs, and starves no job."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job, Start
from gpu_flows.schedulers.policies import schedtune
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.policy_support.packing import MOST_OFFERS
from gpu_flows.schedulers.simulation.profiles import Profile

GB = 1024
FAST_AND_SLOW = Profile({("", "K80"): {1: 1.0, 2: 2.0}, ("", "V100"): {1: 4.0, 2: 8.0}}, "V100")
numbers = count()


def slowed_by_load(job: Job, others: Sequence[Job], model: str) -> float:
    """A job of kind `heavy` costs others 1.5 times their time, any other 0.2 times."""
    return 1 + sum(1.5 if other.kind == "heavy" else 0.2 for other in others)


def make_engine(cluster: str, **options: object) -> Engine:
    policy = make_policy("schedtune", {"most_slowdown": 2.0, **options})
    return Engine(declare(cluster), policy, speed=FAST_AND_SLOW.speed, slowdown=slowed_by_load)


def submit(engine: Engine, name: str, gb: float, seconds: float | None = 100, **request: object) -> None:
    fields = {"submitted": float(next(numbers)), "memory_mb": int(gb * GB), "expected_s": seconds, **request}
    engine.submit(Job(name, **fields))  # type: ignore[arg-type]


def tick(engine: Engine, now: float = 1000.0) -> dict[str, str]:
    """Return the jobs that start, with the node of each."""
    starts = [action for action in engine.tick(now) if isinstance(action, Start)]
    assert not engine.policy_error
    return {start.job.id: start.devices[0].node for start in starts}


def why(engine: Engine, name: str) -> str:
    return next(str(reason) for job, reason in engine.reasons() if job.id == name)


def test_jobs_share_a_device_while_their_bounds_and_the_reserve_fit() -> None:
    engine = make_engine("1x1:V100:16", reserve_mb=512)
    for name, gb in (("a", 8), ("b", 7), ("c", 0.5)):
        submit(engine, name, gb)
    submit(engine, "d", 0.75)
    assert set(tick(engine)) == {"a", "b", "c"}, "16 GB less the reserve"
    assert "512 MiB" not in why(engine, "d"), "it does not fit without the reserve either"
    submit(engine, "e", 0.5)
    engine.withdraw("d")
    tick(engine, 1001.0)
    assert "but 512 MiB of a shared device are kept in reserve" in why(engine, "e")


def test_a_job_alone_may_fill_a_device_to_the_last_mebibyte() -> None:
    engine = make_engine("1x1:V100:16")
    submit(engine, "a", 16)
    assert set(tick(engine)) == {"a"}


def test_a_job_without_a_bound_gets_a_whole_device() -> None:
    engine = make_engine("1x1:V100:16")
    submit(engine, "small", 1)
    submit(engine, "whole", 0)
    assert set(tick(engine)) == {"small"}
    engine.ended("small")
    assert set(tick(engine, 1001.0)) == {"whole"}
    submit(engine, "small-2", 1)
    assert tick(engine, 1002.0) == {}


def test_no_job_is_slowed_down_beyond_the_limit() -> None:
    engine = make_engine("1x1:V100:16", most_slowdown=1.5)
    submit(engine, "light", 1)
    submit(engine, "heavy", 1, kind="heavy")  # `light` would take 2.5 times as long
    submit(engine, "light-2", 1)
    assert set(tick(engine)) == {"light"}
    assert "would take 2.5 times as long as alone, and the limit is 1.5" in why(engine, "heavy")
    assert "reserved for heavy" in why(engine, "light-2")
    engine.ended("light")
    assert set(tick(engine, 1001.0)) == {"heavy"}


def test_a_job_goes_where_it_ends_first() -> None:
    engine = make_engine("1x1:K80:16+1x1:V100:16")
    submit(engine, "a", 1)
    assert tick(engine) == {"a": "node-2"}
    submit(engine, "b", 1, kind="heavy")  # beside `a` it would be faster, but `a` would suffer
    assert tick(engine, 1001.0) == {"b": "node-1"}
    engine.ended("b")
    submit(engine, "c", 1)
    assert tick(engine, 1002.0) == {"c": "node-2"}


def test_a_wide_job_gets_its_devices_on_one_node_or_across() -> None:
    engine = make_engine("2x2:V100:16")
    submit(engine, "a", 10)
    submit(engine, "wide", 8, gpus=2)
    started = tick(engine)
    assert {device.node for device in engine.running["wide"].devices} == {"node-2"} != {started["a"]}
    submit(engine, "wider", 4, gpus=4, may_span_nodes=True)
    tick(engine, 1001.0)
    assert len({device.id for device in engine.running["wider"].devices}) == 4


def test_a_job_that_does_not_fit_is_passed_only_by_jobs_that_end_before_it_starts() -> None:
    engine = make_engine("1x1:V100:16")
    submit(engine, "a", 10, 100)
    tick(engine)  # until 1100
    submit(engine, "large", 12, 100)
    submit(engine, "long", 1, 500)
    submit(engine, "short", 1, 20)
    assert set(tick(engine, 1001.0)) == {"short"}
    assert "they are reserved for large, which came first" in why(engine, "long")
    submit(engine, "late", 1, 1)
    assert tick(engine, 1100.5) == {}, "its time has come, so none may join"


def test_without_durations_nothing_passes_the_first_job_on_its_device() -> None:
    engine = make_engine("2x1:V100:16")
    for name in ("a", "b"):
        submit(engine, name, 10, None)
    tick(engine)
    submit(engine, "large", 12, None)
    submit(engine, "small", 1, None)
    assert len(tick(engine, 1001.0)) == 1, "on the other device"
    reserved = next(node for node in ("node-1", "node-2") if node != engine.running["small"].devices[0].node)
    engine.ended("a" if engine.running["a"].devices[0].node == reserved else "b")
    assert tick(engine, 1002.0) == {"large": reserved}


def test_a_reservation_moves_if_its_device_breaks() -> None:
    engine = make_engine("2x1:V100:16")
    submit(engine, "a", 10, 100)
    submit(engine, "b", 10, 900)
    nodes = tick(engine)
    submit(engine, "large", 12, 100)
    tick(engine, 1001.0)
    engine.set_node(nodes["a"], False, "it broke down")
    tick(engine, 1002.0)
    engine.ended("b")
    assert tick(engine, 1003.0) == {"large": nodes["b"]}


@pytest.mark.parametrize(("order", "first"), [("arrival", "old"), ("shortest", "brief")])
def test_the_order_of_the_queue(order: str, first: str) -> None:
    engine = make_engine("1x1:V100:16", order=order)
    submit(engine, "old", 12, 100)
    submit(engine, "brief", 12, 10)
    assert set(tick(engine)) == {first}


def test_a_job_that_was_held_back_sees_new_nodes_repaired_nodes_and_new_knowledge() -> None:
    engine = make_engine("1x1:V100:16", most_slowdown=1.5)
    submit(engine, "heavy", 4, None, kind="heavy")
    tick(engine)
    submit(engine, "first", 16, None)
    submit(engine, "light", 4, None)
    assert tick(engine, 1001.0) == {}
    engine.set_nodes(declare("2x1:V100:16"))
    assert tick(engine, 1002.0) == {"first": "node-2"}
    engine.set_slowdown(lambda job, others, model: 1.0)
    assert tick(engine, 1003.0) == {"light": "node-1"}
    submit(engine, "late", 16, None)
    engine.set_nodes(declare("3x1:V100:16"))
    engine.set_node("node-3", False, "it broke down")
    assert tick(engine, 1004.0) == {}
    engine.set_node("node-3", True)
    assert tick(engine, 1005.0) == {"late": "node-3"}


def test_the_depth_counts_from_the_first_job_that_does_not_fit_even_without_a_reservation() -> None:
    engine = make_engine("1x1:K80:16+1x1:V100:32", depth=1)
    assert engine.set_health(engine.cluster.nodes["node-2"].devices[0].device.id, False, "it broke down")
    for name, gb in (("a", 20), ("b", 21), ("c", 1)):
        submit(engine, name, gb)
    assert tick(engine) == {}, "two were tried"


def test_jobs_that_wait_for_a_node_to_come_up_hold_others_back_only_if_they_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine("1x1:K80:16+1x1:V100:32", depth=0)
    engine.set_node("node-2", False, "it broke down")
    for name, gb in (("a", 20), ("b", 21), ("c", 1)):
        submit(engine, name, gb)
    with monkeypatch.context() as patched:
        patched.setattr(schedtune, "MOST_PASSED", 2)
        assert tick(engine) == {}
    engine.plan_again()
    assert tick(engine, 1001.0) == {"c": "node-1"}


def test_a_long_plan_is_made_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedtune, "MOST_STARTS", 3)
    engine = make_engine("5x1:V100:16")
    for number in range(5):
        submit(engine, f"{number}", 1, memory_mb=0)
    assert set(tick(engine)) == {"0", "1", "2"}
    assert engine.wake_at is not None
    assert engine.wake_at - 1000.0 < 0.1
    assert set(tick(engine, engine.wake_at)) == {"3", "4"}
    assert engine.wake_at is None


def test_few_shared_devices_of_a_large_cluster_are_compared() -> None:
    asked = count()

    def slowdown(job: Job, others: Sequence[Job], model: str) -> float:
        next(asked)
        return slowed_by_load(job, others, model)

    engine = make_engine("50x1:V100:16")
    engine.set_slowdown(slowdown)
    for number in range(50):
        submit(engine, f"{number}", 4)
    assert len(tick(engine)) == 50
    submit(engine, "late", 4)
    assert len(tick(engine, 1001.0)) == 1
    assert next(asked) <= 2 * MOST_OFFERS, "the job's own slowdown and that of the other one on each device"
