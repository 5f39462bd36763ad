"""Traces of training steps in the background: one at a time, in a process of its own, kept on disk.

A trace takes seconds, so `find` never waits for one: it returns what is known and otherwise queues the trace.
The key of a result is the step with its options and the GPU, without options that never change memory.
Results are traced anew after a day, because the code of a step may change; failures after ten minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gpu_flows.common.files import write_atomically
from gpu_flows.prediction.trace_process import TIME_LIMIT_S
from gpu_flows.schedulers.prediction.estimate import Estimate
from gpu_flows.schedulers.prediction.run_parameters import may_change_step

KEEP_S = 24 * 3600.0
KEEP_FAILURE_S = 600.0
MOST_WAITING = 100  # traces; jobs beyond that get no trace


class Tracer(Protocol):
    def __call__(
        self,
        step: str,
        options: Mapping[str, Any],
        gpu: str,
        memory_mib: int,
        time_limit_s: float,
        stop: threading.Event,
    ) -> Estimate:
        """Trace a step in a child process. Blocks until then, or until `stop` is set; raises any error for a
        step that cannot be traced."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """A training step to trace: an importable callable, the options it gets, and a GPU."""

    name: str  # module:function
    options: Mapping[str, Any] = field(hash=False)
    gpu: str = ""
    memory_mib: int = 0  # of the GPU; 0 if not known

    @property
    def key(self) -> str:
        options = {name: value for name, value in self.options.items() if may_change_step(name)}
        content = json.dumps([self.name, options, self.gpu, self.memory_mib], sort_keys=True, default=str)
        return hashlib.sha256(content.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Result:
    """What a trace found: an estimate, or why there is none."""

    at: float
    estimate: Estimate | None = None
    error: str = ""

    def is_fresh(self, now: float) -> bool:
        return now - self.at < (KEEP_S if self.estimate else KEEP_FAILURE_S)


class TraceQueue:
    def __init__(
        self,
        folder: Path,
        trace: Tracer,
        log: logging.Logger,
        on_done: Callable[[set[str]], None] = lambda job_ids: None,
    ) -> None:
        self._folder, self._trace, self._log, self._on_done = folder, trace, log, on_done
        self._results: dict[str, Result] = {}
        self._waiting: dict[str, tuple[Step, set[str]]] = {}  # by key, with the jobs that wait for it
        self._task: asyncio.Task[None] | None = None
        self._stop = threading.Event()

    def find(self, step: Step, job_id: str) -> Result | None:
        """Return the result of the trace. None if it is under way; `on_done` is then called for the job."""
        key = step.key
        result = self._results.get(key) or self._load(key)
        if result and result.is_fresh(time.time()):
            return result
        if key not in self._waiting and len(self._waiting) >= MOST_WAITING:
            return Result(time.time(), error="too many traces wait")
        self._waiting.setdefault(key, (step, set()))[1].add(job_id)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._work())
        return None

    async def close(self) -> None:
        """Stop tracing, and end the trace that is under way."""
        self._stop.set()
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        while self._waiting:
            key, (step, _) = next(iter(self._waiting.items()))
            result = await self._run(step)
            now = time.time()
            self._results = {key: kept for key, kept in self._results.items() if kept.is_fresh(now)}
            self._results[key] = result
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self._save, key, result)
            self._on_done(self._waiting.pop(key)[1])

    async def _run(self, step: Step) -> Result:
        try:
            estimate = await asyncio.to_thread(
                self._trace,
                step.name,
                step.options,
                step.gpu,
                step.memory_mib,
                time_limit_s=TIME_LIMIT_S,
                stop=self._stop,
            )
        except Exception as error:  # the step is the code of a user, and may do anything
            why = f"{type(error).__name__}: {error}"
            self._log.warning("The memory of step %s cannot be predicted: %s", step.name, why)
            return Result(time.time(), error=why)
        return Result(time.time(), estimate)

    def _save(self, key: str, result: Result) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._folder / f"{key}.json", json.dumps(asdict(result)))
        for file in self._folder.glob("*.json"):
            if file.stat().st_mtime < time.time() - KEEP_S:
                file.unlink(missing_ok=True)

    def _load(self, key: str) -> Result | None:
        try:
            stored = json.loads((self._folder / f"{key}.json").read_text())
            estimate = Estimate(**stored["estimate"]) if stored["estimate"] else None
            result = self._results[key] = Result(float(stored["at"]), estimate, str(stored["error"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return result
