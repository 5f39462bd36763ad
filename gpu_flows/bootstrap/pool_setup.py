"""Creates a pool and its blocks. Those that exist already stay, but for the nodes of a cluster that is given.

As a program it prints a JSON object: the policy that was restored after a benchmark that had been killed, and
the names of the pool's deployments.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

from prefect.blocks.core import Block
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import WorkPoolFilter, WorkPoolFilterName
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from pydantic import ValidationError

from gpu_flows.blocks import GpuCluster, GpuScheduler, Warehouse
from gpu_flows.config.pool_blocks import BlockNames
from gpu_flows.config.temporary_policies import TemporaryPolicies
from gpu_flows.worker.gpu_worker import GpuWorker


async def ensure_pool(client: PrefectClient, pool: str, blocks: str = "default") -> bool:
    """Create a pool that is configured by the blocks of that name. Returns whether it was created."""
    template = GpuWorker.get_default_base_job_template()
    for kind in ("scheduler", "cluster", "warehouse"):
        template["variables"]["properties"][kind]["default"] = blocks
    try:
        await client.create_work_pool(
            WorkPoolCreate(name=pool, type=GpuWorker.type, base_job_template=template)
        )
    except ObjectAlreadyExists:
        return False
    return True


async def ensure_blocks(
    client: PrefectClient, cluster: GpuCluster | None = None, name: str = "default"
) -> None:
    """Create the three blocks of that name. What a given cluster states replaces that of an existing cluster
    block; all else, such as drained nodes and the network table, stays."""
    for block in (GpuScheduler(), GpuCluster(), Warehouse()):
        await type(block).register_type_and_schema(client=client)
        saved = await _read(client, block, name)
        if cluster and isinstance(block, GpuCluster):
            stated = {field: getattr(cluster, field) for field in cluster.model_fields_set}
            await _parse(saved).model_copy(update=stated).save(name, overwrite=True, client=client)
        elif saved is None:
            await block.save(name, overwrite=True, client=client)


async def _read(client: PrefectClient, block: Block, name: str) -> dict[str, Any] | None:
    """Return the data of the saved block of that type and name, if there is one."""
    try:
        document = await client.read_block_document_by_name(name, block.get_block_type_slug())
    except ObjectNotFound:
        return None
    return document.data


def _parse(saved: dict[str, Any] | None) -> GpuCluster:
    """Return the saved cluster; the default one if there is none, or its data is not valid."""
    try:
        return GpuCluster(**{key: value for key, value in (saved or {}).items() if key != "block_type_slug"})
    except ValidationError:
        return GpuCluster()


async def set_up(
    pool: str, cluster: GpuCluster | None = None, blocks: str = "default"
) -> dict[str, str | list[str]]:
    """Create what is missing. Returns what `main` prints."""
    async with get_client() as client:
        await ensure_pool(client, pool, blocks)
        await ensure_blocks(client, cluster, blocks)
        used = BlockNames.of(await client.read_work_pool(pool)).scheduler
        restored = await TemporaryPolicies(client, pool, used).restore_abandoned()
        in_pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[pool]))
        deployments = await client.read_deployments(work_pool_filter=in_pool)
    return {"restored_policy": restored, "deployments": [deployment.name for deployment in deployments]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pool")
    parser.add_argument("--cluster", default="", help="NODESxGPUS[:MODEL[:MEM_GB]][@RACKSIZE], joined by +")
    parser.add_argument(
        "--docker", action="store_true", help="run jobs in containers on this machine's Docker engine"
    )
    parser.add_argument("--docker-host", action="append", default=[], help="NAME=ADDRESS[,SETTING=VALUE ...]")
    parser.add_argument("--blocks", default="default", help="name of the three blocks")
    options = parser.parse_args()
    cluster = None
    if options.cluster or options.docker or options.docker_host:
        cluster = GpuCluster.of(options.cluster, options.docker, options.docker_host)
    print(json.dumps(asyncio.run(set_up(options.pool, cluster, options.blocks))))


if __name__ == "__main__":
    main()
