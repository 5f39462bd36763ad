"""Opens the recorder of a pool's history in the warehouse that the pool's block names."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from pathlib import Path

from prefect.client.orchestration import PrefectClient

from gpu_flows.analytics.recorder import Recorder
from gpu_flows.blocks import Warehouse
from gpu_flows.config.paths import default_warehouse
from gpu_flows.config.pool_blocks import BadBlock, read_warehouse


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
