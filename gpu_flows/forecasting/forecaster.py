"""The worker's side of the forecasts: sends what changed to the child, and keeps what it answers.

The event loop only compares the state with what the child knows, and never waits for it. While the child has
not made the last changes yet, nothing is compared; the next difference holds everything. If the child dies or
hangs, there are no forecasts until another one has started, and the pool is not disturbed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gpu_flows.analytics.facts import Forecast
from gpu_flows.common.retry import Backoff
from gpu_flows.dispatch.child_process import LONGEST_ANSWER, ChildFailed, ChildProcess, pack
from gpu_flows.dispatch.spectator import Spectator
from gpu_flows.forecasting.failures import Failures
from gpu_flows.forecasting.messages import Decision, Message, Settings
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.forecast.eta import Eta
from gpu_flows.schedulers.mirror import Changes, Original
from gpu_flows.schedulers.model import Action, Job
from gpu_flows.schedulers.prediction.estimate import Estimate

HANGS_AFTER_S = 30.0  # without an answer to a message
LOOK_EVERY_S = 1.0  # whether this worker leads, and whether the child hangs
RESTART = Backoff(first_s=1.0, factor=2.0, most_s=60.0)
STABLE_AFTER_S = 120.0  # a child that served so long has no old failures
COMPARE_PAUSE = 20.0  # after a comparison, pause for this multiple of its duration

Durations = Callable[[Job], "Estimate | None"]  # how long a job takes in all, as far as it is known
OnObserved = Callable[[list[dict[str, Any]]], None]


@dataclass(slots=True)
class Outcome:
    """The last forecast."""

    etas: dict[str, Eta] = field(default_factory=dict)
    heads: dict[str, dict[str, Any]] = field(default_factory=dict)  # of the first jobs of the queue
    why: str = ""  # there are no forecasts
    made: float = 0.0


class Forecaster(Spectator):
    """Forecasts one pool, while `is_leading`. Without a running `keep_forecasting`, it does nothing."""

    def __init__(
        self,
        pool: str,
        folder: Path,
        engine: Engine,
        durations: Durations,
        settings: Callable[[], Settings],
        record: Callable[..., None],
        log: logging.Logger,
        on_observed: OnObserved = lambda told: None,
        clock: Callable[[], float] = time.time,
        is_leading: Callable[[], bool] = lambda: True,
    ) -> None:
        self._pool, self._folder, self._engine, self._clock = pool, folder, engine, clock
        self._is_leading = is_leading
        self._durations, self._settings, self._on_observed = durations, settings, on_observed
        self._record: Callable[..., None] = record
        self._log, self._has_warned = log, False
        self._failures, self._trouble = Failures(), ""
        self._process: ChildProcess | None = None
        self._writer: asyncio.StreamWriter | None = None  # None: nobody can be told
        self._forget()

    def _forget(self) -> None:
        self._original = Original()
        self._told: Settings | None = None
        self._number = self._done = self._forecast = self._newest = 0
        self._captured: Changes | None = None  # before the plan that is being made
        self._was_skipped = False  # something may have changed that was not compared
        self._unseen = 0  # decisions of which the child has been told nothing
        self._compare_at = 0.0  # not before
        self.outcome = Outcome(why=self._trouble)

    # -- for those who show forecasts ---------------------------------------------------------

    def eta(self, job_id: str) -> Eta | None:
        return self.outcome.etas.get(job_id)

    def describe(self, job_id: str) -> dict[str, Any]:
        """Return when a job starts and ends, what it waits for, and what would let it start earlier, for
        those who show it."""
        eta, head = self.eta(job_id), self.outcome.heads.get(job_id, {})
        tried = {key: head.get(key, []) for key in ("waits_for", "alternatives")}
        return {"eta": asdict(eta) if eta else None, **tried}

    # -- decisions ----------------------------------------------------------------------------

    def before_plan(self, now: float) -> None:
        """Compare the state with what the child knows. The policy plans next."""
        self._captured = self._compare(now) if self._may_send() else None

    def after_plan(self, policy: str, actions: list[Action], now: float, took_us: float) -> None:
        """Send what has changed, with the decision that followed from it."""
        captured, self._captured = self._captured, None
        decision = Decision.of(policy, actions, took_us)
        if captured is None:
            self._unseen += bool(decision.moved())
            self._skip()
            return
        self._original.expect_again(decision.moved())
        self._send(captured, decision)

    def _may_send(self) -> bool:
        return self._is_free() and time.monotonic() >= self._compare_at

    def _is_free(self) -> bool:
        """Return whether there is a child, and it has made all changes that it was told."""
        return self._writer is not None and self._done == self._number

    def _compare(self, now: float) -> Changes:
        began = time.monotonic()
        changes, self._was_skipped = self._original.changes(self._engine.look(now)), False
        ended = time.monotonic()
        self._compare_at = ended + COMPARE_PAUSE * (ended - began)
        return changes

    def _send(self, changes: Changes, decision: Decision | None = None) -> None:
        settings = self._settings()
        settings = replace(settings, no_forecast=self._failures.why_not(settings))
        is_same = settings == self._told
        moves = decision is not None and bool(decision.moved())
        if not changes and is_same and not moves:
            return
        changed = [job for job, _ in changes.waiting] + [held.job for held in changes.running]
        again = self._all_jobs() if self._told is None or settings.past != self._told.past else changed
        durations = {job.id: self._durations(job) for job in again}
        is_news = moves or not is_same or bool(changed or changes.gone or _touches_cluster(changes))
        self._number, self._told = self._number + 1, settings
        if is_news:
            self._newest = self._number
        told, unseen, self._unseen = None if is_same else settings, self._unseen, 0
        message = Message(self._number, changes, durations, told, decision, is_news, unseen)
        assert self._writer
        self._writer.write(pack(message))

    def _all_jobs(self) -> list[Job]:
        return [*self._engine.waiting, *(running.job for running in self._engine.running.values())]

    def _skip(self) -> None:
        """Note that something was not compared. It is made up for when the child and the time allow it."""
        if not self._was_skipped:
            asyncio.get_running_loop().call_soon(self._catch_up)  # when the plan is carried out
        self._was_skipped = True

    def _catch_up(self) -> None:
        """Send what was not compared, if the child is free: now, or when the time allows it. If it is not,
        its answer leads here."""
        if not (self._was_skipped and self._is_free()):
            return
        pause = self._compare_at - time.monotonic()
        if pause > 0:
            asyncio.get_running_loop().call_later(pause, self._catch_up)
        else:
            self._send(self._compare(self._clock()))

    # -- the child ----------------------------------------------------------------------------

    def start_again(self) -> None:
        """Replace the child."""
        if self._writer:
            self._writer.transport.abort()
            self._writer = None

    async def keep_forecasting(self) -> None:
        pauses = RESTART.pauses()
        while True:
            while not self._is_leading():
                await asyncio.sleep(LOOK_EVERY_S)
            began, self._trouble = time.monotonic(), ""
            try:
                await self._serve()
            except (ChildFailed, OSError, ValueError, KeyError, TypeError) as error:
                self._failures.add(self._told, str(error))
                self._warn(str(error))
            finally:
                await self._close()
            if time.monotonic() - began > STABLE_AFTER_S:
                pauses, self._has_warned = RESTART.pauses(), False
            await asyncio.sleep(next(pauses))

    async def _serve(self) -> None:
        """Start a child, and read its answers until it fails, or until this worker leads no more."""
        self._forget()
        arguments = "gpu_flows.forecasting.child", self._pool, str(self._folder)
        self._process = await asyncio.to_thread(ChildProcess, *arguments)
        reader, self._writer = await asyncio.open_connection(
            sock=self._process.connection, limit=LONGEST_ANSWER
        )
        self._send(self._compare(self._clock()))
        heard = time.monotonic()
        while self._is_leading():
            try:
                async with asyncio.timeout(LOOK_EVERY_S):  # wait_for may lose a cancellation
                    line = await reader.readline()
            except TimeoutError:
                if not self._is_owed():
                    heard = time.monotonic()
                elif time.monotonic() - heard > HANGS_AFTER_S:
                    raise ChildFailed(f"its process did not answer for {HANGS_AFTER_S:g} s") from None
                continue
            if not line:
                raise ChildFailed(await asyncio.to_thread(self._process.describe_end) or "its process closed")
            heard = time.monotonic()
            if self._is_leading():
                self._use(json.loads(line))

    def _is_owed(self) -> bool:
        """Return whether the child has to answer."""
        return self._done < self._number or self._forecast < self._newest

    def _use(self, answer: dict[str, Any]) -> None:
        if "done" in answer:
            self._done = answer["done"]
            self._catch_up()
        elif "observed" in answer:
            self._on_observed(answer["observed"])
        else:
            self._forecast = answer["forecast"]
            etas = {job_id: Eta(*times) for job_id, times in answer["etas"].items()}
            if etas:
                self._failures.forget()
            self.outcome = Outcome(etas, answer["heads"], answer["why"], self._clock())
            policy = self._told.policy if self._told else ""
            self._record(*_read_rows(answer["record"], self._pool, policy))

    def _warn(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._log.warning("There are no forecasts until their process works again: %s.", why)
        self._trouble = f"Their process does not work: {why}."

    async def _close(self) -> None:
        self.outcome = Outcome(why=self._trouble)
        self.start_again()
        await asyncio.sleep(0)  # the event loop lets go of the connection before it is closed
        if self._process:
            process, self._process = self._process, None
            await asyncio.to_thread(process.close)


def _touches_cluster(changes: Changes) -> bool:
    health = changes.node_health or changes.device_health
    return changes.network is not None or changes.nodes is not None or bool(health)


def _read_rows(rows: list[list[Any]], pool: str, policy: str) -> list[Forecast]:
    return [
        Forecast(made, pool, job_id, start_p50, start_p90, end_p50, end_p90, policy)
        for job_id, made, start_p50, start_p90, end_p50, end_p90 in rows
    ]
