"""`gpu-flows gpus`: every device of a pool, with its load, health and jobs."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from rich.console import Group
from rich.text import Text

from gpu_flows.cli import output
from gpu_flows.cli.errors import CommandError
from gpu_flows.cli.options import DEFAULT_POOL, JsonOption, PoolOption, WatchOption, examples
from gpu_flows.schedulers.model import Device
from gpu_flows.worker.status import read_status


@examples("gpu-flows gpus", "gpu-flows gpus --watch", "gpu-flows gpus --json | jq '.devices[].id'")
def gpus(pool: PoolOption = DEFAULT_POOL, watch: WatchOption = False, as_json: JsonOption = False) -> None:
    """Show every device of the pool: its load, its health, and the jobs that hold it.

    The data comes from the worker that serves the pool on this machine; without one, from this machine's
    driver (NVML); without GPUs, from the cluster block, which declares devices.
    """
    source = _Source(pool)
    try:
        output.show_or_watch(source.read, _draw, as_json, watch)
    finally:
        source.close()


class _Source:
    """Reads the devices from the first source that has any. NVML stays open between reads."""

    def __init__(self, pool: str) -> None:
        self.pool = pool
        self._nvml: Any = None

    def read(self) -> dict[str, Any]:
        status = read_status(self.pool)
        if status:
            note = f"Read by the worker of pool {self.pool!r}."
            trouble = status.trouble
            return {"source": "worker", "note": note, "devices": status.devices, "trouble": trouble}
        devices, why_not = self._read_driver()
        if not why_not:
            note = "Read from this machine's driver (NVML), because no worker serves the pool here."
            return {"source": "nvml", "note": note, "devices": devices}
        devices = _read_declared(self.pool)
        if devices:
            note = "Declared in the cluster block. No worker serves the pool here, so there are no readings."
            return {"source": "declared", "note": note, "devices": devices}
        raise CommandError(
            f"There is no device: no worker serves pool {self.pool!r} on this machine, and {why_not}",
            "Start a worker (`gpu-flows up`, or `prefect worker start --pool " + self.pool + "`).",
        )

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.close()

    def _read_driver(self) -> tuple[list[dict[str, Any]], str]:
        """The devices, or no devices and the reason."""
        from gpu_flows.devices.base import DeviceError, Reading
        from gpu_flows.devices.nvml import NvmlDevices

        if self._nvml is None:
            self._nvml = NvmlDevices()
        try:
            nodes = self._nvml.nodes()
        except DeviceError as error:
            return [], str(error)
        readings = {reading.device_id: reading for reading in self._nvml.read()}
        devices = [device for node in nodes for device in node.devices]
        found = [_describe(device, readings.get(device.id) or Reading(device.id)) for device in devices]
        return found, ""


def _read_declared(pool: str) -> list[dict[str, Any]]:
    """The devices that the pool's cluster block declares; none if it cannot be read."""
    from gpu_flows.cli.prefect_client import CLUSTER_BLOCK, PrefectClient
    from gpu_flows.devices.base import Reading
    from gpu_flows.schedulers.cluster.spec import declare

    with suppress(CommandError, ValueError, KeyError, TypeError):
        block = PrefectClient(timeout_s=5).read_pool_block(pool, "cluster", CLUSTER_BLOCK)
        if block.get("hosts"):
            devices = [device for host in block["hosts"] for device in _declare_on_host(host)]
        else:
            kinds = block.get("nodes") or []
            spec = "+".join(f"{k['count']}x{k['gpus']}:{k['model']}:{k['memory_gb']:g}" for k in kinds)
            devices = [device for node in (declare(spec) if spec else []) for device in node.devices]
        return [_describe(device, Reading(device.id)) for device in devices]
    return []


def _declare_on_host(host: dict[str, Any]) -> list[Device]:
    """The devices that a Docker host declares. Only a worker knows the ones that it really has."""
    name, memory_mb = host["name"], round(1024 * host["memory_gb"])
    return [Device(f"SIM-{name}-{i}", name, i, host["model"], memory_mb) for i in range(host["gpus"])]


def _describe(device: Any, reading: Any) -> dict[str, Any]:
    """A device in the form of the worker's status."""
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
    """Draw the table. The reason why a whole node is down is printed once, below the table."""
    columns = ["node", "GPU", "model", "busy", "memory", "power", "temp", "health", "jobs"]
    down = _find_nodes_down(found["devices"])
    rows = [_draw_row(device, "down" if device["node"] in down else "") for device in found["devices"]]
    numbers = ("GPU", "busy", "memory", "power", "temp")
    troubles = [f"{node} is down. {why}" for node, why in down.items()]
    troubles += [found["trouble"]] if found.get("trouble") else []
    table = output.make_table(columns, rows, right=numbers)
    notes = [output.make_cell(trouble, "red") for trouble in troubles]
    return Group(table, Text(), *notes, Text(found["note"], style="dim"))


def _find_nodes_down(devices: list[dict[str, Any]]) -> dict[str, str]:
    """Node -> reason, for nodes with several devices that are all out of use for the same reason."""
    reasons: dict[str, list[str]] = {}
    for device in devices:
        reasons.setdefault(device["node"], []).append("" if device["healthy"] else device["detail"])
    return {
        node: whys[0] for node, whys in reasons.items() if len(whys) > 1 and len(set(whys)) == 1 and whys[0]
    }


def _draw_row(device: dict[str, Any], instead: str = "") -> list[object]:
    used, total = device["memory_used_mb"], device["memory_mb"]
    sick = output.make_cell(instead or device["detail"] or "sick", "red")
    return [
        device["node"],
        device["index"],
        device["model"],
        _format_number(device["utilization"], "%"),
        f"{_format_number(used and used / 1024, '', 1)} / {total / 1024:.0f} GB",
        _format_number(device["power_w"], " W"),
        _format_number(device["temperature_c"], " C"),
        output.make_cell("ok", "green") if device["healthy"] else sick,
        ", ".join(device["jobs"]) or "-",
    ]


def _format_number(value: float | None, unit: str, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}{unit}"
