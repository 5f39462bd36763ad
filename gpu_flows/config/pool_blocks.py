"""The three blocks that configure a pool, read without ceremony and followed while jobs run.

Loading a block through its class emits an event each time, so the documents are read directly.
A document that makes no sense is told from one that is missing: the first keeps what was there
before and says why, the second means the defaults.
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
    """A block holds something unusable; the message says what."""


@dataclass(frozen=True, slots=True)
class BlockNames:
    """Which blocks a pool uses: the defaults of three fields of its form."""

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
    """What a scheduler block names as policy and options, right or wrong, and when it was saved; beside
    them, how it protects jobs."""

    name: str
    options: dict[str, Any]
    saved: datetime | None = None
    error: str = ""  # why the block names no policy at all
    protection: Protection | None = field(default_factory=Protection)  # None: it makes no sense

    def make(self) -> Policy:
        if self.error:
            raise PolicyError(self.error)
        return make_policy(self.name, self.options)

    def says_the_same_as(self, other: PolicyChoice | None) -> bool:
        """About the policy."""
        return other is not None and replace(self, saved=other.saved, protection=other.protection) == other


async def read_policy(client: PrefectClient, block: str) -> PolicyChoice:
    """What the scheduler block says. The names are checked when the policy is made, not here."""
    document = await _document(client, block, GpuScheduler)
    if document is None:
        return PolicyChoice(DEFAULT_POLICY, {})
    chosen = document.data.get("policy")
    protection = _protection(document.data.get("protection"))
    if not isinstance(chosen, dict) or not isinstance(chosen.get("name"), str):
        error = f"GPU Scheduler block {block!r} names no policy."
        return PolicyChoice("", {}, document.updated, error, protection)
    options = {key: value for key, value in chosen.items() if key != "name"}
    return PolicyChoice(chosen["name"], options, document.updated, "", protection)


def _protection(said: Any) -> Protection | None:
    try:
        return Protection() if said is None else Protection.model_validate(said)
    except ValidationError:
        return None


async def read_cluster(client: PrefectClient, block: str) -> GpuCluster:
    return await _read(client, block, GpuCluster)


async def read_warehouse(client: PrefectClient, block: str) -> Warehouse:
    return await _read(client, block, Warehouse)


async def _read(client: PrefectClient, block: str, kind: type[B]) -> B:
    document = await _document(client, block, kind)
    data = document.data if document else {}
    try:
        return kind(**{key: value for key, value in data.items() if key != "block_type_slug"})
    except ValidationError as error:
        slug = kind.get_block_type_slug()
        raise BadBlock(f"{slug} block {block!r} is not usable ({explain(error)}).") from None


async def _document(client: PrefectClient, block: str, kind: type[Block]) -> BlockDocument | None:
    try:
        return await client.read_block_document_by_name(block, kind.get_block_type_slug())
    except ObjectNotFound:
        return None
