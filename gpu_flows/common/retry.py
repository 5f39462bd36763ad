"""Retrying with back-off, and waiting for a condition: one implementation for all packages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
IsTemporary = Callable[[Exception], bool]
OnRetry = Callable[[Exception], None]


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to pause between attempts. `attempts` counts the calls; 0 means no limit."""

    first_s: float = 1.0
    factor: float = 1.0
    most_s: float = 60.0
    attempts: int = 0

    def pauses(self) -> Iterator[float]:
        """The pause after each failed attempt but the last."""
        endless = self._endless()
        return islice(endless, self.attempts - 1) if self.attempts else endless

    def _endless(self) -> Iterator[float]:
        pause = self.first_s
        while True:
            yield min(pause, self.most_s)
            pause = min(pause * self.factor, self.most_s)


async def retry(
    call: Callable[[], Awaitable[T]],
    backoff: Backoff,
    is_temporary: IsTemporary,
    on_retry: OnRetry = lambda error: None,
) -> T:
    """Call until it succeeds. An error that is not temporary, or the last one, is raised."""
    for pause in backoff.pauses():
        try:
            return await call()
        except Exception as error:
            if not is_temporary(error):
                raise
            on_retry(error)
        await asyncio.sleep(pause)
    return await call()


def retry_blocking(
    call: Callable[[], T],
    backoff: Backoff,
    is_temporary: IsTemporary,
    on_retry: OnRetry = lambda error: None,
) -> T:
    """The same for a call that blocks its thread."""
    for pause in backoff.pauses():
        try:
            return call()
        except Exception as error:
            if not is_temporary(error):
                raise
            on_retry(error)
        time.sleep(pause)
    return call()


def wait_until(condition: Callable[[], bool], timeout_s: float, every_s: float = 0.1) -> bool:
    """Block until the condition holds. False if it did not within the time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(every_s)
    return True
