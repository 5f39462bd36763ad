"""What Docker is told for a launch: the devices, the limits, the labels, and where its secrets are not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from containers import make_launch
from docker import APIClient

from gpu_flows.blocks import ContainerRules, DockerHost
from gpu_flows.runtimes.base import Launch, LaunchError, Mount
from gpu_flows.runtimes.docker import container_spec
from gpu_flows.runtimes.docker.command_launchers import Launcher, wrap_command
from gpu_flows.runtimes.docker.host import Host
from gpu_flows.schedulers.model import Device

GB = 1024**3
UUIDS = ["GPU-8f6d", "GPU-77aa"]


def told(
    launch: Launch,
    info: dict[str, Any] | None = None,
    rules: ContainerRules | None = None,
    **host_settings: Any,
) -> dict[str, Any]:
    """What `create_container` would be called with, on a host whose engine says this of itself."""
    host = Host(DockerHost(name="host", **host_settings))
    host._info = info or {}
    api = APIClient("unix:///nowhere", version="1.41")
    return container_spec.create_arguments(api, launch, "installation", host, rules or ContainerRules())


def with_gpus(*ids: str, **more: Any) -> Launch:
    devices = tuple(Device(id, "host", index) for index, id in enumerate(ids))
    return replace(make_launch("python", "train.py", **more), devices=devices)


# -- devices ----------------------------------------------------------------------------------


def test_a_host_with_nvidias_runtime_is_sent_a_device_request() -> None:
    asked = told(with_gpus(*UUIDS), {"Runtimes": {"runc": {}, "nvidia": {}}})
    [request] = asked["host_config"]["DeviceRequests"]
    assert (request["Driver"], request["DeviceIDs"], request["Count"]) == ("nvidia", UUIDS, 0)
    assert asked["environment"]["NVIDIA_VISIBLE_DEVICES"] == "GPU-8f6d,GPU-77aa"


def test_a_host_with_cdi_devices_is_sent_their_names() -> None:
    info = {
        "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=GPU-8f6d"}],
        "Runtimes": {"nvidia": {}},
    }
    asked = told(with_gpus(*UUIDS), info)
    [request] = asked["host_config"]["DeviceRequests"]
    assert (request["Driver"], request["DeviceIDs"]) == ("cdi", [f"nvidia.com/gpu={id}" for id in UUIDS])
    assert asked["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"  # NVIDIA's runtime adds none of its own
    assert asked["environment"]["CUDA_VISIBLE_DEVICES"] == "GPU-8f6d,GPU-77aa"


def test_a_host_that_offers_neither_gets_the_variable() -> None:
    asked = told(with_gpus(*UUIDS), {"Runtimes": {"runc": {}}})
    assert not asked["host_config"].get("DeviceRequests")
    assert asked["environment"]["NVIDIA_VISIBLE_DEVICES"] == "GPU-8f6d,GPU-77aa"


def test_simulated_devices_are_a_variable_whatever_the_host_offers() -> None:
    asked = told(with_gpus("SIM-a-0", "SIM-a-1"), {"Runtimes": {"nvidia": {}}})
    assert not asked["host_config"].get("DeviceRequests")
    assert asked["environment"]["NVIDIA_VISIBLE_DEVICES"] == "SIM-a-0,SIM-a-1"
    assert asked["environment"]["GPU_FLOWS_GPUS"] == "2"


def test_a_job_without_devices_sees_none() -> None:
    asked = told(with_gpus(), {"Runtimes": {"nvidia": {}}})
    assert not asked["host_config"].get("DeviceRequests")
    assert asked["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert asked["environment"]["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize("access", ["nvidia", "cdi"])
def test_the_hosts_settings_beat_what_it_offers(access: str) -> None:
    [request] = told(with_gpus(*UUIDS), gpu_access=access)["host_config"]["DeviceRequests"]
    assert request["Driver"] == access


# -- limits -----------------------------------------------------------------------------------


def test_every_container_is_held_in_the_same_cage() -> None:
    config = told(make_launch("true"))["host_config"]
    assert config["CapDrop"] == ["ALL"]
    assert config["SecurityOpt"] == ["no-new-privileges"]
    assert config["PidsLimit"] == 4096
    assert config["IpcMode"] == "private"
    assert config["NetworkMode"] == "bridge"
    assert config["LogConfig"] == {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "3"}}
    for never in (
        "Privileged",
        "CapAdd",
        "Devices",
        "PidMode",
        "UsernsMode",
        "Binds",
        "GroupAdd",
        "RestartPolicy",
    ):
        assert not config.get(never)


def test_shared_memory_is_a_gigabyte_unless_asked_otherwise() -> None:
    assert told(make_launch("true"))["host_config"]["ShmSize"] == GB
    assert told(make_launch("true", shm_mb=2048))["host_config"]["ShmSize"] == 2 * GB


def test_limits_are_the_jobs_or_else_the_pools() -> None:
    pool = ContainerRules(most_memory_gb=8, most_cpus=2.5)
    config = told(make_launch("true", memory_mb=512, cpus=0.5), rules=pool)["host_config"]
    assert (config["Memory"], config["MemorySwap"], config["NanoCpus"]) == (GB // 2, GB // 2, 500_000_000)
    config = told(make_launch("true"), rules=pool)["host_config"]
    assert (config["Memory"], config["MemorySwap"], config["NanoCpus"]) == (8 * GB, 8 * GB, 2_500_000_000)
    config = told(make_launch("true"))["host_config"]
    assert not config.get("Memory")
    assert not config.get("NanoCpus")


def test_the_engines_first_process_is_used_where_it_has_one() -> None:
    for known in ("de40ad0", ""):  # Debian's does not say which it is
        assert told(make_launch("true"), {"InitCommit": {"ID": known}})["host_config"]["Init"] is True
    assert "Init" not in told(make_launch("true"), {"InitCommit": {"ID": "N/A"}})["host_config"]


def test_mounts_are_binds_that_pass_nothing_back(tmp_path: Any) -> None:
    launch = make_launch("true", mounts=(Mount(str(tmp_path), "/data", read_only=True),))
    [mount] = told(launch, rules=ContainerRules(mount_roots=[str(tmp_path)]))["host_config"]["Mounts"]
    assert (mount["Type"], mount["Source"], mount["Target"]) == ("bind", str(tmp_path), "/data")
    assert mount["ReadOnly"] is True
    assert mount["BindOptions"] == {"Propagation": "rprivate"}


def test_an_image_is_named_with_its_tag_lest_docker_take_it_for_a_number() -> None:
    assert told(make_launch("true", image="cafe"))["image"] == "cafe:latest"
    assert told(make_launch("true", image="lab:5000/cafe"))["image"] == "lab:5000/cafe:latest"
    assert told(make_launch("true", image="cafe:1"))["image"] == "cafe:1"


# -- who it is --------------------------------------------------------------------------------


def test_labels_tell_who_it_is_and_lead_back_to_the_launch() -> None:
    launch = make_launch("true", gpus=2)
    asked = told(launch)
    assert asked["name"] == f"gf-{launch.job.id}-1"
    labels = asked["labels"]
    assert labels["gpu-flows.run"] == launch.job.id
    assert labels["gpu-flows.attempt"] == "1"
    assert labels["gpu-flows.pool"] == "pool"
    assert labels["gpu-flows.installation"] == "installation"
    assert labels["gpu-flows.devices"] == "SIM-host-0,SIM-host-1"
    assert container_spec.read_launch(f"/{asked['name']}", labels) == launch
    assert container_spec.is_same_attempt(
        replace(launch, policy="other"), "installation", labels
    )  # planned twice, the same attempt


def test_labels_that_an_image_brought_along_lead_nowhere() -> None:
    labels = told(make_launch("true"))["labels"]
    assert container_spec.read_launch("/somebodys-container", labels) is None
    assert container_spec.read_launch("/x", {}) is None
    assert container_spec.read_launch("/x", {"gpu-flows.launch": "{}"}) is None
    assert container_spec.read_launch("/x", {"gpu-flows.launch": "[]"}) is None


@pytest.mark.parametrize("other", [{"attempt": 2}, {"pool": "other"}, {"devices": ()}])
def test_another_attempt_is_another_container(other: dict[str, Any]) -> None:
    launch = make_launch("true")
    assert not container_spec.is_same_attempt(
        replace(launch, **other), "installation", container_spec.container_labels(launch, "installation")
    )
    assert not container_spec.is_same_attempt(
        launch, "other", container_spec.container_labels(launch, "installation")
    )


# -- variables and secrets --------------------------------------------------------------------


def test_secrets_are_files_and_nowhere_else() -> None:
    launch = make_launch("true", env={"TOKEN": "hunter2", "LR": "0.1"}, secrets={"TOKEN": "hunter2"})
    asked = told(launch)
    assert "hunter2" not in json.dumps(asked, default=str)
    assert asked["environment"]["TOKEN_FILE"] == "/run/gpu-flows/secrets/TOKEN"
    assert "TOKEN" not in asked["environment"]
    assert asked["environment"]["LR"] == "0.1"
    assert container_spec.container_files(launch) == {"run/gpu-flows/secrets/TOKEN": b"hunter2"}


def test_no_variable_is_in_a_label() -> None:
    launch = make_launch("true", env={"PASSWORD": "hunter2"})
    assert "hunter2" not in json.dumps(container_spec.container_labels(launch, "installation"))


def test_a_jobs_variables_never_beat_ours() -> None:
    launch = make_launch("true", env={"NVIDIA_VISIBLE_DEVICES": "all", "GPU_FLOWS_GPUS": "99"})
    env = told(launch)["environment"]
    assert (env["NVIDIA_VISIBLE_DEVICES"], env["GPU_FLOWS_GPUS"]) == ("SIM-host-0", "1")


def test_a_flow_brings_its_entry_along() -> None:
    launch = make_launch("python", handles_intents=True)
    assert {"run/gpu-flows/entry.py", "run/gpu-flows/prefect_private.py"} == set(
        container_spec.container_files(launch)
    )
    assert told(launch)["environment"]["GPU_FLOWS_ATTEMPT_FOLDER"] == "/run/gpu-flows"


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]", "0.0.0.0"])
def test_the_workers_own_address_of_the_server_is_rewritten(name: str) -> None:
    asked = told(make_launch("true", env={"PREFECT_API_URL": f"http://{name}:4200/api"}))
    assert asked["environment"]["PREFECT_API_URL"] == "http://host.docker.internal:4200/api"
    assert asked["host_config"]["ExtraHosts"] == ["host.docker.internal:host-gateway"]


def test_any_other_address_stays_and_the_pools_own_wins() -> None:
    launch = make_launch("true", env={"PREFECT_API_URL": "https://prefect.lab/api"})
    asked = told(launch)
    assert asked["environment"]["PREFECT_API_URL"] == "https://prefect.lab/api"
    assert not asked["host_config"].get("ExtraHosts")
    asked = told(launch, rules=ContainerRules(api_url="http://10.0.0.1:4200/api"))
    assert asked["environment"]["PREFECT_API_URL"] == "http://10.0.0.1:4200/api"


def test_on_another_machine_localhost_means_nothing() -> None:
    launch = make_launch("true", env={"PREFECT_API_URL": "http://localhost:4200/api"})
    with pytest.raises(LaunchError, match="Prefect API address"):
        told(launch, url="ssh://gpu1")


# -- launchers --------------------------------------------------------------------------------

RUN2 = "-m torch.distributed.run --standalone --nproc-per-node=2"


@pytest.mark.parametrize(
    ("launcher", "gpus", "command", "becomes"),
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
def test_a_command_runs_once_per_device(launcher: Launcher, gpus: int, command: str, becomes: str) -> None:
    assert " ".join(wrap_command(launcher, command.split(), gpus)) == becomes
