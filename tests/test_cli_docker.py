"""The command line and Docker: containers from options and files, Docker hosts, and their checks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from command_line.run import expect_error, gpu_flows, gpu_flows_process
from command_line.server import FakeServer
from command_line.user import User
from command_line.worker import device, write_status
from conftest import eventually
from docker_hosts.daemon import Daemon

from gpu_flows.blocks import GpuCluster
from gpu_flows.bootstrap.local_stack import Stack, free_port
from gpu_flows.cli.doctor.checks import CheckContext, Finding
from gpu_flows.cli.doctor.docker_checks import check_docker
from gpu_flows.cli.jobs import requests
from gpu_flows.prefect_api.container_request import LAUNCHERS, ContainerType
from gpu_flows.prefect_api.conventions import CONTAINER_FLOW

pytest_plugins = ["command_line.fixtures", "docker_hosts.fixtures"]

MNIST = {
    "name": "mnist",
    "type": "Pytorch",
    "container_image": "lab/mnist:1",
    "command": "python train.py --epochs 3",
    "required_gpus": 2,
}
SCHEMA = {"properties": {name: {} for name in requests.KEYS}}
CLUSTER_BLOCK = "/block_types/slug/gpu-cluster/block_documents/name/default"


@pytest.fixture
def pool(fake: FakeServer) -> FakeServer:
    """A server with a pool that runs containers, and no worker."""
    found = {"id": "7", "name": "container", "work_pool_name": "gpu", "parameter_openapi_schema": SCHEMA}
    run = {"id": "42", "name": "mnist", "state": {"name": "Scheduled"}, "state_type": "SCHEDULED"}
    fake.answers["/deployments/filter"] = 200, [found]
    fake.answers["/deployments/7/create_flow_run"] = 201, run
    fake.answers["/work_pools/gpu"] = 200, {"base_job_template": {}}
    fake.answers["/work_pools/gpu/workers/filter"] = 200, []
    fake.answers[CLUSTER_BLOCK] = 200, {"data": {"runtime": "docker", "hosts": []}}
    return fake


def list_submitted(fake: FakeServer) -> list[dict[str, Any]]:
    return [body for path, _, body in fake.requests if path.endswith("create_flow_run")]


def write_json(what: Any, name: str = "job.json") -> str:
    Path(name).write_text(what if isinstance(what, str) else json.dumps(what))
    return name


# submit --image


def test_options_become_parameters_and_job_variables(pool: FakeServer) -> None:
    words = ["--image", "lab/mnist:1", "--gpus", "2", "--name", "mnist", "--memory", "4", "--user", "ada"]
    words += ["--mount", "/data:/data:ro", "--mount", "/out:/out", "--pull", "always", "--shm", "8"]
    words += ["--memory-limit", "16", "--cpus", "3.5", "--launcher", "torchrun", "--env", "A=b"]
    words += ["--registry-credentials", "lab", "--directory", "/workspace"]
    result = gpu_flows("submit", *words, "--", "python", "train.py", "--name", "3 4")
    assert result.code == 0, result
    [body] = list_submitted(pool)
    assert body["parameters"] == {
        "container_image": "lab/mnist:1",
        "command": "python train.py --name '3 4'",
        "required_gpus": 2,
        "name": "mnist",
    }
    assert body["job_variables"] == {
        "gpu_memory_gb": 4.0,
        "env": {"A": "b"},
        "pull": "always",
        "launcher": "torchrun",
        "mounts": ["/data:/data:ro", "/out:/out"],
        "shm_gb": 8.0,
        "memory_gb": 16.0,
        "cpus": 3.5,
        "registry_credentials": "lab",
        "working_dir": "/workspace",
        "user": "ada",
    }
    assert (body["name"], body["tags"]) == ("mnist", ["user:ada"])


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ([], None),
        (["--"], None),
        (["--", "python train.py"], "python train.py"),
        (["--shell", "--", "nvidia-smi && python train.py"], "sh -c 'nvidia-smi && python train.py'"),
    ],
)
def test_command_in_a_container(words: list[str], command: str | None, pool: FakeServer) -> None:
    assert gpu_flows("submit", "--image", "img", *words).code == 0
    assert list_submitted(pool)[0]["parameters"].get("command") == command


def test_deployment_runs_in_an_image(pool: FakeServer) -> None:
    assert gpu_flows("submit", "train", "--image", "gpu-flows", "--gpus", "4").code == 0
    [body] = list_submitted(pool)
    assert body["parameters"] == {}
    assert body["job_variables"] | {"user": ""} == {"image": "gpu-flows", "gpus": 4, "user": ""}


@pytest.mark.parametrize("document", [None, {"data": {"runtime": "process"}}, {"data": {}}])
def test_container_is_refused_by_a_pool_of_processes(document: Any, pool: FakeServer) -> None:
    pool.answers[CLUSTER_BLOCK] = (200, document) if document else (404, {})
    error = expect_error(gpu_flows("submit", "--image", "img", "--", "true"), code=1)
    assert "GPU Cluster block 'default'" in error
    assert "gpu-flows up --docker" in error
    assert list_submitted(pool) == []


def test_error_names_the_missing_deployment(pool: FakeServer) -> None:
    pool.answers["/deployments/filter"] = 200, []
    assert "prefect deploy --name container" in expect_error(gpu_flows("submit", "--image", "img"), code=1)


def test_error_names_the_option_that_the_server_refuses(pool: FakeServer) -> None:
    detail = "Validation failed for field 'required_gpus'. Failure reason: 9999 is greater than the maximum"
    pool.answers["/deployments/7/create_flow_run"] = 409, {"detail": detail}
    assert "Error: --gpus: 9999 is greater" in expect_error(
        gpu_flows("submit", "--image", "i", "--gpus", "9999")
    )
    file = write_json({**MNIST, "required_gpus": 9999})
    error = expect_error(gpu_flows("submit", "--file", file))
    assert "Error: job.json: required_gpus: 9999 is greater" in error


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["--mount", "/a:/b", "--", "true"],
            "--mount is for jobs in containers.\nName the image with --image",
        ),
        (["--shm", "2", "--", "true"], "--shm is for jobs in containers"),
        (["--image", "i", "--pull", "sometimes"], "'sometimes' is none of if-not-present, always or never"),
        (["--class", "urgnt", "--", "true"], "none of low, normal, high or urgent.\nDid you mean 'urgent'?"),
        (["--image", "i", "--launcher", "mpirun"], "none of auto, torchrun, horovodrun or none"),
        (["--image", "i", "--shm", "nan"], "'nan' is no amount of memory"),
        (["train", "--image", "i", "--", "true"], "not both"),
        (["--file", "jobs.json", "--image", "i"], "leave --image out"),
        (["--file", "jobs.json", "--gpus", "2"], "leave --gpus out"),
        (["--file", "jobs.json", "--", "true"], "leave a command out"),
        (["--file", "jobs.json", "train"], "leave a deployment out"),
        (["--file", "jobs.json", "--param", "a=1"], "leave --param out"),
        (["--file", "jobs.json"], "jobs.json cannot be read: No such file"),
    ],
)
@pytest.mark.usefixtures("own_home")
def test_invalid_options_are_refused_without_a_server(words: list[str], expected: str) -> None:
    assert expected in expect_error(gpu_flows("submit", *words))


# submit --file


def test_request_of_schedulearn_is_accepted(pool: FakeServer) -> None:
    words = ["--priority", "7", "--directory", "/workspace", "--json"]
    result = gpu_flows("submit", "--file", write_json(MNIST), *words)
    assert result.code == 0, result
    assert result.json["id"] == "42"
    [body] = list_submitted(pool)
    assert body["parameters"] == {**MNIST, "type": "PyTorch"}
    assert body["name"] == "mnist"
    assert body["job_variables"] | {"user": ""} == {"priority": 7, "working_dir": "/workspace", "user": ""}


@pytest.mark.parametrize(
    ("kind", "launcher"),
    [
        ("Pytorch", "auto"),
        ("PYTORCH", "auto"),
        ("Horovod", "horovodrun"),
        ("Tensorflow", "horovodrun"),
        ("tensorFlow", "horovodrun"),
        ("as it is", "none"),
        (None, "auto"),
    ],
)
def test_spelling_of_types(kind: str | None, launcher: str, tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps({**MNIST, "type": kind}))
    [order], _ = requests.read_requests(file)
    assert LAUNCHERS[order.parameters["type"]] == launcher


def test_constants_agree_with_the_worker() -> None:
    assert set(requests.TYPES.values()) == set(get_args(ContainerType)), (
        "copied, because importing the flow is slow"
    )


def test_list_of_jobs_is_submitted_and_printed_as_a_list(pool: FakeServer) -> None:
    result = gpu_flows("submit", "--file", write_json([MNIST, {"container_image": "b"}]), "--json")
    assert [each["id"] for each in result.json] == ["42", "42"]
    assert [body["parameters"]["container_image"] for body in list_submitted(pool)] == ["lab/mnist:1", "b"]
    drawn = gpu_flows("submit", "--file", "job.json")
    assert drawn.out.splitlines()[0].split() == ["id", "run", "state", "message"]
    assert "2 jobs wait until one does" in drawn.err


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("{", "job.json is not JSON"),
        ([], "empty list"),
        (3, "job.json: this is not a job: 3"),
        ([MNIST, "x"], 'job.json, job 2: this is not a job: "x"'),
        ({**MNIST, "colour": "x"}, "there is no key 'colour'.\nA job has: name, type"),
        ({**MNIST, "comand": "x"}, "Did you mean 'command'?"),
        ({**MNIST, "gpus": 2}, "there is no key 'gpus'.\nDid you mean 'required_gpus'?"),
        ({"command": "true"}, "job.json: container_image is missing"),
        ({**MNIST, "container_image": " "}, "container_image is missing"),
        ({**MNIST, "container_image": ["a"]}, 'container_image is ["a"], but must be a text'),
        ({**MNIST, "command": ["python", "x"]}, "command is"),
        ({**MNIST, "required_gpus": "2"}, 'required_gpus is "2", but must be a whole number'),
        ({**MNIST, "required_gpus": 0}, "required_gpus is 0"),
        ({**MNIST, "required_gpus": True}, "required_gpus is true"),
        ({**MNIST, "required_gpus": 1.5}, "required_gpus is 1.5"),
        ([MNIST, {**MNIST, "type": "Caffe"}], "job.json, job 2: type is 'Caffe', which is none of PyTorch"),
    ],
)
def test_invalid_file_submits_nothing(what: Any, expected: str, pool: FakeServer) -> None:
    assert expected in expect_error(gpu_flows("submit", "--file", write_json(what)))
    assert list_submitted(pool) == []


def test_error_counts_the_jobs_submitted_before_a_refused_one(pool: FakeServer) -> None:
    run = {"id": "42", "name": "a", "state": {}, "state_type": "SCHEDULED"}
    detail = "Validation failed for field 'required_gpus'. Failure reason: 9999 is too much"
    answers = iter([(201, run), (409, {"detail": detail})])
    pool.answers["/deployments/7/create_flow_run"] = lambda headers: next(answers)
    error = expect_error(gpu_flows("submit", "--file", write_json([MNIST, {**MNIST, "required_gpus": 9999}])))
    assert "job.json, job 2: required_gpus: 9999 is too much." in error
    assert "1 of 2 jobs were submitted before it." in error


# queue and gpus


def test_queue_shows_the_gpus_of_a_container_job(pool: FakeServer) -> None:
    run = {
        "id": "42",
        "name": "mnist",
        "state": {"name": "Scheduled"},
        "deployment_id": "7",
        "created": "2026-01-01T00:00:00Z",
        "parameters": {"required_gpus": 3},
    }
    answers = iter([(200, [run]), (200, [])])
    pool.answers["/flow_runs/filter"] = lambda headers: next(answers)
    pool.answers["/deployments/filter"] = (
        200,
        [{"id": "7", "entrypoint": CONTAINER_FLOW, "job_variables": {}}],
    )
    assert gpu_flows("queue", "--json").json["waiting"][0]["gpus"] == 3


def test_gpus_shows_once_why_a_host_is_down(pool: FakeServer) -> None:
    why = "Docker host gpu2 does not answer: Connection refused"
    down = [device(node="gpu2", index=i, healthy=False, detail=why, jobs=[]) for i in range(2)]
    write_status(devices=[device(), *down], cluster_trouble="The devices stay as they are: because.")
    printed = gpu_flows("gpus").out
    assert printed.count(why) == 1
    assert f"gpu2 is down. {why}" in printed
    assert printed.count(" down ") == 2
    assert "The devices stay as they are" in printed


def test_gpus_without_a_worker_shows_declared_devices_of_docker_hosts(pool: FakeServer) -> None:
    cluster = GpuCluster.of(hosts=["one=unix:///x,gpus=2,model=V100,memory_gb=16", "two=ssh://y"])
    pool.answers[CLUSTER_BLOCK] = 200, {"data": json.loads(cluster.model_dump_json())}
    found = gpu_flows("gpus", "--json").json
    assert [(each["id"], each["model"]) for each in found["devices"]] == [
        ("SIM-one-0", "V100"),
        ("SIM-one-1", "V100"),
    ]


# up


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--docker-host", "gpu1"], "not of the form NAME=ADDRESS"),
        (["--docker-host", "gpu1=unix:///x,gpu=4"], "settings are address, gpu_access, gpus"),
        (["--docker-host", "gpu1=unix:///x,gpus=many"], "gpus: Input should be a valid integer"),
        (["--docker-host", "gpu1=http://x"], "none of unix://, ssh:// and tcp://"),
        (["--docker-host", "gpu1=tcp://x:2375"], "tcp without TLS"),
        (["--docker-host", "bad name=unix:///x"], "name: String should match"),
        (
            ["--docker-host", "a=unix:///x", "--docker-host", "a=unix:///y"],
            "two Docker hosts have the same name",
        ),
        (["--docker-host", "a=unix:///x", "--cluster", "1x4"], "choose one"),
    ],
)
@pytest.mark.usefixtures("own_home")
def test_invalid_hosts_are_refused_before_anything_starts(words: list[str], expected: str) -> None:
    assert expected in expect_error(gpu_flows("up", *words))


# doctor


def run_docker_check(fake: FakeServer, cluster: GpuCluster | dict[str, Any]) -> list[Finding]:
    data = json.loads(cluster.model_dump_json()) if isinstance(cluster, GpuCluster) else cluster
    fake.answers[CLUSTER_BLOCK] = 200, {"data": data}
    fake.answers["/admin/version"] = 200, "3.8.8"
    return list(check_docker(CheckContext("gpu")))


def levels(found: list[Finding]) -> list[str]:
    return [each.level for each in found]


def test_unreachable_host_is_an_error_with_a_fix(pool: FakeServer) -> None:
    hosts = ["gone=unix:///nowhere/docker.sock,gpus=1", "port=tcp://127.0.0.1:9,insecure=true,gpus=1"]
    gone, insecure, port = run_docker_check(pool, GpuCluster.of(hosts=hosts))
    assert (gone.level, "systemctl start docker" in gone.fix) == ("error", True)
    assert "gone (unix:///nowhere/docker.sock) does not answer this machine: " in gone.what
    assert (insecure.level, "root" in insecure.what, "--tlsverify" in insecure.fix) == ("warn", True, True)
    assert (port.level, "Connection refused" in port.what) == ("error", True)


def test_invalid_block_is_an_error(pool: FakeServer) -> None:
    hosts = [{"name": "a", "url": "tcp://x:2375"}]
    [found] = run_docker_check(pool, {"runtime": "docker", "hosts": hosts})
    assert (found.level, "tcp without TLS" in found.what) == ("error", True)


def test_checks_of_an_engine_that_answers(pool: FakeServer, engine: Daemon) -> None:
    cluster = GpuCluster.of(hosts=[f"one={engine.url},gpus=4", f"two={engine.url}"])
    found = run_docker_check(pool, cluster)
    result = [each for each in found if each.what.startswith(("Docker host one", "Host one has 4"))]
    assert levels(result) == ["ok", "ok"]
    [image] = [each for each in found if "probe image" in each.what]
    assert (image.level, "make image" in image.fix) == ("error", True)
    [access] = [each for each in found if "containers GPUs" in each.what]
    assert (access.level, "nvidia-ctk" in access.fix) == ("warn", True)

    cluster.containers.probe_image, cluster.containers.network = "bare:test", "nowhere"
    found = run_docker_check(pool, cluster)
    assert [each.level for each in found if "probe image" in each.what] == ["ok"]
    [first, _] = [each for each in found if "no network 'nowhere'" in each.what]
    assert (first.level, first.fix) == ("error", f"docker -H {engine.url} network create nowhere")


def test_warning_if_containers_cannot_reach_the_server(pool: FakeServer, engine: Daemon) -> None:
    if not engine.gateway:
        pytest.skip("this engine's containers share the network of the machine")
    found = run_docker_check(pool, GpuCluster.of(hosts=[f"one={engine.url},gpus=4"]))
    [reach] = [each for each in found if "cannot reach the Prefect server" in each.what]
    assert (reach.level, engine.gateway in reach.what) == ("warn", True)


# With a real engine


@pytest.mark.slow
def test_containers_run_from_options_and_from_a_file(
    new_stack: Callable[..., Stack], engine: Daemon, tmp_path: Path
) -> None:
    dead = f"dead=unix://{tmp_path}/nobody.sock,gpus=1"
    user = User(new_stack("", hosts=[f"one={engine.url},gpus=4", dead]), tmp_path, flow="container")
    line = "echo $NVIDIA_VISIBLE_DEVICES $COLOUR; df -m /dev/shm | tail -1; pwd"
    words = ["--image", "bare:test", "--gpus", "2", "--name", "first", "--env", "COLOUR=red", "--shm", "2"]
    result = user.run("submit", *words, "--directory", "/tmp", "--wait", "--shell", "--", line)
    assert result.code == 0, result
    run = user.run("why", "first", "--json").json
    assert (run["state"], run["gpus"]) == ("Completed", 2)
    logs = eventually(lambda: user.pool.output(run["id"]), "its output, in its logs").splitlines()
    assert (logs[0], logs[1].split()[1], logs[2]) == ("SIM-one-0,SIM-one-1 red", "2048", "/tmp")

    jobs = [
        {
            "name": "a",
            "type": "Pytorch",
            "container_image": "bare:test",
            "command": "echo a",
            "required_gpus": 1,
        },
        {"name": "b", "type": "as it is", "container_image": "bare:test", "command": "sh -c 'exit 3'"},
    ]
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    result = user.run("submit", "--file", "jobs.json", "--wait", "--json")
    assert result.code == 1, "one of them failed"
    assert [(each["run"], each["state"]) for each in result.json] == [("a", "Completed"), ("b", "Failed")]
    assert "exit code 3" in result.json[1]["message"]

    assert "dead is down" not in user.run("gpus").out, "a node with one device has no line of its own"
    assert "Docker host dead does not answer" in user.run("gpus").out
    found = user.run("doctor", "--json").json["findings"]
    seen = {each["level"]: each["what"] for each in found if each["check"] == "docker"}
    assert "Docker host dead" in seen["error"]
    refusal = user.run("submit", "--image", "bare:test", "--mount", "/etc:/etc", "--wait", "--", "true")
    assert (refusal.code, "Refused" in refusal.out, "mount roots" in refusal.out) == (1, True, True)


@pytest.mark.long
@pytest.mark.slow
def test_up_with_docker_runs_a_container(engine: Daemon, tmp_path: Path) -> None:
    port = free_port()
    stack = Stack(tmp_path / "home", port=port)  # for its environment alone
    env = {**stack.environment(), "DOCKER_HOST": engine.url}
    command = [sys.executable, "-m", "gpu_flows.cli", "up", "--docker", "--port", str(port)]
    with (tmp_path / "up.log").open("w") as log:
        up = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        read_log = (tmp_path / "up.log").read_text

        def ready() -> bool:
            assert up.poll() is None, read_log()
            return "Ready." in read_log()

        eventually(ready, "it is up", patience_s=180)
        assert "Runtime: Docker, on this machine's engine" in read_log()
        assert "local (this machine): Docker " in read_log()
        words = ["submit", "--image", "bare:test", "--gpus", "2", "--wait", "--", "echo", "6 * 7"]
        done = gpu_flows_process(*words, env=env, cwd=tmp_path)
        assert done.code == 0, (done, read_log())
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait(60)
    assert "Stopped" in read_log()
