"""Tells people what a pool does now: a status for the command line, and artifacts for the Prefect UI."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from prefect.client.orchestration import PrefectClient

from gpu_flows.config.block_follower import BlockFollower
from gpu_flows.dispatch.dispatcher import Dispatcher
from gpu_flows.prediction.live import LivePrediction
from gpu_flows.worker.artifact_refresh import ArtifactRefresh
from gpu_flows.worker.housekeeping import after_changes
from gpu_flows.worker.pool_forecasts import PoolForecasts
from gpu_flows.worker.progress_watch import ProgressWatch
from gpu_flows.worker.recording import PoolRecord
from gpu_flows.worker.status import Status, write_status
from gpu_flows.worker.status_builder import CountedJobs, build_status


class Publishing:
    def __init__(
        self,
        client: PrefectClient,
        pool: str,
        find_name: Callable[[], str],
        dispatcher: Dispatcher,
        waiting: CountedJobs,
        blocks: BlockFollower,
        prediction: LivePrediction,
        progress: ProgressWatch,
        forecasts: PoolForecasts,
        history: PoolRecord,
        log: logging.Logger,
    ) -> None:
        self._pool, self._find_name, self._dispatcher = pool, find_name, dispatcher
        self._waiting, self._blocks = waiting, blocks
        self._prediction, self._progress, self._forecasts = prediction, progress, forecasts
        self._history = history
        self.artifacts = ArtifactRefresh(client, history.find_database, log, lambda: dispatcher.active)

    async def keep_publishing(self) -> None:
        async for _ in after_changes(self._dispatcher.changed):
            await self.publish()

    async def publish(self) -> None:
        status = self._build() if self._dispatcher.active else self._stand_by()
        self.artifacts.show(status)
        await asyncio.to_thread(write_status, status)

    def _build(self) -> Status:
        return build_status(
            self._pool,
            self._find_name(),
            self._dispatcher,
            self._waiting,
            self._blocks,
            self._history.trouble,
            self._prediction.describe,
            self._progress.describe,
            self._forecasts.forecaster.describe,
            self._forecasts.shadows.describe,
            self._forecasts.forecaster.outcome.why,
        )

    def _stand_by(self) -> Status:
        return Status(self._pool, self._find_name(), time.time(), {}, [], [], [], leads=False)
