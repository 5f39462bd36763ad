"""The lock of a pool's folder: only one live worker uses the folder at a time."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from pathlib import Path

RETRY_S = 1.0


class FolderLock:
    def __init__(self, folder: Path, log: logging.Logger) -> None:
        self._path, self._log = folder / "lock", log
        self._handle: int | None = None

    async def acquire(self) -> None:
        """Wait until the worker that uses the folder has ended. The kernel frees the lock of a dead one."""
        logged = ""
        while (trouble := self._try()) is not None:
            if trouble != logged:
                self._log.info("%s; standing by to take over.", trouble)
                logged = trouble
            await asyncio.sleep(RETRY_S)

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _try(self) -> str | None:
        """Take the lock. Returns what prevents it."""
        if self._handle is not None:
            return None
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            return f"{self._path} cannot be opened ({error.strerror})"
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if isinstance(error, BlockingIOError):
                return f"Another worker uses {self._path.parent}"
            return f"{self._path} cannot be locked ({error.strerror})"
        self._handle = handle
        return None
