"""Reading the blocks of a pool: defaults for missing ones, and a reason for invalid ones."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from uuid import uuid4

import pytest
from fake_prefect import FakePrefect
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import BlockDocument
from prefect.exceptions import ObjectNotFound

from gpu_flows.blocks import GpuCluster, Warehouse
from gpu_flows.config.pool_blocks import BadBlock, BlockNames, read_cluster, read_policy, read_warehouse
from gpu_flows.schedulers.policy import PolicyError


class Blocks:
    """A server with these blocks, by slug; all are named `mine`."""

    def __init__(self, **data: dict[str, Any]) -> None:
        self._data = {slug.replace("_", "-"): content for slug, content in data.items()}

    async def read_block_document_by_name(self, name: str, slug: str) -> BlockDocument:
        if name != "mine" or slug not in self._data:
            raise ObjectNotFound(KeyError(name))
        ids = {"block_schema_id": uuid4(), "block_type_id": uuid4()}
        return BlockDocument(name=name, data=self._data[slug], **ids)

    @property
    def client(self) -> PrefectClient:
        return cast(PrefectClient, self)


def test_the_names_of_the_blocks_are_defaults_of_the_pools_template() -> None:
    pool = FakePrefect().pool
    assert BlockNames.of(pool) == BlockNames("default", "default", "default")
    pool.base_job_template["variables"]["properties"]["cluster"]["default"] = "mine"
    assert BlockNames.of(pool).cluster == "mine"
    pool.base_job_template = {}
    assert BlockNames.of(pool) == BlockNames(), "a template without our variables"


def test_a_missing_block_stands_for_the_defaults() -> None:
    client = Blocks().client
    assert asyncio.run(read_cluster(client, "mine")) == GpuCluster()
    assert asyncio.run(read_warehouse(client, "mine")) == Warehouse()
    choice = asyncio.run(read_policy(client, "mine"))
    assert (choice.name, choice.error) == ("fifo", "")


def test_a_saved_block_is_read() -> None:
    blocks = Blocks(gpu_warehouse={"path": "/data/facts.duckdb", "block_type_slug": "gpu-warehouse"})
    assert asyncio.run(read_warehouse(blocks.client, "mine")).path == "/data/facts.duckdb"


def test_an_invalid_block_is_an_error_with_its_name_and_the_field() -> None:
    blocks = Blocks(gpu_warehouse={"sample_seconds": "often"})
    with pytest.raises(BadBlock, match=r"gpu-warehouse block 'mine' is invalid .*sample_seconds"):
        asyncio.run(read_warehouse(blocks.client, "mine"))


def test_a_scheduler_block_that_names_no_policy_is_refused() -> None:
    blocks = Blocks(gpu_scheduler={"policy": {}})
    choice = asyncio.run(read_policy(blocks.client, "mine"))
    with pytest.raises(PolicyError, match="'mine' names no policy"):
        choice.check()


def test_another_option_is_another_policy_and_a_later_save_is_not() -> None:
    def read(**options: Any) -> Any:
        blocks = Blocks(gpu_scheduler={"policy": {"name": "round_robin", **options}})
        return asyncio.run(read_policy(blocks.client, "mine"))

    assert read().is_same_policy(read())
    assert not read().is_same_policy(read(wait_for_turn=True))
    assert not read().is_same_policy(None)
