"""A benchmark changes the choice of the policy and nothing else, and restores what was there."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from fake_prefect import FakePrefect
from prefect.client.schemas.actions import BlockDocumentUpdate

from gpu_flows.common.clock import utc_now
from gpu_flows.config.temporary_policies import BlockEdited, TemporaryPolicies

FORMER: dict[str, Any] = {
    "policy": "fifo",
    "options": {"fifo": {"skip": True}, "round_robin": {"wait_for_turn": True}, "from_a_plugin": {"x": 1}},
    "protection": {"min_run_seconds": 7},
}


class PrefectWithBlock(FakePrefect):
    """A server that has one block."""

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__()
        self.block = SimpleNamespace(id=uuid4(), data=data, updated=utc_now(), block_schema=None)

    def save(self, data: dict[str, Any]) -> None:
        self.block.data, self.block.updated = data, self.block.updated + timedelta(seconds=1)

    async def read_block_document_by_name(self, name: str, slug: str) -> SimpleNamespace:
        return SimpleNamespace(**vars(self.block))

    async def update_block_document(self, block_id: UUID, update: BlockDocumentUpdate) -> None:
        assert block_id == self.block.id
        assert update.data is not None
        assert not update.merge_existing_data
        self.save(update.data)

    async def delete_variable_by_name(self, name: str) -> None:
        del self.variables[name]


@pytest.fixture
def server() -> PrefectWithBlock:
    return PrefectWithBlock(FORMER)


async def begin(server: PrefectWithBlock) -> TemporaryPolicies:
    policies = TemporaryPolicies(server.client, "pool", "default")
    await policies.begin(str(uuid4()), "lively-owl")
    return policies


def test_the_options_kept_for_other_policies_and_the_protection_stay(server: PrefectWithBlock) -> None:
    async def benchmark() -> None:
        policies = await begin(server)
        await policies.put_in_force("round_robin")
        expected = {**FORMER["options"], "round_robin": {}}  # measured with its defaults
        assert server.block.data == {**FORMER, "policy": "round_robin", "options": expected}
        await policies.put_in_force("sjf")
        assert server.block.data == {**FORMER, "policy": "sjf", "options": {**FORMER["options"], "sjf": {}}}
        assert await policies.restore()

    asyncio.run(benchmark())
    assert server.block.data == FORMER


def test_a_block_of_an_older_version_is_restored_as_it_was() -> None:
    older = {"policy": {"name": "fifo", "skip": True}, "protection": {}}
    server = PrefectWithBlock(older)

    async def benchmark() -> None:
        policies = await begin(server)
        await policies.put_in_force("sjf")
        options = {"fifo": {"skip": True}, "sjf": {}}
        assert server.block.data == {"policy": "sjf", "options": options, "protection": {}}
        assert await policies.restore()

    asyncio.run(benchmark())
    assert server.block.data == older


def test_an_edit_by_someone_else_stays(server: PrefectWithBlock) -> None:
    edited = {**FORMER, "policy": "srtf"}

    async def benchmark() -> None:
        policies = await begin(server)
        await policies.put_in_force("sjf")
        server.save(edited)
        with pytest.raises(BlockEdited):
            await policies.put_in_force("round_robin")
        assert not await policies.restore()

    asyncio.run(benchmark())
    assert server.block.data == edited
