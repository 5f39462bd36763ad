"""Reads the three blocks that configure a pool.

Loading a block through its class emits an event each time, so the block documents are read directly. A
missing document stands for the defaults. An invalid document is an error, so that the pool can keep its
present configuration and show the reason.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from prefect.blocks.core import Block
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import BlockDocument, WorkPool
from prefect.exceptions import ObjectNotFound
from pydantic import ValidationError

from gpu_flows.blocks import GpuCluster, GpuScheduler, Warehouse
from gpu_flows.blocks.scheduler import DEFAULT_POLICY
from gpu_flows.common.forms import Form
from gpu_flows.common.suggestions import did_you_mean
from gpu_flows.common.validation import explain
from gpu_flows.schedulers.policy import PolicyError
from gpu_flows.schedulers.policy_choice import read_choice, read_shadows
from gpu_flows.schedulers.prediction.options import PredictionOptions
from gpu_flows.schedulers.protection import Protection

B = TypeVar("B", bound=Block)
F = TypeVar("F", bound=Form)


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
    """The content of a scheduler block, valid or not: the policy, its options, the protection of jobs, what
    is predicted of them, the shadows, and when the block was saved."""

    name: str
    options: dict[str, Any]
    saved: datetime | None = None
    error: str = ""  # why the block names no policy
    protection: Protection | None = field(default_factory=Protection)  # None: invalid
    prediction: PredictionOptions | None = field(default_factory=PredictionOptions)  # None: invalid
    shadows: dict[str, dict[str, Any]] = field(default_factory=dict)  # the options of each, by name
    shadows_error: str = ""  # why the block names none

    def check(self) -> None:
        """Raise PolicyError if the block names no policy."""
        if self.error:
            raise PolicyError(self.error)

    def is_same_policy(self, other: PolicyChoice | None) -> bool:
        """Whether the other choice has the same policy and options."""
        if other is None:
            return False
        return (self.name, self.options, self.error) == (other.name, other.options, other.error)


async def read_policy(client: PrefectClient, block: str) -> PolicyChoice:
    """Return the content of the scheduler block. Its names are checked when the policy is made."""
    document = await _read_document(client, block, GpuScheduler)
    if document is None:
        return PolicyChoice(DEFAULT_POLICY, {})
    others = (
        _read_section(document.data.get("protection"), Protection),
        _read_section(document.data.get("prediction"), PredictionOptions),
        *_read_shadows(document.data, block),
    )
    try:
        name, options = read_choice(document.data)
    except ValueError as error:
        reason = f"GPU Scheduler block {block!r} {error}. Choose a policy in its form, and save it."
        return PolicyChoice("", {}, document.updated, reason, *others)
    return PolicyChoice(name, options, document.updated, "", *others)


def _read_section(saved: Any, kind: type[F]) -> F | None:
    try:
        return kind() if saved is None else kind.model_validate(saved)
    except ValidationError:
        return None


def _read_shadows(saved: dict[str, Any], block: str) -> tuple[dict[str, dict[str, Any]], str]:
    """Return the shadows, or the reason why the block names none."""
    try:
        return read_shadows(saved), ""
    except ValueError as error:
        return {}, f"GPU Scheduler block {block!r} {error}. Choose them in its form, and save it."


async def read_cluster(client: PrefectClient, block: str) -> GpuCluster:
    return await _read(client, block, GpuCluster)


async def read_warehouse(client: PrefectClient, block: str) -> Warehouse:
    return await _read(client, block, Warehouse)


async def _read(client: PrefectClient, block: str, kind: type[B]) -> B:
    document = await _read_document(client, block, kind)
    content, slug = _content(document), kind.get_block_type_slug()
    for name in content.keys() - kind.model_fields.keys():
        hint = did_you_mean(name, kind.model_fields)
        raise BadBlock(f"{slug} block {block!r} is invalid: there is no field {name!r}. {hint}".rstrip())
    try:
        return kind(**content)
    except ValidationError as error:
        raise BadBlock(f"{slug} block {block!r} is invalid ({explain(error)}).") from None


async def renew_form(client: PrefectClient, block: str, kind: type[Block]) -> bool:
    """Save a block again that an older version saved, because the UI shows its form as that version made it.
    Returns whether it did; a block with content that this version does not accept stays as it is."""
    document = await _read_document(client, block, kind)
    if document is None or document.block_schema is None:
        return False
    if document.block_schema.checksum == kind._calculate_schema_checksum():
        return False
    with contextlib.suppress(ValidationError):
        await kind(**_content(document)).save(block, overwrite=True, client=client)
        return True
    return False


def _content(document: BlockDocument | None) -> dict[str, Any]:
    data = document.data if document else {}
    return {key: value for key, value in data.items() if key != "block_type_slug"}


async def _read_document(client: PrefectClient, block: str, kind: type[Block]) -> BlockDocument | None:
    try:
        return await client.read_block_document_by_name(block, kind.get_block_type_slug())
    except ObjectNotFound:
        return None
