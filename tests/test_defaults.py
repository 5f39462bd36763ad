"""What a newcomer gets without choosing anything."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from gpu_flows.blocks import GpuCluster
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job, Preempt, Start
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.protection import Protection

ROOT = Path(__file__).parents[1]


def test_the_benchmark_runs_only_if_asked() -> None:
    """A benchmark changes the policy of the pool while it runs, so nobody gets it unasked."""
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    scheduled = {each["name"]: each["schedules"] for each in deployments if each.get("schedules")}
    assert scheduled["benchmark"]
    assert not any(schedule["active"] for schedule in scheduled["benchmark"])


def test_the_example_of_preemption_in_the_readme_preempts_on_the_default_cluster() -> None:
    [text] = re.findall(
        r"## Stop and resume jobs.*?```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    [(loop, trained)] = re.findall(r"for job in ([\d ]+); do gpu-flows submit train --gpus (\d+)", text)
    [urgent] = re.findall(r"submit --gpus (\d+) --class urgent", text)
    [policy] = re.findall(r"policy set (\w+)", text)
    protection = Protection()
    engine = Engine(
        GpuCluster().declared_nodes(), make_policy(policy), can_preempt=True, protection=protection
    )
    for number in loop.split():
        engine.submit(Job(number, 0.0, int(trained)))
    assert len(engine.tick(0.0)) == len(loop.split()), "all of them start"
    engine.submit(Job("urgent", 1.0, int(urgent), priority=1000))
    assert engine.tick(1.0) == [], "they are protected"
    actions = engine.tick(protection.min_run_seconds + 0.0)
    assert [type(action) for action in actions] == [Preempt, Start]
