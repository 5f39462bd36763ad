"""FIFO and Round Robin as Schedulearn describes them, and how policies are found."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job, Start
from gpu_flows.schedulers.policy import PolicyError, make_policy, policies


def placed(engine: Engine, now: float = 0) -> dict[str, list[str]]:
    """job id -> the devices it was started on."""
    starts = [action for action in engine.tick(now) if isinstance(action, Start)]
    return {start.job.id: [device.id for device in start.devices] for start in starts}


def submit(engine: Engine, *sizes: int, memory_gb: float = 0, first: int = 0) -> None:
    for number, gpus in enumerate(sizes, start=first):
        job = Job(id=f"job{number}", submitted=number, gpus=gpus, memory_mb=int(memory_gb * 1024))
        engine.submit(job)


def test_fifo_fills_the_first_nodes() -> None:
    engine = Engine(declare("3x4"), make_policy("fifo"))
    submit(engine, 1, 2, 4)
    assert placed(engine) == {
        "job0": ["SIM-node-1-0"],
        "job1": ["SIM-node-1-1", "SIM-node-1-2"],
        "job2": [f"SIM-node-2-{index}" for index in range(4)],
    }


def test_the_head_of_the_queue_blocks_unless_it_may_be_skipped() -> None:
    for skip, expected in ((False, {"job0"}), (True, {"job0", "job2"})):
        engine = Engine(declare("1x4"), make_policy("fifo", {"skip": skip}))
        submit(engine, 2, 4, 2)
        assert set(placed(engine)) == expected


def test_shared_fifo_offers_devices_under_the_threshold_while_memory_lasts() -> None:
    engine = Engine(declare("1x2:GTX 1080 Ti:11"), make_policy("fifo", {"sharing": "shared"}))
    submit(engine, *[1] * 5, memory_gb=5)
    assert placed(engine) == {
        "job0": ["SIM-node-1-0"],
        "job1": ["SIM-node-1-0"],  # 10 of 11 GB are promised: a third does not fit
        "job2": ["SIM-node-1-1"],
        "job3": ["SIM-node-1-1"],
    }


def test_a_device_at_the_threshold_is_not_offered() -> None:
    engine = Engine(declare("1x2:GTX 1080 Ti:11"), make_policy("fifo", {"sharing": "shared"}))
    submit(engine, 1, memory_gb=1)
    placed(engine)
    engine.set_utilization({"SIM-node-1-0": 90.0})
    submit(engine, 1, 1, memory_gb=1, first=1)
    assert placed(engine) == {"job1": ["SIM-node-1-1"], "job2": ["SIM-node-1-1"]}
    engine.set_utilization({"SIM-node-1-0": 89.9, "SIM-node-1-1": 100.0})
    submit(engine, 1, memory_gb=1, first=3)
    assert placed(engine) == {"job3": ["SIM-node-1-0"]}


def test_a_device_that_another_program_keeps_busy_is_not_offered() -> None:
    engine = Engine(declare("1x2:GTX 1080 Ti:11"), make_policy("fifo", {"sharing": "shared"}))
    engine.set_utilization({"SIM-node-1-0": 100.0})
    submit(engine, 1)
    assert placed(engine) == {"job0": ["SIM-node-1-1"]}


def test_a_node_is_named_exactly_and_a_model_by_a_part_of_its_name() -> None:
    engine = Engine(declare("12x1:GTX 1080 Ti:11"), make_policy("fifo"))
    engine.submit(Job(id="exact", nodes=("node-1",)))
    engine.submit(Job(id="pattern", nodes=("node-1?",), models=("1080",), submitted=1))
    assert placed(engine) == {"exact": ["SIM-node-1-0"], "pattern": ["SIM-node-10-0"]}


def test_devices_are_exclusive_by_default_and_whole_devices_always() -> None:
    engine = Engine(declare("1x1:GTX 1080 Ti:11"), make_policy("fifo"))
    submit(engine, 1, 1, memory_gb=1)
    assert set(placed(engine)) == {"job0"}
    engine = Engine(declare("1x1:GTX 1080 Ti:11"), make_policy("fifo", {"sharing": "shared"}))
    submit(engine, 1, 1)
    assert set(placed(engine)) == {"job0"}, "a job that states no memory shares with no other"


def test_round_robin_remembers_the_last_server() -> None:
    engine = Engine(declare("3x4"), make_policy("round_robin"))
    submit(engine, 1, 1, 1, 1)
    assert [devices[0] for devices in placed(engine).values()] == [
        "SIM-node-1-0",
        "SIM-node-2-0",
        "SIM-node-3-0",
        "SIM-node-1-1",
    ]
    submit(engine, 1, first=4)
    assert placed(engine, 1) == {"job4": ["SIM-node-2-1"]}


@pytest.mark.parametrize(("wait", "expected"), [(False, "SIM-node-3-0"), (True, None)])
def test_a_full_server_passes_its_turn_on_unless_jobs_wait_for_it(wait: bool, expected: str | None) -> None:
    engine = Engine(declare("3x4"), make_policy("round_robin", {"wait_for_turn": wait}))
    submit(engine, 1, 4, 1, 1)  # node-1, node-2 (full now), node-3, node-1
    placed(engine)
    submit(engine, 1, first=4)  # node-2's turn
    assert placed(engine, 1).get("job4") == ([expected.replace("3-0", "3-1")] if expected else None)


def test_a_server_that_could_never_hold_the_job_is_passed_over() -> None:
    engine = Engine(declare("1x1+2x4"), make_policy("round_robin", {"wait_for_turn": True}))
    submit(engine, 2, 2, 2)
    assert [devices[0] for devices in placed(engine).values()] == [
        "SIM-node-2-0",
        "SIM-node-3-0",
        "SIM-node-2-2",
    ]


def test_a_job_that_may_span_nodes_prefers_one() -> None:
    engine = Engine(declare("2x4"), make_policy("fifo"))
    engine.submit(Job(id="small", gpus=1))
    engine.submit(Job(id="one-node", gpus=4, may_span_nodes=True, submitted=1))
    engine.submit(Job(id="spread", gpus=3, may_span_nodes=True, submitted=2))
    where = placed(engine)
    assert {d.rsplit("-", 1)[0] for d in where["one-node"]} == {"SIM-node-2"}
    assert where["spread"] == ["SIM-node-1-1", "SIM-node-1-2", "SIM-node-1-3"]


def test_errors_about_names_and_options_list_the_valid_ones() -> None:
    with pytest.raises(PolicyError, match=r"no policy 'lifo'.*fifo, .*round_robin"):
        make_policy("lifo")
    with pytest.raises(PolicyError, match=r"utilization_threshold: .*less than or equal to 100"):
        make_policy("fifo", {"utilization_threshold": 900})
    with pytest.raises(PolicyError, match=r"colour.*Its options: .*skip"):
        make_policy("fifo", {"colour": "red"})


@pytest.mark.parametrize(
    "name", ["os:system", "gpu_flows.schedulers.policies.fifo:Fifo", "../fifo", "fifo\n"]
)
def test_a_name_is_never_a_path(name: str) -> None:
    with pytest.raises(PolicyError, match="There is no policy"):
        make_policy(name)


def test_every_policy_and_option_is_documented() -> None:
    for name, policy in policies().items():
        assert policy.rule(), name
        for field in policy.Options.model_fields.values():
            assert field.title
            assert (field.description or "").endswith(".")


def test_a_policy_of_another_package_is_found_by_its_entry_point(tmp_path: Path) -> None:
    """It is found even if it was installed after the process started; it cannot replace a built-in one."""
    (tmp_path / "mine.py").write_text(
        textwrap.dedent('''
        from gpu_flows.schedulers.policy import Policy
        from gpu_flows.schedulers.placement.options import PlacementOptions

        class Smallest(Policy[PlacementOptions]):
            """The job that asks for the fewest devices starts first."""
            name = "smallest"
            def plan(self, state):
                for job in sorted(state.waiting, key=lambda job: job.gpus):
                    if devices := self.options.place(job, state.cluster):
                        state.draft.start(job, devices)
        ''')
    )
    info = tmp_path / "mine-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[gpu_flows.policies]\nsmallest = mine:Smallest\nfifo = mine:Smallest\nbroken = nowhere:Nothing\n"
    )
    script = f"""
import sys
from gpu_flows.schedulers.policy import make_policy, policies
assert "smallest" not in policies()
sys.path.insert(0, {str(tmp_path)!r})
assert make_policy("smallest", {{"sharing": "shared"}}).options.sharing == "shared"
assert policies()["fifo"].__module__ == "gpu_flows.schedulers.policies.fifo"
assert "broken" not in policies()
try:
    make_policy("broken")
except ValueError as error:
    assert "'broken' cannot be loaded: ModuleNotFoundError" in str(error), error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_an_elastic_job_wider_than_any_node_is_refused_by_every_policy() -> None:
    engine = Engine(declare("2x4"), make_policy("fifo"))
    engine.submit(Job(id="wide", gpus=8, min_gpus=1, max_gpus=8))
    engine.submit(Job(id="next", gpus=4, submitted=1))
    refused, started = engine.tick(0)
    assert "largest node has 4" in refused.reason.summary
    assert started.job.id == "next"


def test_a_job_waits_for_the_turn_of_a_server_that_is_large_enough() -> None:
    engine = Engine(declare("1x2+2x4"), make_policy("round_robin", {"wait_for_turn": True}))
    engine.submit(Job(id="a", gpus=4, min_gpus=1, max_gpus=4))
    assert placed(engine)["a"][0] == "SIM-node-2-0"
