"""The child's side of the shadows: at each decision they plan on the same state, without any effect.

A shadow that does not return from a plan is broken off by a timer. If it ends the process all the same, or is
killed with it, the next process does not ask it again until the block is saved. A policy of another package
plans in a process of its own, as it would if it decided; it is not simulated, because that would be in this
process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from gpu_flows.dispatch.policy_process import open_policy
from gpu_flows.forecasting.messages import Decision, Message, Settings
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.forecast.forward import UnknownDurations
from gpu_flows.schedulers.forecast.pool_state import PoolState
from gpu_flows.schedulers.forecast.projection import project
from gpu_flows.schedulers.forecast.shadows import Moves, Shadows, TookTooLong
from gpu_flows.schedulers.policy import Policy, PolicyError, is_built_in

OPEN_WITHIN_S = 5.0  # for the process of a policy
PROJECT_EVERY_S, PROJECT_PAUSE = 10.0, 20.0  # the pause: at least this, and this multiple of the time it took
PROJECT_WITHIN_S = 5.0
DIED = "the process of the forecasts died while it planned. Save the GPU Scheduler block to try it again."

Told = list[dict[str, Any]]


class Shadowing:
    """Tells the worker what the shadows of the pool would do, and why some of them do not plan."""

    def __init__(self, folder: Path) -> None:
        self._mark = _Mark(folder / "shadowing")
        self._shadows = Shadows(time.perf_counter, self._open, self._guard)
        self._chosen: tuple[Mapping[str, Any], str] = {}, ""  # the shadows, and when they were saved
        self._errors: dict[str, str] = {}  # as the worker knows them
        self._project_at = 0.0  # not before

    def observe(self, engine: Engine, message: Message, settings: Settings) -> Told:
        """Let the shadows plan on the state before the message's decision."""
        chosen = settings.shadows, settings.saved
        if chosen != self._chosen:
            self._chosen = chosen
            self._shadows.choose(settings.shadows)
        told: Told = []
        for _ in range(message.unseen):
            self._shadows.skip()
        if decision := message.decision:
            now = message.changes.now
            for verdict in self._shadows.observe(engine, _read_moves(decision), now):
                told.append({"verdict": asdict(verdict), "time": now, "policy": decision.policy})
        errors = self._shadows.errors()
        if errors != self._errors:
            self._errors = errors
            told.append({"errors": errors})
        return told

    def look_ahead(self, state: PoolState, is_interrupted: Callable[[], bool]) -> Told:
        """Project the turnaround under the shadows, if it is time to."""
        began = time.monotonic()
        others = {name: options for name, options in self._shadows.active().items() if is_built_in(name)}
        if not others or began < self._project_at or not (state.waiting or state.running):
            return []

        def is_late() -> bool:
            return is_interrupted() or time.monotonic() >= began + PROJECT_WITHIN_S

        projections = []
        with contextlib.suppress(UnknownDurations):
            projections = project(state, others, is_late)
        ended = time.monotonic()
        self._project_at = ended + max(PROJECT_EVERY_S, PROJECT_PAUSE * (ended - began))
        return [
            {"projection": asdict(each), "time": state.now, "policy": state.policy} for each in projections
        ]

    def _open(self, name: str, options: dict[str, Any]) -> Policy:
        if self._mark.left == f"{name} {self._chosen[1]}":
            raise PolicyError(DIED)
        return asyncio.run(open_policy(name, options, lambda: None, OPEN_WITHIN_S))

    @contextmanager
    def _guard(self, name: str, seconds: float) -> Iterator[None]:
        """Raise TookTooLong in the body after so many seconds, and leave a mark if the process ends in it."""
        before = signal.signal(signal.SIGALRM, _break_off)
        self._mark.write(f"{name} {self._chosen[1]}")
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            self._mark.write("")


def _break_off(number: int, frame: FrameType | None) -> NoReturn:
    raise TookTooLong


def _read_moves(decision: Decision) -> Moves:
    return Moves(
        {job_id: frozenset(devices) for job_id, devices in decision.starts}, frozenset(decision.preempts)
    )


class _Mark:
    """A line on disk that tells the next process of the same worker during which plan this one ended."""

    _LENGTH = 256  # bytes

    def __init__(self, path: Path) -> None:
        self._worker = str(os.getppid())  # a worker that ended took this process with it, at any time
        self._file: int | None = None
        self.left = ""
        with contextlib.suppress(OSError):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            line = os.pread(self._file, self._LENGTH, 0).decode("utf-8", "replace").strip()
            worker, _, plan = line.partition(" ")
            self.left = plan if worker == self._worker else ""
        self.write("")

    def write(self, plan: str) -> None:
        if self._file is not None:
            line = f"{self._worker} {plan}".encode()[: self._LENGTH - 1].ljust(self._LENGTH - 1) + b"\n"
            with contextlib.suppress(OSError):
                os.pwrite(self._file, line, 0)
