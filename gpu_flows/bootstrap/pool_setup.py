"""Creates a pool and its blocks. Those that exist already are not changed."""

from __future__ import annotations

import argparse
import asyncio

from prefect.blocks.core import Block
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

from gpu_flows.blocks import GpuCluster, GpuScheduler, Warehouse
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
    """Create the three blocks of that name. A given cluster replaces an existing cluster block."""
    for block in (GpuScheduler(), cluster or GpuCluster(), Warehouse()):
        await type(block).register_type_and_schema(client=client)
        if block is cluster or not await _exists(client, block, name):
            await block.save(name, overwrite=True, client=client)


async def _exists(client: PrefectClient, block: Block, name: str) -> bool:
    try:
        await client.read_block_document_by_name(name, block.get_block_type_slug())
    except ObjectNotFound:
        return False
    return True


async def set_up(pool: str, cluster: GpuCluster | None = None, blocks: str = "default") -> None:
    async with get_client() as client:
        await ensure_pool(client, pool, blocks)
        await ensure_blocks(client, cluster, blocks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pool")
    parser.add_argument("--cluster", default="", help="NODESxGPUS[:MODEL[:MEM_GB]], joined by +")
    parser.add_argument(
        "--docker", action="store_true", help="run jobs in containers on this machine's Docker engine"
    )
    parser.add_argument("--docker-host", action="append", default=[], help="NAME=ADDRESS[,SETTING=VALUE ...]")
    parser.add_argument("--blocks", default="default", help="name of the three blocks")
    options = parser.parse_args()
    cluster = None
    if options.cluster or options.docker or options.docker_host:
        cluster = GpuCluster.of(options.cluster, options.docker, options.docker_host)
    asyncio.run(set_up(options.pool, cluster, options.blocks))


if __name__ == "__main__":
    main()
