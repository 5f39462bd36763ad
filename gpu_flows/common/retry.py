"""Retries a call with back-off, and waits for a condition."""

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


def _ignore(error: Exception) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pauses between attempts. `attempts` limits the number of calls; 0 means no limit."""

    first_s: float = 1.0
    factor: float = 1.0
    most_s: float = 60.0
    attempts: int = 0

    def pauses(self) -> Iterator[float]:
        """Yield the pause after each failed attempt except the last."""
        endless = self._endless()
        return islice(endless, self.attempts - 1) if self.attempts else endless

    def _endless(self) -> Iterator[float]:
        pause = self.first_s
        while True:
            yield min(pause, self.most_s)
            pause = min(pause * self.factor, self.most_s)


async def retry(
    call: Callable[[], Awaitable[T]], backoff: Backoff, is_temporary: IsTemporary, on_retry: OnRetry = _ignore
) -> T:
    """Call until the call succeeds. Raises an error that is not temporary, and the error of the last
    attempt."""
    for pause in backoff.pauses():
        with _Suppress(is_temporary, on_retry):
            return await call()
        await asyncio.sleep(pause)
    return await call()


def retry_blocking(
    call: Callable[[], T], backoff: Backoff, is_temporary: IsTemporary, on_retry: OnRetry = _ignore
) -> T:
    """Do the same for a call that blocks its thread."""
    for pause in backoff.pauses():
        with _Suppress(is_temporary, on_retry):
            return call()
        time.sleep(pause)
    return call()


@dataclass(frozen=True, slots=True)
class _Suppress:
    """Suppresses temporary errors and passes them to `on_retry`."""

    is_temporary: IsTemporary
    on_retry: OnRetry

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if not isinstance(error, Exception) or not self.is_temporary(error):
            return False
        self.on_retry(error)
        return True


def wait_until(condition: Callable[[], T], timeout_s: float, every_s: float = 0.1) -> T:
    """Block until the condition returns a true value, and return that value. If the time runs out, return the
    last, false value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(every_s)
    return value
