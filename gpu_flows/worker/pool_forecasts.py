"""The forecasts of a pool, connected: what they rest on, the child that makes them, the shadows beside it,
and those who ask: notes on runs, and commands that try a job."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from prefect.client.orchestration import PrefectClient

from gpu_flows.forecasting.forecaster import Forecaster
from gpu_flows.forecasting.shadow_record import ShadowRecord
from gpu_flows.prediction.live import LivePrediction
from gpu_flows.prefect_api.due_jobs import DueJobs
from gpu_flows.prefect_api.imagined_jobs import ImaginedJobs
from gpu_flows.prefect_api.waiting_notes import WaitingJobs
from gpu_flows.schedulers.engine import Engine
from gpu_flows.worker.command_socket import answer_commands
from gpu_flows.worker.forecast_basis import Basis, Choices
from gpu_flows.worker.foreseen_jobs import ForeseenJobs
from gpu_flows.worker.recording import PoolRecord

Keep = Callable[[str, Callable[[], Coroutine[Any, Any, None]]], None]


class PoolForecasts:
    def __init__(
        self,
        client: PrefectClient,
        folder: Path,
        engine: Engine,
        prediction: LivePrediction,
        due_jobs: DueJobs,
        history: PoolRecord,
        describe_progress: Callable[[str], dict[str, Any] | None],
        choices: Callable[[], Choices],
        is_leading: Callable[[], bool],
        log: logging.Logger,
    ) -> None:
        pool = due_jobs.pool.name
        self._folder, self._log = folder, log
        self._basis = basis = Basis(
            pool, engine, prediction, describe_progress, choices, history.find_database, log
        )
        self._imagined = ImaginedJobs(client, due_jobs, prediction, basis.correct)
        self.shadows = ShadowRecord(pool, history.add, log)
        self.forecaster = Forecaster(
            pool,
            folder,
            engine,
            basis.duration,
            basis.settings,
            history.add,
            log,
            self.shadows.use,
            is_leading=is_leading,
        )

    def foresee(self, waiting: WaitingJobs) -> WaitingJobs:
        """Return the waiting jobs with reasons that also tell when each will start."""
        return ForeseenJobs(waiting, self.forecaster.eta)

    def start(self, keep: Keep) -> None:
        """Start what forecasts need, by a function that keeps a task alive."""
        keep("Forecasting", self.forecaster.keep_forecasting)
        keep("Reading the past for forecasts", self._basis.keep_reading)
        keep("Answering commands", lambda: answer_commands(self._folder, self._imagined.answer, self._log))
