"""A real worker whose lease is five times as quick: `python quick_lease_worker.py POOL NAME`."""

from __future__ import annotations

import asyncio
import sys

from gpu_flows.worker import lease, machines, other_runs
from gpu_flows.worker.gpu_worker import GpuWorker

lease.VALID_S, lease.TAKEOVER_S, lease.RENEW_S, lease.WATCH_S = 9.0, 12.0, 2.0, 1.0
machines.DEAD_AFTER_S = other_runs.DEAD_AFTER_S = 30.0


async def main(pool: str, name: str) -> None:
    await GpuWorker(work_pool_name=pool, name=name, heartbeat_interval_seconds=5).start()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
