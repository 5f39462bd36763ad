"""The policies that a benchmark puts in force for a while, and the restoration of the former one.

While the benchmark runs, a Prefect variable holds the former content of the scheduler block, so that it can
be restored even if the benchmark is killed. An edit of the block by anyone else stays: the benchmark neither
replaces it nor restores the former content.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import BlockDocumentUpdate, VariableCreate, VariableUpdate
from prefect.client.schemas.objects import BlockDocument
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

from gpu_flows.blocks import GpuScheduler
from gpu_flows.blocks.scheduler import DEFAULT_POLICY
from gpu_flows.config.benchmark_record import BenchmarkRecord, parse_record, variable_name
from gpu_flows.config.pool_blocks import read_policy
from gpu_flows.schedulers.policy_choice import write_choice


class BlockEdited(Exception):
    """Someone else has saved the scheduler block since the benchmark did."""


class AlreadyRunning(Exception):
    """Another benchmark runs in the pool."""


class TemporaryPolicies:
    def __init__(self, client: PrefectClient, pool: str, block: str) -> None:
        self._client, self._variable, self._block = client, variable_name(pool), block
        self._record: BenchmarkRecord | None = None

    async def begin(self, run_id: str, run_name: str) -> None:
        """Store the content of the block. What a killed benchmark left in it is restored first."""
        await self.restore_abandoned()
        if other := await self._read_record():
            raise AlreadyRunning(f"Benchmark {other.run_name!r} runs in this pool. Wait until it has ended.")
        document, former = await self._read_document(), await read_policy(self._client, self._block)
        data = dict(document.data) if document else None
        await self._write(BenchmarkRecord(run_id, run_name, former.name, data, _format(former.saved)))

    async def put_in_force(self, policy: str) -> None:
        """Save the policy with its default options in the block. The options that the block keeps for other
        policies stay, and so does the protection of jobs."""
        record = await self.check()
        await self._write(replace(record, policy=policy))
        await self._save(write_choice(record.block or {}, policy, {}))
        saved = await read_policy(self._client, self._block)
        if saved.name != policy:
            raise BlockEdited
        await self._write(replace(record, policy=policy, saved=_format(saved.saved)))

    async def check(self) -> BenchmarkRecord:
        """Raise BlockEdited if someone else has saved the block."""
        assert self._record is not None, "begin() comes first"
        if not _is_unchanged(self._record, await self._read_document()):
            raise BlockEdited
        return self._record

    async def restore(self) -> bool:
        """Restore the former content, unless someone else has edited the block. Returns whether it did."""
        return self._record is not None and await self._restore(self._record)

    async def restore_abandoned(self) -> str:
        """Restore the policy that a benchmark replaced which ended without restoring it. Returns its name."""
        left = await self._read_record()
        if left is None or await self._is_running(left.run_id):
            return ""
        return left.former if await self._restore(left) else ""

    # -- the block ----------------------------------------------------------------------------

    async def _restore(self, record: BenchmarkRecord) -> bool:
        document = await self._read_document()
        unchanged = _is_unchanged(record, document)
        if document and unchanged and record.policy:
            await self._save(record.block if record.block is not None else {"policy": DEFAULT_POLICY})
        await self._client.delete_variable_by_name(self._variable)
        return unchanged

    async def _save(self, content: dict[str, Any]) -> None:
        """Save this content as it is. What someone else has put into it need not be valid."""
        if document := await self._read_document():
            update = BlockDocumentUpdate(data=content, merge_existing_data=False)
            await self._client.update_block_document(document.id, update)
        else:
            await GpuScheduler(**content).save(self._block, overwrite=True, client=self._client)

    async def _read_document(self) -> BlockDocument | None:
        try:
            return await self._client.read_block_document_by_name(self._block, "gpu-scheduler")
        except ObjectNotFound:
            return None

    # -- the variable -------------------------------------------------------------------------

    async def _read_record(self) -> BenchmarkRecord | None:
        variable = await self._client.read_variable_by_name(self._variable)
        return parse_record(variable.value) if variable else None

    async def _write(self, record: BenchmarkRecord) -> None:
        self._record = record
        try:
            await self._client.create_variable(VariableCreate(name=self._variable, value=asdict(record)))
        except ObjectAlreadyExists:
            await self._client.update_variable(VariableUpdate(name=self._variable, value=asdict(record)))

    async def _is_running(self, run_id: str) -> bool:
        try:
            run = await self._client.read_flow_run(UUID(run_id))
        except (ObjectNotFound, ValueError):
            return False
        return not (run.state and run.state.is_final())


def _is_unchanged(record: BenchmarkRecord, document: BlockDocument | None) -> bool:
    return record.saved == _format(document.updated if document else None)


def _format(time: datetime | None) -> str:
    return time.isoformat() if time else ""
