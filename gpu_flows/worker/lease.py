"""One worker acts for a pool at a time; others stand by and take over.

The right to act is a Prefect concurrency slot with a lease. A worker that dies lets the lease run
out after a minute. Restarted on the same machine it goes on with its old lease at once, because
the lease's id lies in the pool's folder under a file lock that only a live worker holds.
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

LEASE_S = 60.0  # the shortest that Prefect grants
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
        """Returns once this worker may act for the pool, however long that takes."""
        told = False
        while not (self._lock_folder() and await self._take_slot()):
            if not told:
                self._log.info("Another worker acts for pool %r; standing by to take over.", self._pool)
                told = True
            await asyncio.sleep(RENEW_S / 3)
        if told:
            self._log.info("Taking over pool %r.", self._pool)

    async def keep(self) -> None:
        """Renew the lease for as long as that works. Returns when the right to act is gone or in
        doubt: forgotten by the server, taken by another, or not renewed for as long as it lasts."""
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

    # -- inside -------------------------------------------------------------------------------

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

    async def _take_slot(self) -> bool:
        try:
            if not await self._resume():
                await self._ensure_slot_exists()
                answer = await self._client.increment_concurrency_slots_with_lease(
                    names=[self._slot], slots=1, mode="concurrency", lease_duration=LEASE_S
                )
                self._lease = UUID(str(answer.json()["lease_id"]))
                self._file.write_text(str(self._lease))
            await self._sign()
        except httpx.HTTPStatusError as error:
            if error.response.status_code == 423:
                await self._free_if_nobodys()
            return False
        except (httpx.HTTPError, PrefectException):
            return False
        return True

    async def _resume(self) -> bool:
        """Go on with the lease of a worker that died here; the lock says that it did."""
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
        """False if the server does not know the lease: it ran out, or the server was restarted."""
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

    # A server that is restarted forgets leases but goes on counting their slots as taken. Such a
    # slot may be freed by the worker it belonged to, or by anybody once that worker is gone. To
    # whom it belongs stands in a Prefect variable, which each new leader signs.

    async def _sign(self) -> None:
        signature = {"place": self._place, "worker": self._worker}
        try:
            await self._client.create_variable(VariableCreate(name=self._variable, value=signature))
        except ObjectAlreadyExists:
            await self._client.update_variable(VariableUpdate(name=self._variable, value=signature))

    async def _free_if_nobodys(self) -> None:
        try:
            if await self._is_nobodys():
                self._log.warning("The right to act for pool %r belongs to nobody; freeing it.", self._pool)
                await self._client.update_global_concurrency_limit(
                    self._slot, GlobalConcurrencyLimitUpdate(active_slots=0)
                )
        except (httpx.HTTPError, PrefectException):
            pass

    async def _is_nobodys(self) -> bool:
        """Whether the last leader ran in this folder, whose lock we hold, or has not been heard of for
        as long as two leases."""
        variable = await self._client.read_variable_by_name(self._variable)
        signed = variable.value if variable and isinstance(variable.value, dict) else {}
        if signed.get("place") == self._place:
            return True
        recent = utc_now() - ORPHANED_AFTER
        workers = await self._client.read_workers_for_work_pool(self._pool)
        alive = [w.name for w in workers if w.last_heartbeat_time and w.last_heartbeat_time > recent]
        return str(signed.get("worker", "")) not in alive
