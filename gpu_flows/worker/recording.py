"""What a pool tells of itself: facts for the warehouse that its block names, and events for Prefect."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import WorkPool

from gpu_flows.analytics.recorder import Recorder
from gpu_flows.blocks import Warehouse
from gpu_flows.config.paths import default_warehouse
from gpu_flows.config.pool_blocks import BadBlock, read_warehouse
from gpu_flows.devices.base import Reading
from gpu_flows.devices.idle_watch import IdleLimit, IdleWatch
from gpu_flows.prefect_api.pool_events import PoolEvents
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job


async def find_warehouse(client: PrefectClient, block: str, log: logging.Logger) -> Warehouse:
    """Return the warehouse block; the default one if the block cannot be used."""
    try:
        return await read_warehouse(client, block)
    except BadBlock as error:
        log.error("Recording to the default warehouse: %s", error)
        return Warehouse()


async def open_recorder(warehouse: Warehouse, spool: Path) -> Recorder:
    database = Path(warehouse.path).expanduser() if warehouse.path else default_warehouse()
    keep = timedelta(days=warehouse.keep_samples_days) if warehouse.keep_samples_days else None
    recorder = Recorder(database, spool, keep_samples=keep)
    await asyncio.to_thread(recorder.drain)  # creates the tables before the pool is served
    recorder.start()
    return recorder


class PoolRecord:
    """Records facts, once it is open, and sends events of those that somebody may want to react to."""

    def __init__(
        self, pool: WorkPool, engine: Engine, find_executing: Callable[[str], Job | None], log: logging.Logger
    ) -> None:
        self._events, self._log = PoolEvents(pool, find_executing), log
        self._idle_watch = IdleWatch(engine)
        self._recorder: Recorder | None = None

    @property
    def is_open(self) -> bool:
        return self._recorder is not None

    async def open(self, warehouse: Warehouse, spool: Path) -> None:
        self._recorder = await open_recorder(warehouse, spool)

    def add(self, *facts: Any) -> None:
        """Record facts. They matter more than their events, and neither disturbs the job that they are of."""
        if self._recorder:
            self._recorder.write(*facts)
        try:
            self._events.add(facts)
        except Exception:
            self._log.exception("Prefect was not told of an event of the pool.")

    def use_limit(self, limit: IdleLimit) -> None:
        """Tell of devices that are idle by this limit in the hands of their jobs, from now on."""
        self._idle_watch.limit = limit

    def add_readings(self, readings: list[Reading]) -> None:
        try:
            self._events.add_use(self._idle_watch.add(time.time(), readings))
        except Exception:
            self._log.exception("Prefect was not told of an event of a device.")

    @property
    def trouble(self) -> str:
        """Why facts do not reach the warehouse."""
        return self._recorder.trouble if self._recorder else ""

    def find_database(self) -> Path | None:
        return self._recorder.database if self._recorder else None

    def flush(self) -> None:
        if self._recorder:
            self._recorder.flush()

    async def close(self) -> None:
        if self._recorder:
            await asyncio.to_thread(self._recorder.close)
