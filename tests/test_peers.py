"""What a job is told about the nodes that it spans."""

from __future__ import annotations

import json
import socket

import pytest

from gpu_flows.blocks import DockerHost, GpuCluster
from gpu_flows.prefect_api.peers import add_peers
from gpu_flows.runtimes.base import Launch
from gpu_flows.schedulers.model import Device, Job


def launch(*devices: tuple[str, int], attempt: int = 1, **env: str) -> Launch:
    on = tuple(Device(f"GPU-{node}-{index}", node, index) for node, index in devices)
    return Launch(Job("a", gpus=len(on)), attempt, "pool", "fifo", 0.0, on, ("true",), env=env)


def test_a_job_on_one_node_has_no_peers() -> None:
    alone = launch(("node-1", 0), ("node-1", 1), LR="0.1")
    assert add_peers(alone, GpuCluster()) == {"LR": "0.1"}
    assert add_peers(launch(), GpuCluster()) == {}


def test_declared_nodes_are_all_on_this_machine() -> None:
    env = add_peers(launch(("node-2", 3), ("node-1", 0), ("node-2", 1), LR="0.1"), GpuCluster())
    assert json.loads(env["GPU_FLOWS_PEERS"]) == [
        {"node": "node-2", "address": "127.0.0.1", "devices": [3, 1]},
        {"node": "node-1", "address": "127.0.0.1", "devices": [0]},
    ]
    assert env["MASTER_ADDR"] == "127.0.0.1"
    assert 20_000 <= int(env["MASTER_PORT"]) < 30_000
    assert env["LR"] == "0.1"


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ({"url": "ssh://lab@gpu1"}, "gpu1"),
        ({"url": "tcp://10.0.0.7:2376", "tls_directory": "/certs"}, "10.0.0.7"),
        ({"url": "ssh://alias", "address": "10.1.0.7"}, "10.1.0.7"),
        ({}, socket.gethostname()),
        ({"url": "unix:///run/docker.sock"}, socket.gethostname()),
    ],
)
def test_docker_hosts_have_the_address_of_their_url_or_their_own(host: dict[str, str], address: str) -> None:
    hosts = [
        DockerHost.model_validate({"name": "first", **host}),
        DockerHost(name="other", url="ssh://other"),
    ]
    cluster = GpuCluster(runtime="docker", hosts=hosts)
    env = add_peers(launch(("first", 0), ("other", 0)), cluster)
    assert [peer["address"] for peer in json.loads(env["GPU_FLOWS_PEERS"])] == [address, "other"]
    assert env["MASTER_ADDR"] == address


def test_the_jobs_own_meeting_point_wins_and_attempts_have_their_own_port() -> None:
    spanning = ("node-1", 0), ("node-2", 0)
    own = add_peers(launch(*spanning, MASTER_ADDR="10.0.0.1", MASTER_PORT="29500"), GpuCluster())
    assert (own["MASTER_ADDR"], own["MASTER_PORT"]) == ("10.0.0.1", "29500")
    ports = {add_peers(launch(*spanning, attempt=n), GpuCluster())["MASTER_PORT"] for n in range(20)}
    assert len(ports) > 15
