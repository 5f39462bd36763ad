"""Docker's arguments for a launch: devices, limits, labels and secrets; and the command line launchers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from containers import CollectingSink, make_launch
from docker import APIClient

from gpu_flows.blocks import ContainerRules, DockerHost
from gpu_flows.runtimes.attempt_store import AttemptStore
from gpu_flows.runtimes.base import Launch, LaunchError, Mount
from gpu_flows.runtimes.docker import container_spec
from gpu_flows.runtimes.docker.adoption import Adoption
from gpu_flows.runtimes.docker.checkpoints import CheckpointTransfer
from gpu_flows.runtimes.docker.command_launchers import Launcher, wrap_command
from gpu_flows.runtimes.docker.container_spec import (
    container_files,
    container_labels,
    is_same_attempt,
    read_launch,
)
from gpu_flows.runtimes.docker.host import Host
from gpu_flows.runtimes.docker.host_health import HealthReport
from gpu_flows.runtimes.docker.mounts import OpenMounts
from gpu_flows.runtimes.docker.running_containers import RunningContainers
from gpu_flows.runtimes.output import OutputSender
from gpu_flows.schedulers.model import Device

GB = 1024**3
UUIDS = ["GPU-8f6d", "GPU-77aa"]


def arguments_for(
    launch: Launch,
    info: dict[str, Any] | None = None,
    rules: ContainerRules | None = None,
    **host_settings: Any,
) -> dict[str, Any]:
    """Return the arguments of `create_container` on a host whose engine has this description."""
    host = Host(DockerHost(name="host", **host_settings))
    host._info = info or {}
    api = APIClient("unix:///nowhere", version="1.41")
    rules = rules or ContainerRules()
    opened = OpenMounts(rules.mount_roots, host.socket_path)
    return container_spec.create_arguments(api, launch, "installation", host, rules, opened)


def with_gpus(*ids: str, **more: Any) -> Launch:
    devices = tuple(Device(id, "host", index) for index, id in enumerate(ids))
    return replace(make_launch("python", "train.py", **more), devices=devices)


# -- devices ----------------------------------------------------------------------------------


def test_a_host_with_the_nvidia_runtime_gets_a_device_request() -> None:
    arguments = arguments_for(with_gpus(*UUIDS), {"Runtimes": {"runc": {}, "nvidia": {}}})
    [request] = arguments["host_config"]["DeviceRequests"]
    assert (request["Driver"], request["DeviceIDs"], request["Count"]) == ("nvidia", UUIDS, 0)
    assert arguments["environment"]["NVIDIA_VISIBLE_DEVICES"] == "GPU-8f6d,GPU-77aa"


def test_a_host_with_cdi_devices_gets_their_names() -> None:
    info = {
        "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=GPU-8f6d"}],
        "Runtimes": {"nvidia": {}},
    }
    arguments = arguments_for(with_gpus(*UUIDS), info)
    [request] = arguments["host_config"]["DeviceRequests"]
    assert (request["Driver"], request["DeviceIDs"]) == ("cdi", [f"nvidia.com/gpu={id}" for id in UUIDS])
    assert (
        arguments["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"
    )  # so that the NVIDIA runtime adds none
    assert arguments["environment"]["CUDA_VISIBLE_DEVICES"] == "GPU-8f6d,GPU-77aa"


def test_a_host_with_neither_gets_the_variable() -> None:
    arguments = arguments_for(with_gpus(*UUIDS), {"Runtimes": {"runc": {}}})
    assert not arguments["host_config"].get("DeviceRequests")
    assert arguments["environment"]["NVIDIA_VISIBLE_DEVICES"] == "GPU-8f6d,GPU-77aa"


def test_simulated_devices_are_only_a_variable() -> None:
    arguments = arguments_for(with_gpus("SIM-a-0", "SIM-a-1"), {"Runtimes": {"nvidia": {}}})
    assert not arguments["host_config"].get("DeviceRequests")
    assert arguments["environment"]["NVIDIA_VISIBLE_DEVICES"] == "SIM-a-0,SIM-a-1"
    assert arguments["environment"]["GPU_FLOWS_GPUS"] == "2"


def test_a_job_without_devices_sees_none() -> None:
    arguments = arguments_for(with_gpus(), {"Runtimes": {"nvidia": {}}})
    assert not arguments["host_config"].get("DeviceRequests")
    assert arguments["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert arguments["environment"]["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize("access", ["nvidia", "cdi"])
def test_the_configured_gpu_access_has_precedence(access: str) -> None:
    [request] = arguments_for(with_gpus(*UUIDS), gpu_access=access)["host_config"]["DeviceRequests"]
    assert request["Driver"] == access


# -- limits -----------------------------------------------------------------------------------


def test_every_container_has_the_same_restrictions() -> None:
    config = arguments_for(make_launch("true"))["host_config"]
    assert config["CapDrop"] == ["ALL"]
    assert config["SecurityOpt"] == ["no-new-privileges"]
    assert config["PidsLimit"] == 4096
    assert config["IpcMode"] == "private"
    assert config["NetworkMode"] == "bridge"
    assert config["LogConfig"] == {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "3"}}
    forbidden = (
        "Privileged",
        "CapAdd",
        "Devices",
        "PidMode",
        "UsernsMode",
        "Binds",
        "GroupAdd",
        "RestartPolicy",
    )
    for setting in forbidden:
        assert not config.get(setting)


def test_shared_memory_is_a_gigabyte_by_default() -> None:
    assert arguments_for(make_launch("true"))["host_config"]["ShmSize"] == GB
    assert arguments_for(make_launch("true", shm_mb=2048))["host_config"]["ShmSize"] == 2 * GB


def test_limits_are_those_of_the_job_or_else_of_the_pool() -> None:
    pool = ContainerRules(most_memory_gb=8, most_cpus=2.5)
    config = arguments_for(make_launch("true", memory_mb=512, cpus=0.5), rules=pool)["host_config"]
    assert (config["Memory"], config["MemorySwap"], config["NanoCpus"]) == (GB // 2, GB // 2, 500_000_000)
    config = arguments_for(make_launch("true"), rules=pool)["host_config"]
    assert (config["Memory"], config["MemorySwap"], config["NanoCpus"]) == (8 * GB, 8 * GB, 2_500_000_000)
    config = arguments_for(make_launch("true"))["host_config"]
    assert not config.get("Memory")
    assert not config.get("NanoCpus")


def test_the_engines_init_process_is_used_if_it_has_one() -> None:
    for version in ("de40ad0", ""):  # Debian's engine does not know its version
        assert (
            arguments_for(make_launch("true"), {"InitCommit": {"ID": version}})["host_config"]["Init"] is True
        )
    assert "Init" not in arguments_for(make_launch("true"), {"InitCommit": {"ID": "N/A"}})["host_config"]


def test_a_mount_root_is_a_private_bind(tmp_path: Any) -> None:
    launch = make_launch("true", mounts=(Mount(str(tmp_path), "/data", read_only=True),))
    [mount] = arguments_for(launch, rules=ContainerRules(mount_roots=[str(tmp_path)]))["host_config"][
        "Mounts"
    ]
    assert (mount["Type"], mount["Source"], mount["Target"]) == ("bind", str(tmp_path), "/data")
    assert mount["ReadOnly"] is True
    assert mount["BindOptions"] == {"Propagation": "rprivate"}


def test_an_image_gets_a_tag_so_that_it_is_not_taken_for_an_id() -> None:
    assert arguments_for(make_launch("true", image="cafe"))["image"] == "cafe:latest"
    assert arguments_for(make_launch("true", image="lab:5000/cafe"))["image"] == "lab:5000/cafe:latest"
    assert arguments_for(make_launch("true", image="cafe:1"))["image"] == "cafe:1"


# -- identity ---------------------------------------------------------------------------------


def test_labels_identify_the_attempt_and_contain_the_launch() -> None:
    launch = make_launch("true", gpus=2)
    arguments = arguments_for(launch)
    assert arguments["name"] == f"gf-{launch.job.id}-1"
    labels = arguments["labels"]
    assert labels["gpu-flows.run"] == launch.job.id
    assert labels["gpu-flows.attempt"] == "1"
    assert labels["gpu-flows.pool"] == "pool"
    assert labels["gpu-flows.installation"] == "installation"
    assert labels["gpu-flows.devices"] == "SIM-host-0,SIM-host-1"
    assert read_launch(f"/{arguments['name']}", labels) == launch
    assert is_same_attempt(
        replace(launch, policy="other"), "installation", labels
    )  # planned twice, the same attempt


def test_labels_of_an_image_are_not_taken_for_a_launch() -> None:
    labels = arguments_for(make_launch("true"))["labels"]
    assert read_launch("/foreign-container", labels) is None
    assert read_launch("/x", {}) is None
    assert read_launch("/x", {"gpu-flows.launch": "{}"}) is None
    assert read_launch("/x", {"gpu-flows.launch": "[]"}) is None


@pytest.mark.parametrize("other", [{"attempt": 2}, {"pool": "other"}, {"devices": ()}])
def test_another_attempt_is_not_the_same_container(other: dict[str, Any]) -> None:
    launch = make_launch("true")
    assert not is_same_attempt(
        replace(launch, **other), "installation", container_labels(launch, "installation")
    )
    assert not is_same_attempt(launch, "other", container_labels(launch, "installation"))


# -- variables and secrets --------------------------------------------------------------------


def test_secrets_are_only_in_files() -> None:
    launch = make_launch("true", env={"TOKEN": "hunter2", "LR": "0.1"}, secrets={"TOKEN": "hunter2"})
    arguments = arguments_for(launch)
    assert "hunter2" not in json.dumps(arguments, default=str)
    assert arguments["environment"]["TOKEN_FILE"] == "/run/gpu-flows/secrets/TOKEN"
    assert "TOKEN" not in arguments["environment"]
    assert arguments["environment"]["LR"] == "0.1"
    assert container_files(launch) == {"run/gpu-flows/secrets/TOKEN": b"hunter2"}


def test_labels_contain_no_variables() -> None:
    launch = make_launch("true", env={"PASSWORD": "hunter2"})
    assert "hunter2" not in json.dumps(container_labels(launch, "installation"))


def test_a_job_cannot_override_our_variables() -> None:
    launch = make_launch("true", env={"NVIDIA_VISIBLE_DEVICES": "all", "GPU_FLOWS_GPUS": "99"})
    env = arguments_for(launch)["environment"]
    assert (env["NVIDIA_VISIBLE_DEVICES"], env["GPU_FLOWS_GPUS"]) == ("SIM-host-0", "1")


def test_a_flow_gets_its_entry_as_files() -> None:
    launch = make_launch("python", handles_intents=True)
    assert {"run/gpu-flows/entry.py", "run/gpu-flows/prefect_private.py"} == set(container_files(launch))
    assert arguments_for(launch)["environment"]["GPU_FLOWS_ATTEMPT_FOLDER"] == "/run/gpu-flows"


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]", "0.0.0.0"])
def test_a_local_address_of_the_server_is_rewritten(name: str) -> None:
    arguments = arguments_for(make_launch("true", env={"PREFECT_API_URL": f"http://{name}:4200/api"}))
    assert arguments["environment"]["PREFECT_API_URL"] == "http://host.docker.internal:4200/api"
    assert arguments["host_config"]["ExtraHosts"] == ["host.docker.internal:host-gateway"]


def test_other_addresses_stay_unless_the_pool_has_its_own() -> None:
    launch = make_launch("true", env={"PREFECT_API_URL": "https://prefect.lab/api"})
    arguments = arguments_for(launch)
    assert arguments["environment"]["PREFECT_API_URL"] == "https://prefect.lab/api"
    assert not arguments["host_config"].get("ExtraHosts")
    arguments = arguments_for(launch, rules=ContainerRules(api_url="http://10.0.0.1:4200/api"))
    assert arguments["environment"]["PREFECT_API_URL"] == "http://10.0.0.1:4200/api"


def test_on_another_machine_a_local_address_is_an_error() -> None:
    launch = make_launch("true", env={"PREFECT_API_URL": "http://localhost:4200/api"})
    with pytest.raises(LaunchError, match="Prefect API address"):
        arguments_for(launch, url="ssh://gpu1")


# -- command launchers ------------------------------------------------------------------------

RUN2 = "-m torch.distributed.run --standalone --nproc-per-node=2"


@pytest.mark.parametrize(
    ("launcher", "gpus", "command", "wrapped"),
    [
        ("auto", 1, "python train.py", "python train.py"),
        ("auto", 2, "python train.py --lr 1", f"python {RUN2} train.py --lr 1"),
        ("auto", 2, "python3.11 -u train.py", f"python3.11 -u {RUN2} train.py"),
        ("auto", 2, "/opt/bin/python -X dev -m pkg.train", f"/opt/bin/python -X dev {RUN2} -m pkg.train"),
        ("auto", 2, "python -c pass", "python -c pass"),
        ("auto", 2, "python", "python"),
        ("auto", 2, "python -m torch.distributed.run x.py", "python -m torch.distributed.run x.py"),
        ("auto", 2, "python -m accelerate.commands.launch x.py", "python -m accelerate.commands.launch x.py"),
        ("auto", 2, "torchrun x.py", "torchrun x.py"),
        ("auto", 2, "bash run.sh", "bash run.sh"),
        ("auto", 0, "python train.py", "python train.py"),
        ("torchrun", 1, "python train.py", f"python {RUN2} train.py".replace("=2", "=1")),
        ("torchrun", 2, "./train", f"python {RUN2} --no-python ./train"),
        ("horovodrun", 2, "python train.py", "horovodrun -np 2 python train.py"),
        ("horovodrun", 1, "python train.py", "horovodrun -np 1 python train.py"),
        ("none", 2, "python train.py", "python train.py"),
        ("auto", 2, "", ""),
    ],
)
def test_a_command_is_wrapped_for_its_devices(
    launcher: Launcher, gpus: int, command: str, wrapped: str
) -> None:
    assert " ".join(wrap_command(launcher, command.split(), gpus)) == wrapped


# -- containers of other versions -------------------------------------------------------------


def test_a_container_that_cannot_be_read_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An older version of gpu-flows stored launches in another form."""
    store = AttemptStore(tmp_path)
    running, sender = RunningContainers(), OutputSender(CollectingSink())
    checkpoints = CheckpointTransfer(store, lambda job_id: False)
    adoption = Adoption(store, "test", running, sender, checkpoints, lambda found: None, lambda: True)
    adoption._has_searched = True
    old = {"Id": "1", "Names": ["/gf-old-1"], "State": "running", "Labels": {"gpu-flows.launch": "{}"}}
    report = HealthReport([old])
    monitored = cast(Any, SimpleNamespace(host=SimpleNamespace(name="gpu1")))
    for _ in range(3):
        adoption.check_containers(monitored, report, keep_seconds=300)
    assert caplog.text.count("gf-old-1 on host gpu1 has this pool's label but cannot be read") == 1
    assert "docker rm -f gf-old-1" in caplog.text
