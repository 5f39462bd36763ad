"""When a worker does what it does again and again: publish its status, and remove old files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from gpu_flows.dispatch.job_store import JobStore
from gpu_flows.runtimes.attempt_store import AttemptStore

PUBLISH_EVERY_S = 1.0
PAUSE_FACTOR, SHORTEST_PAUSE_S = 10.0, 0.05  # a status of many jobs takes a while to build
TIDY_EVERY_S, ASK_AGAIN_S = 3600.0, 10.0


async def after_changes(changed: asyncio.Event) -> AsyncIterator[None]:
    """Yield after each change and every second, but let the caller use only a tenth of the time.

    A user who sees that a run has ended must find its devices free. So the status is published as soon as
    devices were released; the end of the run is reported a moment later.
    """
    while True:
        await asyncio.wait([waiting := asyncio.ensure_future(changed.wait())], timeout=PUBLISH_EVERY_S)
        waiting.cancel()
        changed.clear()
        began = time.monotonic()
        yield
        took = time.monotonic() - began
        await asyncio.sleep(min(PUBLISH_EVERY_S, max(SHORTEST_PAUSE_S, PAUSE_FACTOR * took)))


async def keep_tidy(job_store: JobStore, attempt_store: AttemptStore, may_act: Callable[[], bool]) -> None:
    """Remove old files from time to time while the worker may act, which it may not right after its start. In
    a thread, because a large directory takes seconds."""
    while True:
        if not may_act():
            await asyncio.sleep(ASK_AGAIN_S)
            continue
        job_store.retire_old()
        await asyncio.to_thread(job_store.remove_retired)
        await asyncio.to_thread(attempt_store.remove_old)
        await asyncio.sleep(TIDY_EVERY_S)
