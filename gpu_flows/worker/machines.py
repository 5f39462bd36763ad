"""Which machines are alive: one is dead if no worker in its folder has sent a heartbeat for `DEAD_AFTER_S`.

Prefect's workers send heartbeats, and each worker stores in a Prefect variable which folder it works in. The
time is counted from what this worker has seen itself, so that clocks may differ. Time in which this worker
could not read heartbeats does not count: no heartbeat can reach a server that is away.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import VariableCreate, VariableUpdate
from prefect.exceptions import ObjectAlreadyExists

from gpu_flows.prefect_api.claims import Claim
from gpu_flows.worker.lease import Clock, elapsed

DEAD_AFTER_S = 300.0
UNSEEN_AFTER_S = (
    60.0  # what was not looked at for so long is watched anew; polls are at most half as far apart
)
_READ_EVERY_S = 5.0


class Machines:
    def __init__(
        self, client: PrefectClient, pool: str, place: str, worker: Callable[[], str], clock: Clock = elapsed
    ) -> None:
        self._client, self._pool, self._place, self._worker = client, pool, place, worker
        self._clock = clock
        self._heartbeats: dict[str, datetime | None] = {}  # by worker
        self._read_at = float("-inf")
        self._last: dict[str, tuple[object, float]] = {}  # place -> its last sign of life, and since when

    def now(self) -> float:
        """The seconds on the clock by which machines are judged."""
        return self._clock()

    async def sign(self) -> None:
        """Store that this worker works in its folder now. To be called before it claims anything."""
        name = self._variable(self._place)
        value = {"pool": self._pool, "place": self._place, "worker": self._worker()}
        try:
            await self._client.create_variable(VariableCreate(name=name, value=value))
        except ObjectAlreadyExists:
            await self._client.update_variable(VariableUpdate(name=name, value=value))

    async def is_dead(self, claim: Claim) -> bool:
        """Whether the machine of a claim has given no sign of life for `DEAD_AFTER_S`."""
        signed = await self._client.read_variable_by_name(self._variable(claim.place))
        value = signed.value if signed and isinstance(signed.value, dict) else {}
        worker = str(value.get("worker") or claim.worker)
        await self._read_heartbeats()
        sign_of_life = (worker, self._heartbeats.get(worker))
        if self._last.get(claim.place, ("", 0.0))[0] != sign_of_life:
            self._last[claim.place] = (sign_of_life, self._clock())
        return self._clock() - self._last[claim.place][1] >= DEAD_AFTER_S

    async def _read_heartbeats(self) -> None:
        if self._clock() - self._read_at >= _READ_EVERY_S:
            workers = await self._client.read_workers_for_work_pool(self._pool)
            self._heartbeats = {worker.name: worker.last_heartbeat_time for worker in workers}
            if self._clock() - self._read_at > UNSEEN_AFTER_S:
                self._last.clear()
            self._read_at = self._clock()

    def _variable(self, place: str) -> str:
        key = hashlib.sha256(f"{self._pool}\n{place}".encode()).hexdigest()[:16]
        return f"gpu_flows_machine_{key}"
