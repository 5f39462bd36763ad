"""What a job that spans nodes is told about them: their names, addresses and devices, and where its processes
meet."""

from __future__ import annotations

import json
import zlib

from gpu_flows.blocks import GpuCluster
from gpu_flows.runtimes.base import Launch

PEERS = "GPU_FLOWS_PEERS"
THIS_MACHINE = "127.0.0.1"
_FIRST_PORT, _PORTS = 20_000, 10_000  # below those that Linux gives to outgoing connections


def add_peers(launch: Launch, cluster: GpuCluster) -> dict[str, str]:
    """Return the environment of the launch, with its peers if its devices are on several nodes. Where its
    processes meet is a proposal that the job's own variables replace."""
    indexes: dict[str, list[int]] = {}
    for device in launch.devices:
        indexes.setdefault(device.node, []).append(device.index)
    if len(indexes) < 2:
        return launch.env
    addresses = {host.name: host.job_address for host in cluster.hosts}
    peers = [
        {"node": node, "address": addresses.get(node, THIS_MACHINE), "devices": devices}
        for node, devices in indexes.items()
    ]
    meeting = {"MASTER_ADDR": str(peers[0]["address"]), "MASTER_PORT": str(_choose_port(launch.id))}
    return {**meeting, **launch.env, PEERS: json.dumps(peers)}


def _choose_port(attempt: str) -> int:
    """Return a port that another attempt has only by chance."""
    return _FIRST_PORT + zlib.crc32(attempt.encode()) % _PORTS
