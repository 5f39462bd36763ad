"""Tasks that run beside the caller until they end or the worker closes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

RESTART_AFTER_S = 2.0


class BackgroundTasks:
    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start work that ends by itself. If it fails, this is logged."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finish)
        return task

    def keep(self, what: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start work that never ends by itself. If it fails, this is logged and the work is started again."""
        self.start(self._keep(what, work))

    async def _keep(self, what: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                await work()
                self._log.error("%s ended unexpectedly; starting it again.", what)
            except Exception:
                self._log.exception("%s failed; starting it again.", what)
            await asyncio.sleep(RESTART_AFTER_S)

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception():
            self._log.error("A background task of the worker failed", exc_info=task.exception())

    async def close(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
