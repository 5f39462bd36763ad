"""What-if questions that a user asks: each is answered in a process of its own, and can be cancelled."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from gpu_flows.dashboard.questions import QuestionError, ask_process

AT_ONCE = 1  # the others wait: a replay takes a whole processor
MOST_KEPT = 30
TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Question:
    """Under which policies, with how many more or fewer devices, and over which jobs: of now or a period."""

    policies: tuple[str, ...]
    gpus: int
    over: str


@dataclass(slots=True)
class Replay:
    """How far the answer to a question is."""

    state: str = "running"  # done, failed or cancelled
    progress: str = "waits for another one"
    result: Any = None
    error: str = ""
    began: float = field(default_factory=time.time)
    took_s: float = 0.0
    task: asyncio.Task[None] | None = None


class Replays:
    """The questions that were asked last, and their answers."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._kept: OrderedDict[Question, Replay] = OrderedDict()
        self.revision = 0  # grows with each change

    def find(self, question: Question) -> Replay | None:
        return self._kept.get(question)

    def start(self, question: Question, request: dict[str, Any]) -> None:
        """Begin to answer, unless that has begun. An answer that is there is replaced."""
        known = self._kept.pop(question, None)
        if known is None or known.state != "running":
            known = Replay()
            known.task = asyncio.create_task(self._answer(known, request))
        self._kept[question] = known
        self._forget()
        self.revision += 1

    def cancel(self, question: Question) -> None:
        replay = self._kept.get(question)
        if replay and replay.task:
            replay.task.cancel()

    async def _answer(self, replay: Replay, request: dict[str, Any]) -> None:
        def note(text: str) -> None:
            replay.progress = text
            self.revision += 1

        try:
            async with self._slots:
                note("begins")
                replay.result = await ask_process(request, TIMEOUT_S, note)
            replay.state = "done"
        except QuestionError as error:
            replay.state, replay.error = "failed", str(error)
        except Exception as error:
            replay.state, replay.error = "failed", f"It failed: {type(error).__name__}: {error}"
        except asyncio.CancelledError:
            replay.state = "cancelled"
        finally:
            replay.took_s, replay.task = time.time() - replay.began, None
            self.revision += 1

    def _forget(self) -> None:
        for question in [question for question, replay in self._kept.items() if replay.state != "running"]:
            if len(self._kept) <= MOST_KEPT:
                return
            del self._kept[question]

    async def close(self) -> None:
        tasks = [replay.task for replay in self._kept.values() if replay.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
