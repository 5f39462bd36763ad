"""What the forecasts of a pool rest on: predicted durations, the progress of running jobs, the policy, and
what the warehouse tells about the past."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from gpu_flows.analytics.query_runner import QueryError
from gpu_flows.common.retry import Backoff
from gpu_flows.forecasting.messages import Settings
from gpu_flows.forecasting.pool_history import PoolHistory, read_history
from gpu_flows.prediction.live import LivePrediction, keep_estimate
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.prediction.estimate import Estimate

READ_PAST = Backoff(first_s=10.0, factor=1.5, most_s=120.0)  # a new pool learns much from few jobs


class Choices(Protocol):
    """The part of the pool's blocks that forecasts rest on."""

    @property
    def policy_options(self) -> dict[str, Any]: ...

    @property
    def network(self) -> str: ...

    @property
    def shadows(self) -> dict[str, dict[str, Any]]: ...

    @property
    def policy_saved(self) -> datetime | None: ...


class Basis:
    """What forecasts rest on, besides the state of the engine."""

    def __init__(
        self,
        pool: str,
        engine: Engine,
        prediction: LivePrediction,
        describe_progress: Callable[[str], dict[str, Any] | None],
        choices: Callable[[], Choices],
        find_database: Callable[[], Path | None],
        log: logging.Logger,
    ) -> None:
        self.pool, self.engine, self._prediction, self.log = pool, engine, prediction, log
        self._describe_progress, self._choices = describe_progress, choices
        self._find_database = find_database
        self._history = PoolHistory()
        self._typical: Estimate | None = None
        self._times_changed = 0

    async def keep_reading(self) -> None:
        """Read again and again what the warehouse tells about the past."""
        for pause in READ_PAST.pauses():
            if database := self._find_database():
                try:
                    history = await asyncio.to_thread(read_history, database, self.pool)
                    self._times_changed += history != self._history
                    self._history = history
                except QueryError as error:
                    self.log.debug("Forecasts go on with what was known of the past: %s", error)
            await asyncio.sleep(pause)

    def settings(self) -> Settings:
        engine, choices, history = self.engine, self._choices(), self._history
        policy = engine.active_policy.name  # FIFO, while the chosen one fails
        options = choices.policy_options if policy == engine.policy.name else {}
        typical = self._prediction.typical_duration() or history.typical
        self._typical = keep_estimate(self._typical, typical)
        saved = choices.policy_saved.isoformat() if choices.policy_saved else ""
        return Settings(
            policy,
            options,
            choices.network,
            history.costs,
            self._typical,
            choices.shadows,
            saved,
            past=self._times_changed,
        )

    def duration(self, job: Job) -> Estimate | None:
        """Return how long a job takes on its devices in all; None if nothing is known."""
        running, progress = self.engine.running.get(job.id), self._describe_progress(job.id)
        if running and progress:
            done = running.work(time.time())
            return Estimate(done + progress["remaining_s"], done + progress["upper_s"], "progress")
        return self.correct(self._prediction.duration(job))

    def correct(self, duration: Estimate | None) -> Estimate | None:
        """Return a stated or predicted duration as this pool's jobs take it."""
        return self._history.correct(duration)
