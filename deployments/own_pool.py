"""The pool that a run of a maintenance flow belongs to, and its warehouse."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from prefect.client.orchestration import PrefectClient
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run

from gpu_flows.config.paths import default_warehouse
from gpu_flows.config.pool_blocks import BlockNames, read_warehouse


@dataclass(frozen=True)
class OwnPool:
    """A pool, its blocks and the file of its warehouse."""

    name: str = ""  # empty: the run belongs to no pool
    blocks: BlockNames = field(default_factory=BlockNames)
    warehouse: Path = field(default_factory=default_warehouse)


async def find_own_pool(client: PrefectClient) -> OwnPool:
    """Return the pool of this run, or one without a name and with the default warehouse."""
    try:
        run = await client.read_flow_run(flow_run.id)
        pool = await client.read_work_pool(run.work_pool_name or "")
        blocks = BlockNames.of(pool)
        warehouse = await read_warehouse(client, blocks.warehouse)
    except ObjectNotFound:
        return OwnPool()
    path = Path(warehouse.path).expanduser() if warehouse.path else default_warehouse()
    return OwnPool(pool.name, blocks, path)
