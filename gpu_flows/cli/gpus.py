"""`gpu-flows gpus`: every device of a pool, with its load, health and jobs."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from gpu_flows.cli import output
from gpu_flows.cli.errors import CommandError
from gpu_flows.cli.options import DEFAULT_POOL, JsonOption, PoolOption, WatchOption, examples
from gpu_flows.schedulers.model import DEFAULT_RACK, Device, Node
from gpu_flows.schedulers.reasons import DRAINED
from gpu_flows.worker.status import describe_place, read_status

if TYPE_CHECKING:
    from gpu_flows.schedulers.cluster.spec import NodeGroup

COLUMNS = ("node", "GPU", "model", "place", "busy", "memory", "power", "temp", "health", "jobs")


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
            trouble = status.cluster_trouble
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
        found = [
            _describe(node, device, readings.get(device.id) or Reading(device.id))
            for node in nodes
            for device in node.devices
        ]
        return found, ""


def _read_declared(pool: str) -> list[dict[str, Any]]:
    """The devices that the pool's cluster block declares; none if it cannot be read."""
    from gpu_flows.cli.prefect_client import CLUSTER_BLOCK, PrefectClient
    from gpu_flows.devices.base import Reading
    from gpu_flows.schedulers.cluster.spec import build_nodes

    with suppress(CommandError, ValueError, KeyError, TypeError):
        block = PrefectClient(timeout_s=5).read_pool_block(pool, "cluster", CLUSTER_BLOCK)
        if hosts := block.get("hosts"):  # only a worker knows the devices that a host really has
            nodes = [
                _read_kind(host).make_node(host["name"], host.get("rack", DEFAULT_RACK)) for host in hosts
            ]
        else:
            nodes = build_nodes(_read_kind(kind) for kind in block.get("nodes") or [])
        return [_describe(node, device, Reading(device.id)) for node in nodes for device in node.devices]
    return []


def _read_kind(form: dict[str, Any]) -> NodeGroup:
    """The kind of node that a saved form describes: of declared nodes, or of a Docker host."""
    from gpu_flows.schedulers.cluster.spec import NodeGroup

    return NodeGroup(
        form.get("count", 1),
        form["gpus"],
        form["model"],
        round(1024 * form["memory_gb"]),
        form.get("rack_size", 0),
        form.get("rack", DEFAULT_RACK),
        links=form.get("links", ""),
    )


def _describe(node: Node, device: Device, reading: Any) -> dict[str, Any]:
    """A device in the form of the worker's status."""
    return {
        **describe_place(node, device.index),
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
    """Draw the table. The reason why a whole node is down is printed once, below the table; a node that was
    drained is not down."""
    down = {node: why for node, why in _find_nodes_down(found["devices"]).items() if why != DRAINED}
    rows = [_draw_row(device, "down" if device["node"] in down else "") for device in found["devices"]]
    has_places = any(row["place"] for row in rows)
    table = _draw_table(rows, () if has_places else ("place",))
    if has_places and not output.fits(table):
        table = _draw_table(rows, ("power", "temp"))
    troubles = [f"{node} is down. {why}" for node, why in down.items()]
    troubles += [found["trouble"]] if found.get("trouble") else []
    notes = [output.make_cell(trouble, "red") for trouble in troubles]
    return Group(table, Text(), *notes, Text(found["note"], style="dim"))


def _draw_table(rows: list[dict[str, object]], without: Collection[str]) -> Table:
    columns = [name for name in COLUMNS if name not in without]
    cells = [[row[name] for name in columns] for row in rows]
    return output.make_table(columns, cells, right=("GPU", "busy", "memory", "power", "temp"))


def _find_nodes_down(devices: list[dict[str, Any]]) -> dict[str, str]:
    """Node -> reason, for nodes with several devices that are all out of use for the same reason."""
    reasons: dict[str, list[str]] = {}
    for device in devices:
        reasons.setdefault(device["node"], []).append("" if device["healthy"] else device["detail"])
    return {
        node: whys[0] for node, whys in reasons.items() if len(whys) > 1 and len(set(whys)) == 1 and whys[0]
    }


def _draw_row(device: dict[str, Any], instead: str = "") -> dict[str, object]:
    used, total = device["memory_used_mb"], device["memory_mb"]
    sick = output.make_cell(instead or device["detail"] or "sick", "red")
    return {
        "node": device["node"],
        "GPU": device["index"],
        "model": device["model"],
        "place": _format_place(device),
        "busy": _format_number(device["utilization"], "%"),
        "memory": f"{_format_number(used and used / 1024, '', 1)} / {total / 1024:.0f} GB",
        "power": _format_number(device["power_w"], " W"),
        "temp": _format_number(device["temperature_c"], " C"),
        "health": output.make_cell("ok", "green") if device["healthy"] else sick,
        "jobs": ", ".join(device["jobs"]) or "-",
    }


def _format_place(device: dict[str, Any]) -> str:
    """The rack, and the devices of the node that this one is linked with most closely; empty if it has
    neither. `rack-1 NVLink 0-3`."""
    rack, links = device.get("rack", ""), device.get("links", [])
    parts = [rack] if rack != DEFAULT_RACK else []
    if links:
        parts.append(f"{links[0]['link']} {_format_indexes(links[0]['devices'])}")
    return " ".join(parts)


def _format_indexes(indexes: list[int]) -> str:
    if indexes == list(range(indexes[0], indexes[-1] + 1)):
        return f"{indexes[0]}-{indexes[-1]}"
    return ",".join(map(str, indexes))


def _format_number(value: float | None, unit: str, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}{unit}"
