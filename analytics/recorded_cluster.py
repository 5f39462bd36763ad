"""The nodes of a pool as its warehouse knows them, for the simulator."""

from __future__ import annotations

from pathlib import Path

from gpu_flows.analytics.query_runner import run_query
from gpu_flows.schedulers.model import Device, Node


def load_nodes(database: Path, pool: str) -> list[Node]:
    """Return the nodes of a pool with every device that was seen and is not gone. Raises QueryError."""
    devices: dict[str, list[Device]] = {}
    racks: dict[str, str] = {}
    for id, node, index, model, memory_mb, rack in run_query(database, _DEVICES, {"pool": pool}).rows:
        devices.setdefault(node, []).append(Device(id, node, index, model, memory_mb))
        racks[node] = rack
    return [Node(name, tuple(found), racks[name]) for name, found in devices.items()]


_DEVICES = """
with latest as (
    select device_id, arg_max(devices, time) as seen from devices where pool = $pool group by device_id
),
gone as (select device_id from device_events group by device_id having arg_max(kind, time) = 'gone'),
racks as (select node, arg_max(rack, time) as rack from nodes where pool = $pool group by node)
select
    device_id, seen.node, seen.index,
    coalesce(seen.model, ''), coalesce(seen.memory_mb, 0), coalesce(rack, '')
from latest left join racks on racks.node = seen.node
where device_id not in (from gone)
order by seen.node, seen.index
"""
