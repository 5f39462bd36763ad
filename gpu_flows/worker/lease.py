"""The lease on a pool: one worker acts for the pool at a time; others stand by and take over.

The lease is that of a Prefect concurrency slot. When a worker dies, its lease expires after a minute. A
worker that is restarted on the same machine continues with the old lease right away: the lease's id is
stored in the pool's folder, and a file lock that only a live worker holds shows that the old worker is
dead.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import re
import socket
import time
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import (
    GlobalConcurrencyLimitCreate,
    GlobalConcurrencyLimitUpdate,
    VariableCreate,
    VariableUpdate,
)
from prefect.exceptions import ObjectAlreadyExists, PrefectException

from gpu_flows.common.clock import utc_now

LEASE_S = 60.0  # the shortest lease that Prefect grants
RENEW_S = 15.0
ORPHANED_AFTER = timedelta(seconds=2 * LEASE_S)


class PoolLease:
    def __init__(
        self, client: PrefectClient, pool: str, worker: str, folder: Path, log: logging.Logger
    ) -> None:
        self._client, self._pool, self._worker, self._log = client, pool, worker, log
        self._slot = f"gpu-flows-worker-{pool}"
        self._variable = "gpu_flows_leader_" + re.sub(r"[^a-z0-9_]", "_", pool.lower())
        self._place = f"{socket.gethostname()}:{folder.resolve()}"
        self._file = folder / "lease"
        self._lock_file = folder / "lock"
        self._lock: int | None = None
        self._lease: UUID | None = None

    async def acquire(self) -> None:
        """Wait until this worker may act for the pool."""
        logged = False
        while not (self._lock_folder() and await self._acquire_slot()):
            if not logged:
                self._log.info("Another worker acts for pool %r; standing by to take over.", self._pool)
                logged = True
            await asyncio.sleep(RENEW_S / 3)
        if logged:
            self._log.info("Taking over pool %r.", self._pool)

    async def renew_until_lost(self) -> None:
        """Renew the lease regularly. Returns when the lease is lost or may be lost: the server does not know
        it, another worker has it, or it was not renewed in time."""
        renewed = time.monotonic()
        while time.monotonic() - renewed < LEASE_S:
            await asyncio.sleep(RENEW_S)
            try:
                if self._lease is None or not await self._renew(self._lease):
                    return
                renewed = time.monotonic()
            except httpx.HTTPError:
                continue

    async def release(self) -> None:
        if self._lease is not None:
            try:
                await self._client.release_concurrency_slots_with_lease(self._lease)
            except httpx.HTTPError:
                pass
            self._file.unlink(missing_ok=True)
            self._lease = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # -- the slot -----------------------------------------------------------------------------

    def _lock_folder(self) -> bool:
        if self._lock is None:
            handle = os.open(self._lock_file, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(handle)
                return False
            self._lock = handle
        return True

    async def _acquire_slot(self) -> bool:
        try:
            if not await self._resume():
                await self._ensure_slot_exists()
                answer = await self._client.increment_concurrency_slots_with_lease(
                    names=[self._slot], slots=1, mode="concurrency", lease_duration=LEASE_S
                )
                self._lease = UUID(str(answer.json()["lease_id"]))
                self._file.write_text(str(self._lease))
            await self._store_holder()
        except httpx.HTTPStatusError as error:
            if error.response.status_code == 423:
                await self._free_orphaned_slot()
            return False
        except (httpx.HTTPError, PrefectException):
            return False
        return True

    async def _resume(self) -> bool:
        """Continue with the lease of a worker that died in this folder. The lock shows that it is dead."""
        try:
            lease = UUID(self._file.read_text())
        except (OSError, ValueError):
            return False
        if not await self._renew(lease):
            self._file.unlink(missing_ok=True)
            return False
        self._lease = lease
        return True

    async def _renew(self, lease: UUID) -> bool:
        """Returns False if the server does not know the lease: it expired, or the server was restarted."""
        try:
            await self._client.renew_concurrency_lease(lease, LEASE_S)
        except httpx.HTTPStatusError as error:
            if error.response.status_code >= 500:
                raise
            return False
        return True

    async def _ensure_slot_exists(self) -> None:
        try:
            await self._client.create_global_concurrency_limit(
                GlobalConcurrencyLimitCreate(name=self._slot, limit=1)
            )
        except ObjectAlreadyExists:
            pass

    # -- orphaned slots -----------------------------------------------------------------------
    # A restarted server forgets leases but still counts their slots as taken. The worker that had the slot
    # may free it, and so may any worker once that worker is dead. Each new holder stores its name in a
    # Prefect variable.

    async def _store_holder(self) -> None:
        holder = {"place": self._place, "worker": self._worker}
        try:
            await self._client.create_variable(VariableCreate(name=self._variable, value=holder))
        except ObjectAlreadyExists:
            await self._client.update_variable(VariableUpdate(name=self._variable, value=holder))

    async def _free_orphaned_slot(self) -> None:
        try:
            if await self._is_orphaned():
                self._log.warning("The worker with the lease on pool %r is dead; freeing it.", self._pool)
                await self._client.update_global_concurrency_limit(
                    self._slot, GlobalConcurrencyLimitUpdate(active_slots=0)
                )
        except (httpx.HTTPError, PrefectException):
            pass

    async def _is_orphaned(self) -> bool:
        """Whether the last holder is dead: it ran in this folder, whose lock this worker has, or it has
        sent no heartbeat for the time of two leases."""
        variable = await self._client.read_variable_by_name(self._variable)
        holder = variable.value if variable and isinstance(variable.value, dict) else {}
        if holder.get("place") == self._place:
            return True
        recent = utc_now() - ORPHANED_AFTER
        workers = await self._client.read_workers_for_work_pool(self._pool)
        alive = [w.name for w in workers if w.last_heartbeat_time and w.last_heartbeat_time > recent]
        return str(holder.get("worker", "")) not in alive
