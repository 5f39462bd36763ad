"""`gpu-flows gpus`: every device, and how it does."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from rich.console import Group
from rich.text import Text

from gpu_flows.cli import parts
from gpu_flows.cli.parts import DEFAULT_POOL, JsonOption, PoolOption, WatchOption
from gpu_flows.cli.problem import Problem
from gpu_flows.schedulers.model import Device
from gpu_flows.worker.status import read_status


@parts.examples("gpu-flows gpus", "gpu-flows gpus --watch", "gpu-flows gpus --json | jq '.devices[].id'")
def gpus(pool: PoolOption = DEFAULT_POOL, watch: WatchOption = False, as_json: JsonOption = False) -> None:
    """Show every device of the pool: how busy it is, how it does, and whose jobs hold it.

    Read from the worker that serves the pool on this machine; without one, from this machine's
    driver (NVML); without GPUs, from the cluster block, which declares devices.
    """
    source = _Source(pool)
    try:
        parts.present(source.look, _draw, as_json, watch)
    finally:
        source.close()


class _Source:
    """Where the devices are read; NVML stays open while they are watched."""

    def __init__(self, pool: str) -> None:
        self.pool = pool
        self._nvml: Any = None

    def look(self) -> dict[str, Any]:
        status = read_status(self.pool)
        if status:
            note = f"As the worker of pool {self.pool!r} reads them."
            trouble = status.trouble
            return {"source": "worker", "note": note, "devices": status.devices, "trouble": trouble}
        found = self._from_driver()
        if isinstance(found, list):
            note = "As this machine's driver (NVML) reads them: no worker serves the pool here."
            return {"source": "nvml", "note": note, "devices": found}
        declared = _declared(self.pool)
        if declared:
            note = "As the cluster block declares them: no worker serves the pool here, so nobody reads them."
            return {"source": "declared", "note": note, "devices": declared}
        raise Problem(
            f"No device is known: no worker serves pool {self.pool!r} on this machine, and {found}",
            "Start a worker (`gpu-flows up`, or `prefect worker start --pool " + self.pool + "`).",
        )

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.close()

    def _from_driver(self) -> list[dict[str, Any]] | str:
        """The devices, or why there are none."""
        from gpu_flows.devices.base import DeviceError, Reading
        from gpu_flows.devices.nvml import NvmlDevices

        if self._nvml is None:
            self._nvml = NvmlDevices()
        try:
            nodes = self._nvml.nodes()
        except DeviceError as error:
            return str(error)
        readings = {reading.device_id: reading for reading in self._nvml.read()}
        return [
            _device(device, readings.get(device.id) or Reading(device.id))
            for node in nodes
            for device in node.devices
        ]


def _declared(pool: str) -> list[dict[str, Any]]:
    """The devices of the pool's cluster block, none if it cannot be read."""
    from gpu_flows.cli.server import CLUSTER, Server
    from gpu_flows.devices.base import Reading
    from gpu_flows.schedulers.cluster.spec import declare

    with suppress(Problem, ValueError, KeyError, TypeError):
        server = Server(timeout_s=5)
        block = server.block(CLUSTER, server.block_name(pool, "cluster"))
        data = block["data"] if block else {}
        if data.get("hosts"):
            return [_device(device, Reading(device.id)) for host in data["hosts"] for device in _on(host)]
        kinds = data.get("nodes") or []
        spec = "+".join(f"{k['count']}x{k['gpus']}:{k['model']}:{k['memory_gb']:g}" for k in kinds)
        nodes = declare(spec) if spec else []
        return [_device(device, Reading(device.id)) for node in nodes for device in node.devices]
    return []


def _on(host: dict[str, Any]) -> list[Device]:
    """The devices that a Docker host declares; those that it really has only a worker knows."""
    name, memory_mb = host["name"], round(1024 * host["memory_gb"])
    return [Device(f"SIM-{name}-{i}", name, i, host["model"], memory_mb) for i in range(host["gpus"])]


def _device(device: Any, reading: Any) -> dict[str, Any]:
    """In the shape of the worker's status."""
    return {
        "id": device.id,
        "node": device.node,
        "index": device.index,
        "model": device.model,
        "memory_mb": device.memory_mb,
        "utilization": reading.utilization,
        "memory_used_mb": reading.memory_used_mb,
        "power_w": reading.power_w,
        "temperature_c": reading.temperature_c,
        "healthy": reading.healthy,
        "detail": reading.detail,
        "jobs": [],
    }


def _draw(found: dict[str, Any]) -> Group:
    """A node that is down as a whole is told of once, below, and not on the line of every device."""
    columns = ["node", "GPU", "model", "busy", "memory", "power", "temp", "health", "jobs"]
    down = _nodes_down(found["devices"])
    rows = [_row(device, "down" if device["node"] in down else "") for device in found["devices"]]
    numbers = ("GPU", "busy", "memory", "power", "temp")
    troubles = [f"{node} is down. {why}" for node, why in down.items()]
    troubles += [found["trouble"]] if found.get("trouble") else []
    told = [parts.cell(each, "red") for each in troubles]
    return Group(parts.table(columns, rows, right=numbers), Text(), *told, Text(found["note"], style="dim"))


def _nodes_down(devices: list[dict[str, Any]]) -> dict[str, str]:
    """Node -> why, where several devices are out of use and all for the same reason."""
    reasons: dict[str, list[str]] = {}
    for device in devices:
        reasons.setdefault(device["node"], []).append("" if device["healthy"] else device["detail"])
    alike = {node: told[0] for node, told in reasons.items() if len(told) > 1 and len(set(told)) == 1}
    return {node: why for node, why in alike.items() if why}


def _row(device: dict[str, Any], instead: str = "") -> list[object]:
    used, total = device["memory_used_mb"], device["memory_mb"]
    sick = parts.cell(instead or device["detail"] or "sick", "red")
    return [
        device["node"],
        device["index"],
        device["model"],
        _number(device["utilization"], "%"),
        f"{_number(used and used / 1024, '', 1)} / {total / 1024:.0f} GB",
        _number(device["power_w"], " W"),
        _number(device["temperature_c"], " C"),
        parts.cell("ok", "green") if device["healthy"] else sick,
        ", ".join(device["jobs"]) or "-",
    ]


def _number(value: float | None, unit: str, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}{unit}"
