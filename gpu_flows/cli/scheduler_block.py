"""The GPU Scheduler block of a pool: commands change it, and wait until the pool's worker has applied it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from gpu_flows.cli.errors import CommandError
from gpu_flows.cli.prefect_client import SCHEDULER_BLOCK, PrefectClient
from gpu_flows.common.retry import wait_until
from gpu_flows.worker.status import Status, read_status

TIMEOUT_S = 30.0  # a worker applies a change within a second of its event, or else at its next poll


class SchedulerBlock:
    """The block of this name; without one, the block that the pool uses."""

    def __init__(self, client: PrefectClient, pool: str, name: str = "") -> None:
        self._client, self._pool = client, pool
        self._used = client.find_block_name(pool, "scheduler")
        self.name = name or self._used
        self._document = client.read_block(SCHEDULER_BLOCK, self.name)

    @property
    def content(self) -> dict[str, Any]:
        """What is saved; empty if the block does not exist yet."""
        return dict(self._document["data"]) if self._document else {}

    def save(self, content: dict[str, Any], *changed: str) -> None:
        """Replace the content, in which the options of these policies have changed. The rest of it, valid or
        not, stays as it is."""
        if self._document and all(_has_fields_of(self._document, content, name) for name in changed):
            body = {"data": content, "merge_existing_data": False}
            self._client.patch(f"/block_documents/{self._document['id']}", body)
        else:
            self._save_with_prefect(content)

    def _save_with_prefect(self, content: dict[str, Any]) -> None:
        """Create the block, or update its schema. This takes the seconds that the import of Prefect takes."""
        from gpu_flows.blocks import GpuScheduler

        try:
            GpuScheduler(**content).save(self.name, overwrite=True)
        except Exception as error:
            raise CommandError(f"The block {self.name!r} could not be saved: {error}") from None

    def wait_for_worker(self, is_applied: Callable[[Status], bool]) -> str:
        """Wait until the status of the pool shows what was saved. Return how it went: `in force`, `no
        worker`, `late`, or `other` if the pool uses another block. Raises an error if the policy does not
        work."""
        if self.name != self._used:
            return "other"
        document = self._client.read_block(SCHEDULER_BLOCK, self.name)
        saved = datetime.fromisoformat(document["updated"]) if document else datetime.min.replace(tzinfo=UTC)

        def has_seen(status: Status) -> bool:
            """Before it has seen the save, the pool may have had the same policy, and an error."""
            seen = status.policy.get("saved")
            return seen is not None and datetime.fromisoformat(seen) >= saved and is_applied(status)

        def is_settled() -> bool:
            status = read_status(self._pool)
            return status is None or has_seen(status)

        wait_until(is_settled, TIMEOUT_S)
        status = read_status(self._pool)
        if status is None:
            return "no worker"
        if not has_seen(status):
            return "late"
        if status.policy["error"]:
            raise CommandError(f"Saved, but the policy does not work: {status.policy['error']}")
        return "in force"

    def describe(self, outcome: str, in_force: str) -> str:
        """Say how a save went, with this sentence if it is in force."""
        pool = self._pool
        return {
            "in force": in_force,
            "no worker": f"Saved. No worker serves pool {pool!r} on this machine; the next one will use it.",
            "late": f"Saved. The worker of pool {pool!r} has not applied it within {TIMEOUT_S:g} s;"
            " see `gpu-flows policy show`.",
            "other": f"Saved in block {self.name!r}; pool {pool!r} uses block {self._used!r},"
            " so its policy stays.",
        }[outcome]


def _has_fields_of(document: dict[str, Any], content: dict[str, Any], name: str) -> bool:
    """Whether the schema that the block was saved with has this policy with these options, and shadows."""
    fields = document["block_schema"]["fields"]
    definitions = fields.get("definitions", {})
    known = definitions.get("PolicyOptions", {}).get("properties", {})
    options = definitions.get(name, {}).get("properties", {})
    has_shadows = "shadows" in fields.get("properties", {}) or not content.get("shadows")
    return has_shadows and name in known and content["options"].get(name, {}).keys() <= options.keys()
