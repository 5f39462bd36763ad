"""The deployments of prefect.yaml: their flows exist, and their parameters are accepted."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from prefect.flows import load_flow_from_entrypoint

from gpu_flows.bootstrap.local_stack import prefect_file
from gpu_flows.deployments.workload import Workload
from gpu_flows.schedulers.policy import policies

DEPLOYMENTS: dict[str, dict[str, Any]] = {
    deployment["name"]: deployment for deployment in yaml.safe_load(prefect_file().read_text())["deployments"]
}


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_flows_accept_the_parameters_of_their_deployments(name: str) -> None:
    deployment = DEPLOYMENTS[name]
    flow = load_flow_from_entrypoint(deployment["entrypoint"])
    for origin in (deployment, *deployment.get("schedules", [])):
        if parameters := origin.get("parameters"):
            flow.validate_parameters(parameters)


def test_only_what_is_cheap_and_harmless_runs_unasked() -> None:
    active = [
        (name, schedule["slug"])
        for name, deployment in DEPLOYMENTS.items()
        for schedule in deployment.get("schedules", [])
        if schedule["active"]
    ]
    assert active == [("retrain", "daily"), ("regret", "nightly")]


def test_the_ams560_schedule_has_its_four_tasks_and_five_policies() -> None:
    (study,) = (each for each in DEPLOYMENTS["benchmark"]["schedules"] if each["slug"] == "ams560")
    workload = Workload(**study["parameters"]["workload"])
    assert workload.policies == ["fifo", "round_robin", "srtf", "tiresias", "rl"]
    assert set(workload.policies) <= policies().keys()
    jobs = [workload.job(number) for number in range(workload.jobs)]
    assert [job["config"]["model"] for job, _ in jobs[:4]] == ["cnn", "lstm", "matmul", "trees"]
    assert [variables["gpus"] for _, variables in jobs[:4]] == [2, 1, 1, 1]
    # Heavy load: on 2 x 2 GPUs they ask for more devices than there are, before the first can have ended.
    assert sum(variables["gpus"] for _, variables in jobs) > 4
    assert workload.arrivals()[-1] < 30
