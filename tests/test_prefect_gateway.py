"""The gateway to Prefect: a claimed run becomes the launch of a process or a container."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_prefect import POOL, FakePrefect
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelled, Pending

from gpu_flows.blocks import GpuCluster
from gpu_flows.checkpoints import contract
from gpu_flows.dispatch.gateway import HeldBack, Unreachable
from gpu_flows.prefect_api.container_request import FLOW_COMMAND
from gpu_flows.prefect_api.conventions import CONTAINER_FLOW
from gpu_flows.prefect_api.due_jobs import DueJobs
from gpu_flows.prefect_api.job_builder import DueJob
from gpu_flows.prefect_api.launch_builder import RUN_FLOW, LaunchBuilder
from gpu_flows.prefect_api.placement_text import describe_devices, placement_tags
from gpu_flows.prefect_api.prefect_gateway import PrefectGateway
from gpu_flows.prefect_api.run_states import RunStates
from gpu_flows.prefect_api.worker_log import WorkerLog
from gpu_flows.runtimes.base import Attempt, End, Launch, LaunchError, Refused
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.model import Reason, Start

STEP = "prefect.deployments.steps.set_working_directory"


class Pool:
    """A gateway with a fake server behind it."""

    def __init__(self, folder: Path) -> None:
        self.prefect = FakePrefect()
        self.due_jobs = DueJobs(self.prefect.client, self.prefect.pool, set())
        launches = LaunchBuilder(
            self.prefect.client,
            self.due_jobs,
            lambda: ("worker", None),
            lambda job_id: 2,
            lambda job_id, root: Path(root or folder) / job_id,
        )
        self.log = WorkerLog(self.prefect.client)
        self.gateway = PrefectGateway(self.due_jobs, RunStates(self.prefect.client), launches, self.log)

    def lines(self) -> list[str]:
        """The worker's lines in the logs of all runs."""
        asyncio.run(self.log.send())
        return [entry["message"] for entry in self.prefect.logs]

    def find(self, run: FlowRun, devices: int = 1) -> Start:
        """A start of this run on so many devices."""
        jobs = asyncio.run(self.due_jobs.find([run.id])).jobs
        (node,) = declare("1x4")
        return Start(jobs[0].job, node.devices[:devices])

    def claim(self, run: FlowRun, devices: int = 1) -> Launch | None:
        return asyncio.run(self.gateway.claim(self.find(run, devices), "fifo", 7.0))

    def launch(self, devices: int = 1, entrypoint: str = "train.py:train", **fields: Any) -> Launch:
        """The launch of a run of a new deployment."""
        steps = fields.pop("pull_steps", None)
        deployment = self.prefect.add_deployment(entrypoint, pull_steps=steps)
        launch = self.claim(self.prefect.add_run(deployment_id=deployment.id, **fields), devices)
        assert launch
        return launch


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    return Pool(tmp_path)


@pytest.fixture
def docker_pool(pool: Pool) -> Pool:
    pool.due_jobs.cluster = GpuCluster(runtime="docker")
    return pool


# -- processes --------------------------------------------------------------------------------


def test_a_flow_runs_in_the_directory_of_its_code(pool: Pool, tmp_path: Path) -> None:
    launch = pool.launch(pull_steps=[{STEP: {"directory": str(tmp_path)}}])
    assert (launch.command, launch.directory, launch.handles_intents) == (RUN_FLOW, str(tmp_path), True)
    assert launch.env["PREFECT__FLOW_ENTRYPOINT"] == "train.py:train"
    assert (launch.attempt, launch.policy, launch.planned, launch.pool) == (3, "fifo", 7.0, POOL)
    assert launch.env[contract.DIRECTORY] == launch.checkpoints == str(tmp_path / launch.job.id)


@pytest.mark.parametrize(
    "steps",
    [
        None,
        [{STEP: {"directory": "/no/such/directory"}}],
        [{STEP: {"directory": "/"}}, {"prefect.deployments.steps.git_clone": {}}],
    ],
)
def test_other_code_is_left_to_prefect_to_load(pool: Pool, steps: list[dict[str, Any]] | None) -> None:
    launch = pool.launch(pull_steps=steps)
    assert launch.directory == ""
    assert "PREFECT__FLOW_ENTRYPOINT" not in launch.env


def test_a_command_replaces_the_flow(pool: Pool) -> None:
    variables = {"command": "echo 'a b'", "env": {"LR": "0.1"}, "working_dir": "/tmp", "grace_seconds": 5}
    launch = pool.launch(job_variables=variables)
    assert launch.command == ("echo", "a b")
    assert (launch.directory, launch.grace_s, launch.handles_intents) == ("/tmp", 5, False)
    assert launch.env["LR"] == "0.1"
    assert launch.container is None


@pytest.mark.parametrize("image", ["", "busybox"])
def test_a_job_on_several_nodes_gets_its_peers(docker_pool: Pool, image: str) -> None:
    variables = {"command": "true", "image": image, "env": {"MASTER_PORT": "29500"}}
    start = docker_pool.find(docker_pool.prefect.add_run(job_variables=variables))
    first, second = declare("2x1")
    start = start._replace(devices=(*first.devices, *second.devices))
    launch = asyncio.run(docker_pool.gateway.claim(start, "fifo", 7.0))
    assert launch
    assert [peer["node"] for peer in json.loads(launch.env["GPU_FLOWS_PEERS"])] == ["node-1", "node-2"]
    assert (launch.env["MASTER_ADDR"], launch.env["MASTER_PORT"]) == ("127.0.0.1", "29500")


def test_an_image_is_refused_where_jobs_run_as_processes(pool: Pool) -> None:
    with pytest.raises(Refused, match="choose the runtime 'docker'"):
        pool.launch(job_variables={"image": "busybox"})


def test_the_container_form_needs_an_image(pool: Pool) -> None:
    with pytest.raises(Refused, match="it names no container image"):
        pool.launch(entrypoint=CONTAINER_FLOW, parameters={"command": "true"})


def test_a_process_cannot_use_devices_of_a_docker_host(pool: Pool) -> None:
    pool.due_jobs.cluster = GpuCluster.of(hosts=["gpu1=ssh://lab@gpu1"])
    with pytest.raises(Refused, match="so it needs an image"):
        pool.launch()


def test_a_checkpoint_directory_that_cannot_be_made_fails_the_launch(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(job_id: str, root: str) -> Path:
        raise PermissionError("no")

    monkeypatch.setattr(pool.gateway._launches, "_make_checkpoints", fail)
    with pytest.raises(LaunchError, match="Check that checkpoint_root exists"):
        pool.launch()


# -- containers -------------------------------------------------------------------------------


def test_the_worker_reports_for_a_command_in_a_container(docker_pool: Pool) -> None:
    variables = {"image": "lab/mnist", "command": "python train.py", "env": {"A": "1"}, "shm_gb": 2}
    launch = docker_pool.launch(devices=2, job_variables=variables)
    assert launch.container
    assert (launch.container.image, launch.container.shm_mb) == ("lab/mnist", 2048)
    assert launch.command[:3] == ("python", "-m", "torch.distributed.run")
    assert launch.env["A"] == "1"
    assert not any(name.startswith("PREFECT_") for name in launch.env)
    assert not launch.handles_intents


def test_a_flow_in_a_container_reports_itself(docker_pool: Pool) -> None:
    launch = docker_pool.launch(
        entrypoint="lab.train:train",
        pull_steps=[{STEP: {"directory": "/where/deploy/was/called"}}],
        job_variables={"image": "lab/flows"},
    )
    assert (launch.command, launch.handles_intents) == (FLOW_COMMAND, True)
    assert launch.env["PREFECT__FLOW_RUN_ID"] == launch.job.id
    assert launch.env["PREFECT__FLOW_ENTRYPOINT"] == "lab.train:train"


def test_a_container_that_breaks_the_rules_is_refused(docker_pool: Pool) -> None:
    run = docker_pool.prefect.add_run(job_variables={"image": "busybox", "checkpoint_root": "/etc"})
    with pytest.raises(Refused, match="/etc"):
        docker_pool.claim(run)


# -- claims -----------------------------------------------------------------------------------


def test_a_lost_claim_gives_no_launch(pool: Pool) -> None:
    run = pool.prefect.add_run()
    start = pool.find(run)
    pool.prefect.set_state(run.id, Pending(message="claimed by another worker"))
    assert asyncio.run(pool.gateway.claim(start, "fifo", 7.0)) is None


def test_a_claim_is_released_when_the_server_fails_before_the_launch(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> None:
        raise httpx.ConnectError("the server is away")

    run = pool.prefect.add_run()
    monkeypatch.setattr(pool.gateway._launches, "build", fail)
    with pytest.raises(Unreachable):
        pool.claim(run)
    assert pool.prefect.state_names(run.id) == ["Scheduled", "Pending", "AwaitingGPU"]


@pytest.mark.parametrize("status", [401, 403, 429, 500])
def test_a_refusal_while_the_launch_is_built_returns_the_run_to_the_queue(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    request = httpx.Request("POST", "http://server")

    async def refuse(*_: object) -> Launch:
        raise httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, request=request))

    run = pool.prefect.add_run()
    monkeypatch.setattr(pool.gateway._launches, "build", refuse)
    with pytest.raises(Unreachable):
        pool.claim(run)
    assert pool.prefect.state_names(run.id)[-1] == "AwaitingGPU"


def test_a_launch_that_overwrote_a_cancellation_is_reported(pool: Pool) -> None:
    run = pool.prefect.add_run()
    start = pool.find(run)
    pool.prefect.set_state(run.id, Cancelled())
    launch = asyncio.run(pool.gateway.claim(start, "fifo", 7.0))
    assert launch
    assert not asyncio.run(pool.gateway.report_launch(Attempt(launch, "here:1", 8.0)))
    assert pool.prefect.state_names(run.id)[-1] == "Cancelled"


def test_a_refused_job_shows_the_reason(pool: Pool) -> None:
    run = pool.prefect.add_run()
    asyncio.run(pool.gateway.refuse(pool.find(run).job, Reason("impossible", "too large")))
    state = pool.prefect.history[run.id][-1]
    assert (state.name, state.type) == ("Refused", "FAILED")
    assert "too large" in str(state.message)


# -- what the owner of a run sees -------------------------------------------------------------


def test_the_log_of_a_run_says_where_it_starts_and_resumes(pool: Pool, tmp_path: Path) -> None:
    run = pool.prefect.add_run()
    checkpoints = tmp_path / str(run.id)
    checkpoints.mkdir()
    for step in (312, 624):
        contract.write_entry(checkpoints, contract.Entry("saved", 1, 5.0, step))
    start = pool.find(run)
    (node,) = declare("1x4")
    devices = (node.devices[0], node.devices[1], node.devices[3])
    launch = asyncio.run(pool.gateway.claim(Start(start.job, devices), "fifo", 7.0))
    assert launch
    assert pool.lines() == [
        f"Starting again on {node.name}: GPU 0-1, 3 (policy 'fifo', attempt 3); it resumes from step 624."
    ]
    pool.prefect.runs[run.id].tags.append("mine")
    asyncio.run(pool.due_jobs.find([run.id]))
    asyncio.run(pool.gateway.report_launch(Attempt(launch, "here:1", 8.0)))
    tag = f"gpus:{node.name}:0-1,3"
    assert pool.prefect.runs[run.id].tags == ["mine", tag]

    end = pool.gateway.report_end(launch, End(contract.CHECKPOINTED), "reschedule", "Preempted for b.")
    assert asyncio.run(end)[0] == "preempted"
    assert pool.prefect.runs[run.id].tags == ["mine"], "a waiting run is nowhere"
    assert "waits again" in pool.lines()[-1]


def test_a_refusal_is_in_the_log(pool: Pool) -> None:
    run = pool.prefect.add_run()
    asyncio.run(pool.gateway.refuse(pool.find(run).job, Reason("impossible", "too large", "Ask for less.")))
    assert pool.lines() == ["Refused: too large Ask for less."]


@pytest.mark.parametrize("change", [{"concurrency_limit": 0}, {"is_paused": True}])
def test_a_limit_that_changed_since_the_plan_turns_the_job_back(pool: Pool, change: dict[str, Any]) -> None:
    run = pool.prefect.add_run()
    start = pool.find(run)
    pool.due_jobs.admission.put(DueJob(start.job))
    pool.prefect.pool = pool.prefect.pool.model_copy(update=change)
    with pytest.raises(HeldBack):
        asyncio.run(pool.gateway.claim(start, "fifo", 7.0))
    state = pool.prefect.history[run.id][-1]
    assert (state.type, state.name) == ("SCHEDULED", "AwaitingGPU")
    assert "Work pool" in str(state.message)


def test_a_server_that_is_away_while_limits_are_read_releases_the_claim(pool: Pool) -> None:
    run = pool.prefect.add_run()
    start = pool.find(run)

    async def fail(name: str) -> Any:
        raise httpx.ConnectError("the server is away")

    pool.prefect.read_work_pool = fail  # type: ignore[method-assign]
    with pytest.raises(Unreachable):
        asyncio.run(pool.gateway.claim(start, "fifo", 7.0))
    assert pool.prefect.state_names(run.id)[-1] == "AwaitingGPU"


def test_the_devices_of_many_nodes_have_one_tag() -> None:
    devices = [device for node in declare("5x2") for device in node.devices]
    assert placement_tags(devices) == ["gpus:10 on 5 nodes"]
    assert placement_tags(()) == []
    assert describe_devices(devices[:3]).count("GPU") == 2
