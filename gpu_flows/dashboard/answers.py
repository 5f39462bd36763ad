"""Answers that take a while: computed once for all who ask, a few at a time, and kept."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any

MOST_KEPT = 300
MOST_PENDING = 60  # more than the figures of a page, and a few who look at it
BUSY = "Too much is asked at the same time. Try again soon."


@dataclass(slots=True)
class Answer:
    """What is known of a question: nothing yet, an answer, or an error; and whether it is being computed."""

    value: Any = None
    error: str = ""
    at: float = 0.0  # when it was found, on the monotonic clock; 0: not yet
    task: asyncio.Task[None] | None = None

    @property
    def is_known(self) -> bool:
        return self.at > 0

    @property
    def is_pending(self) -> bool:
        return self.task is not None


class Answers:
    """Keeps the answers to questions, each under a key. `errors` are those whose message is the answer."""

    def __init__(self, at_once: int, errors: tuple[type[Exception], ...]) -> None:
        self._slots = asyncio.Semaphore(at_once)
        self._errors = errors
        self._kept: OrderedDict[Hashable, Answer] = OrderedDict()
        self.revision = 0  # grows with each answer that is found

    def ask(self, key: Hashable, compute: Callable[[], Awaitable[Any]], keep_s: float) -> Answer:
        """Return what is known now. What is unknown, or older than `keep_s`, begins to be computed, unless
        too much is being computed already."""
        if key not in self._kept and self._count_pending() >= MOST_PENDING:
            return Answer(error=BUSY, at=time.monotonic())
        answer = self._kept.setdefault(key, Answer())
        self._kept.move_to_end(key)
        is_old = not answer.is_known or time.monotonic() - answer.at > keep_s
        if is_old and answer.task is None:
            answer.task = asyncio.create_task(self._find(answer, compute))
        self._forget()
        return answer

    async def wait(self, key: Hashable, compute: Callable[[], Awaitable[Any]], keep_s: float) -> Answer:
        """Return the answer, and wait for it if it is unknown. An old one is returned while it is renewed."""
        answer = self.ask(key, compute, keep_s)
        if not answer.is_known and answer.task:
            await asyncio.shield(answer.task)  # the client may go away, others may wait
        return answer

    async def _find(self, answer: Answer, compute: Callable[[], Awaitable[Any]]) -> None:
        value, why_not = None, "It was stopped."
        try:
            async with self._slots:
                value, why_not = await compute(), ""
        except self._errors as error:
            why_not = str(error)
        except Exception as error:  # a page says so, and the others go on
            why_not = f"It failed: {type(error).__name__}: {error}"
        finally:
            answer.value, answer.error = value, why_not
            answer.at, answer.task = time.monotonic(), None
            self.revision += 1

    def _count_pending(self) -> int:
        return sum(answer.is_pending for answer in self._kept.values())

    def _forget(self) -> None:
        """Forget the answers that nobody has asked for longest."""
        for key in [key for key, answer in self._kept.items() if not answer.is_pending]:
            if len(self._kept) <= MOST_KEPT:
                return
            del self._kept[key]

    async def close(self) -> None:
        tasks = [answer.task for answer in self._kept.values() if answer.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
