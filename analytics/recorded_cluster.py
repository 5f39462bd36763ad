"""The nodes of a pool as its warehouse knows them, for the simulator."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpu_flows.analytics.query_runner import run_query
from gpu_flows.schedulers.model import DEFAULT_RACK, Device, DeviceLink, LinkGroup, Node


def load_nodes(database: Path, pool: str) -> list[Node]:
    """Return the nodes of a pool with every device that was seen and is not gone. Raises QueryError."""
    found = run_query(database, _NODES.format(devices=_PRESENT) + _IN_ORDER, {"pool": pool})
    return build_nodes(dict(zip(found.columns, row, strict=True)) for row in found.rows)


def build_nodes(rows: Iterable[Mapping[str, Any]]) -> list[Node]:
    """Return the nodes that consist of these devices, each with what is known of its node."""
    devices: dict[str, list[Device]] = {}
    nodes: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        device = Device(row["device_id"], row["node"], row["index"], row["model"], row["memory_mb"])
        devices.setdefault(row["node"], []).append(device)
        nodes[row["node"]] = row
    return [_build_node(name, tuple(found), nodes[name]) for name, found in devices.items()]


def _build_node(name: str, devices: tuple[Device, ...], row: Mapping[str, Any]) -> Node:
    links = tuple(LinkGroup(DeviceLink(link), tuple(group)) for link, group in json.loads(row["links"]))
    return Node(name, devices, row["rack"], row["cpus"], row["ram_mb"], links)


_PRESENT = """
where device_id not in (
    select device_id from device_events group by device_id having arg_max(kind, time) = 'gone'
)
"""
# Nodes and devices in the order in which they were declared, which decides between equal choices.
_NODES = f"""
with latest as (
    select device_id, arg_max(devices, time) as seen from devices where pool = $pool group by device_id
),
described as (select node, arg_max(nodes, time) as known from nodes where pool = $pool group by node)
select
    device_id,
    seen.node,
    seen.index,
    coalesce(seen.model, '') as model,
    coalesce(seen.memory_mb, 0) as memory_mb,
    coalesce(known.rack, '{DEFAULT_RACK}') as rack,
    coalesce(known.cpus, 0) as cpus,
    coalesce(known.ram_mb, 0) as ram_mb,
    coalesce(known.links, '[]') as links,
    known.position
from latest left join described on described.node = seen.node
{{devices}}
"""
_IN_ORDER = "order by position nulls last, node, index"
ALL_NODES = _NODES.format(devices="")
"""A query for all devices that the pool ever had, each with its node and the `position` of that."""
