"""Lets a worker act for its pool while it holds the lease, and stand by otherwise."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from gpu_flows.common.retry import Backoff, retry
from gpu_flows.dispatch.dispatcher import Dispatcher
from gpu_flows.worker.background_tasks import BackgroundTasks
from gpu_flows.worker.lease import PoolLease

RETRY = Backoff(first_s=2.0)


class Leadership:
    """`take_over` finds what other workers did meanwhile, `begin` is called when the dispatcher has begun to
    act."""

    def __init__(
        self,
        lease: PoolLease,
        dispatcher: Dispatcher,
        take_over: Callable[[], Awaitable[None]],
        begin: Callable[[], Awaitable[None]],
        tasks: BackgroundTasks,
        log: logging.Logger,
    ) -> None:
        self._lease, self._dispatcher, self._log = lease, dispatcher, log
        self._take_over, self._begin, self._tasks = take_over, begin, tasks
        self._leading: asyncio.Task[None] | None = None  # the preparation of the last lease
        self._served = ""  # the token of the last lease for which `take_over` was completed

    async def serve(self) -> None:
        """Wait for the lease, lead until it is lost, and stand by again. Runs until cancelled."""
        while True:
            await self._lease.acquire()
            self._leading = self._tasks.start(self._lead(self._leading))
            try:
                await self._lease.renew_until_lost()
            except asyncio.CancelledError:  # the worker closes
                self._leading.cancel()
                raise
            finally:
                self._dispatcher.active = False
            self._log.warning(
                "The lease on pool %r was not renewed in time; waiting for it again.", self._dispatcher.pool
            )

    async def _lead(self, before: asyncio.Task[None] | None) -> None:
        """Begin to act for the pool, while the lease is renewed. A lease that was in doubt, and was not taken
        by another worker, changes nothing."""
        if before:
            await asyncio.wait([before])  # it is not cancelled: what it adopts halfway would be lost
        lease = self._lease.token
        if lease != self._served:
            await retry(self._take_over, RETRY, lambda _: True, self.log_failed_start)
        if lease != self._lease.token or not self._lease.is_valid():
            return  # lost meanwhile
        self._served = lease
        self._dispatcher.active = True
        self._dispatcher.wake()
        await self._begin()

    def log_failed_start(self, error: Exception) -> None:
        self._log.warning("Cannot serve pool %r yet (%s); trying again.", self._dispatcher.pool, error)
