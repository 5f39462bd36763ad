"""The program of the process that forecasts a pool.

It keeps an engine at the state of the worker's engine, shows each decision to its observers, writes the state
to a file, and simulates it forward. A forecast takes at most half of one processor's time, and is interrupted
between two simulations when the worker sends something.

Answers, one JSON object in a line:
  done       the number of a message: its changes are made, and observers have seen its decision
  observed   what observers tell the worker about that decision
  forecast   the number of the last message that this forecast includes, with
             etas (job id -> start_p50, start_p90, end_p50, end_p90), heads (job id -> what the job
             waits for and what would let it start earlier, of the first jobs of the queue),
             record (rows for the warehouse), why (there are none), took_s
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, replace
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from gpu_flows.common.files import write_atomically
from gpu_flows.dispatch.child_process import Connection
from gpu_flows.forecasting.messages import Decision, Message, Settings
from gpu_flows.forecasting.prospects import describe_prospects
from gpu_flows.forecasting.record import Thinning
from gpu_flows.forecasting.shadowing import Shadowing
from gpu_flows.forecasting.state_file import read_state, state_path
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.forecast.eta import Eta, forecast
from gpu_flows.schedulers.forecast.forward import UnknownDurations
from gpu_flows.schedulers.forecast.pool_state import PoolState
from gpu_flows.schedulers.mirror import Changes, Original, apply
from gpu_flows.schedulers.model import Job, Progress
from gpu_flows.schedulers.policies.fifo import Fifo
from gpu_flows.schedulers.policy import PolicyError
from gpu_flows.schedulers.prediction.estimate import Estimate

FORECAST_S = 1.0  # for the simulations of one forecast
GIVE_UP_S = 5.0  # a simulation that takes longer is not completed
ALTERNATIVES_S = 0.5
LOOKED_AT = 5  # jobs at the head of the queue for which alternatives are tried
MOST_TOLD = 2000  # waiting jobs of which the worker is told; it lists no more
MOST_RECENT = 200  # jobs that came last, from which it is drawn what may come
WRITE_EVERY_S = 0.2
AGAIN_AFTER_S = 10.0  # while jobs are there, forecasts are renewed although nothing has changed
NICENESS = 5


class Observer(Protocol):
    """Looks at each decision of the pool, such as to plan on the same state with another policy."""

    def observe(self, engine: Engine, message: Message, settings: Settings) -> list[dict[str, Any]]:
        """Return what the worker is told about the message's decision, if it has one. The engine is in the
        state before it; what the observer moves on its draft, it rolls back."""
        ...

    def look_ahead(self, state: PoolState, is_interrupted: Callable[[], bool]) -> list[dict[str, Any]]:
        """Return what the worker is told after a forecast from this state. `is_interrupted` is to be called
        often: it lets the child follow the pool."""
        ...


OBSERVERS: list[Callable[[Path], Observer]] = [Shadowing]
"""Makers of the observers of a pool with this folder, which its child calls when it starts."""


class ForecastChild:
    def __init__(
        self, connection: Connection, pool: str, folder: Path, observers: Sequence[Observer] = ()
    ) -> None:
        self._connection, self._pool, self._path = connection, pool, state_path(folder)
        self._observers = observers
        self._engine = Engine((), Fifo(), can_preempt=True)
        self._durations: dict[str, Estimate] = {}
        before = read_state(folder)  # of an earlier child
        self._recent = {job.id: (job, duration) for job, duration in before.recent} if before else {}
        self._settings = Settings()
        self._thinning = Thinning()
        self._number = 0
        self._clock_ahead = 0.0  # of the worker's clock, compared with ours
        self._is_due = False  # something changed since the last forecast
        self._state_is_due = False
        self._write_at = self._forecast_at = 0.0  # not before

    def serve(self) -> None:
        """Follow the worker's messages until it closes the connection."""
        while True:
            if self._connection.has_message(self._until_next()):
                self._read()
                continue
            now = time.monotonic()
            if self._state_is_due and now >= self._write_at:
                self._write_state()
            if (self._is_due and now >= self._forecast_at) or now >= self._forecast_at + AGAIN_AFTER_S:
                self._forecast()

    def _until_next(self) -> float | None:
        """Return how long nothing is to be done; None for ever."""
        if self._engine.is_idle and not (self._is_due or self._state_is_due):
            return None
        due = self._forecast_at if self._is_due else self._forecast_at + AGAIN_AFTER_S
        if self._state_is_due:
            due = min(due, self._write_at)
        return max(0.0, due - time.monotonic())

    # -- the pool -----------------------------------------------------------------------------

    def _read(self) -> None:
        message: Message = self._connection.receive()
        self._number = message.number
        self._clock_ahead = message.changes.now - time.monotonic()
        apply(message.changes, self._engine)
        for job_id in message.changes.gone:
            self._durations.pop(job_id, None)
        for job_id, duration in message.durations.items():
            if duration:
                self._durations[job_id] = duration
            else:
                self._durations.pop(job_id, None)
        self._note_arrivals(message.changes)
        if message.settings:
            self._settings = message.settings
        self._tell(one.observe(self._engine, message, self._settings) for one in self._observers)
        if message.decision:
            make_moves(self._engine, message.decision, message.changes.now)
        self._connection.answer({"done": message.number})
        if message.is_news:
            self._is_due = self._state_is_due = True

    def _tell(self, observed: Iterable[list[dict[str, Any]]]) -> None:
        if told := list(chain.from_iterable(observed)):
            self._connection.answer({"observed": told})

    def _note_arrivals(self, changes: Changes) -> None:
        """Remember the last jobs that came, as far as it is known how long they take."""
        for job in (*(job for job, _ in changes.waiting), *(held.job for held in changes.running)):
            if job.gpus and (duration := self._durations.get(job.id)):
                self._recent[job.id] = (job, duration)
        for job_id in list(self._recent)[: max(0, len(self._recent) - MOST_RECENT)]:
            del self._recent[job_id]

    def _capture(self) -> PoolState:
        now = self._clock_ahead + time.monotonic()
        state = capture(self._pool, self._engine, self._settings, self._durations, now)
        return replace(state, recent=tuple(self._recent.values()))

    def _write_state(self) -> None:
        began = time.monotonic()
        with contextlib.suppress(OSError):  # the disk is full: the old state stays, and becomes stale
            write_atomically(self._path, self._capture().to_json())
        self._state_is_due = False
        now = time.monotonic()
        self._write_at = now + max(WRITE_EVERY_S, 10 * (now - began))

    # -- forecasts ----------------------------------------------------------------------------

    def _forecast(self) -> None:
        began = time.monotonic()
        number, self._is_due = self._number, False
        why_not = self._settings.no_forecast
        state = replace(self._capture(), runs_plugins=not why_not)  # the worker survives this process
        answer: dict[str, Any] = {"forecast": number, "etas": {}, "heads": {}, "record": [], "why": ""}

        def follow() -> bool:
            while self._connection.has_message(0):
                self._read()
            return False

        def is_late() -> bool:
            return follow() or time.monotonic() >= began + FORECAST_S

        def is_hopeless() -> bool:
            return time.monotonic() >= began + GIVE_UP_S

        try:
            if why_not:
                raise PolicyError(why_not)
            etas = forecast(state, is_late=is_late, is_hopeless=is_hopeless)
            running = {each.job.id for each in state.running}
            answer["etas"] = _list_first(etas, running)
            answer["record"] = self._thinning.choose(etas, running, state.now)
            answer["heads"] = self._look_at_heads(state, etas)
        except (UnknownDurations, PolicyError) as error:
            answer["why"] = str(error)
        except Exception as error:  # a policy of another package may raise anything
            answer["why"] = f"The forecast failed: {type(error).__name__}: {error}"
        now = time.monotonic()
        answer["took_s"] = now - began
        self._connection.answer(answer)
        self._tell(one.look_ahead(state, follow) for one in self._observers)
        self._forecast_at = now + (now - began)

    def _look_at_heads(self, state: PoolState, etas: dict[str, Eta]) -> dict[str, dict[str, Any]]:
        """Return what the first jobs of the queue wait for, and what would let them start earlier."""
        until = time.monotonic() + ALTERNATIVES_S
        ids = [job.id for job, _ in state.waiting if job.id in etas]
        first = sorted((etas[job_id].start_p50, job_id) for job_id in ids)[:LOOKED_AT]
        heads: dict[str, dict[str, Any]] = {}
        for _, job_id in first:
            if time.monotonic() < until:
                heads[job_id] = describe_prospects(state, job_id, lambda: time.monotonic() >= until)
        return heads


def _list_first(etas: dict[str, Eta], running: set[str]) -> dict[str, list[float]]:
    """Return the forecasts of the running jobs and of those that start first, as they are sent."""
    waiting = sorted((job_id for job_id in etas if job_id not in running), key=lambda id: etas[id].start_p50)
    chosen = [*(job_id for job_id in etas if job_id in running), *waiting[:MOST_TOLD]]
    return {job_id: [round(each, 2) for each in astuple(etas[job_id])] for job_id in chosen}


def make_moves(engine: Engine, decision: Decision, now: float) -> None:
    """Make the moves of the pool's policy on the engine. The next changes correct what is not exact."""
    for job_id in decision.preempts:
        if running := engine.running.get(job_id):
            engine.requeue(job_id, running.progress(now))
    devices, queue = engine.cluster.devices, engine.look(now).queue
    for job_id, device_ids in decision.starts:
        job = queue.get(job_id)
        if job and devices.keys() >= set(device_ids):
            before = engine.progress(job_id)
            held = tuple(devices[device_id].device for device_id in device_ids)
            engine.adopt(job, held, now, before.attempts + 1, before)


def _place(waiting: tuple[Job, Progress]) -> tuple[bool, float, tuple[int, float, str]]:
    """Sorts waiting jobs as most policies came to know them: those that were stopped, the latest first, and
    then those that arrived."""
    job, progress = waiting
    return (not progress.attempts, -(progress.stopped or 0.0), job.order)


def capture(
    pool: str, engine: Engine, settings: Settings, durations: dict[str, Estimate], now: float
) -> PoolState:
    """Return the state of the engine as data."""
    whole = Original().changes(engine.look(now))
    return PoolState(
        pool,
        now,
        settings.policy,
        settings.options,
        tuple(whole.nodes or ()),
        tuple(sorted(whole.waiting, key=_place)),
        tuple(whole.running),
        dict(durations),
        settings.typical,
        engine.protection,
        whole.node_health,
        whole.device_health,
        whole.utilization,
        settings.network,
        settings.costs,
    )


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    os.nice(NICENESS)
    folder = Path(sys.argv[3])
    child = ForecastChild(connection, sys.argv[2], folder, [make(folder) for make in OBSERVERS])
    with contextlib.suppress(EOFError):
        child.serve()


if __name__ == "__main__":
    main()
