"""Reads the three blocks that configure a pool.

Loading a block through its class emits an event each time, so the block documents are read directly. A
missing document stands for the defaults. An invalid document is an error, so that the pool can keep its
present configuration and show the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar

from prefect.blocks.core import Block
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import BlockDocument, WorkPool
from prefect.exceptions import ObjectNotFound
from pydantic import ValidationError

from gpu_flows.blocks import GpuCluster, GpuScheduler, Warehouse
from gpu_flows.blocks.scheduler import DEFAULT_POLICY
from gpu_flows.common.validation import explain
from gpu_flows.schedulers.policy import Policy, PolicyError, make_policy
from gpu_flows.schedulers.protection import Protection

B = TypeVar("B", bound=Block)


class BadBlock(ValueError):
    """A block is invalid; the message states why."""


@dataclass(frozen=True, slots=True)
class BlockNames:
    """The names of the blocks that a pool uses: the defaults of three fields of its base job template."""

    scheduler: str = "default"
    cluster: str = "default"
    warehouse: str = "default"

    @classmethod
    def of(cls, pool: WorkPool) -> BlockNames:
        fields = pool.base_job_template.get("variables", {}).get("properties", {})
        chosen = {name: fields.get(name, {}).get("default") for name in cls.__slots__}
        return cls(**{name: value for name, value in chosen.items() if value})


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """The content of a scheduler block, valid or not: the policy, its options, the protection of jobs, and
    when the block was saved."""

    name: str
    options: dict[str, Any]
    saved: datetime | None = None
    error: str = ""  # why the block names no policy
    protection: Protection | None = field(default_factory=Protection)  # None: invalid

    def make(self) -> Policy:
        if self.error:
            raise PolicyError(self.error)
        return make_policy(self.name, self.options)

    def is_same_policy(self, other: PolicyChoice | None) -> bool:
        """Whether the other choice has the same policy and options."""
        return other is not None and replace(self, saved=other.saved, protection=other.protection) == other


async def read_policy(client: PrefectClient, block: str) -> PolicyChoice:
    """Return the content of the scheduler block. Its names are checked when the policy is made."""
    document = await _read_document(client, block, GpuScheduler)
    if document is None:
        return PolicyChoice(DEFAULT_POLICY, {})
    chosen = document.data.get("policy")
    protection = _read_protection(document.data.get("protection"))
    if not isinstance(chosen, dict) or not isinstance(chosen.get("name"), str):
        error = f"GPU Scheduler block {block!r} names no policy."
        return PolicyChoice("", {}, document.updated, error, protection)
    options = {key: value for key, value in chosen.items() if key != "name"}
    return PolicyChoice(chosen["name"], options, document.updated, "", protection)


def _read_protection(saved: Any) -> Protection | None:
    try:
        return Protection() if saved is None else Protection.model_validate(saved)
    except ValidationError:
        return None


async def read_cluster(client: PrefectClient, block: str) -> GpuCluster:
    return await _read(client, block, GpuCluster)


async def read_warehouse(client: PrefectClient, block: str) -> Warehouse:
    return await _read(client, block, Warehouse)


async def _read(client: PrefectClient, block: str, kind: type[B]) -> B:
    document = await _read_document(client, block, kind)
    data = document.data if document else {}
    try:
        return kind(**{key: value for key, value in data.items() if key != "block_type_slug"})
    except ValidationError as error:
        slug = kind.get_block_type_slug()
        raise BadBlock(f"{slug} block {block!r} is invalid ({explain(error)}).") from None


async def _read_document(client: PrefectClient, block: str, kind: type[Block]) -> BlockDocument | None:
    try:
        return await client.read_block_document_by_name(block, kind.get_block_type_slug())
    except ObjectNotFound:
        return None
