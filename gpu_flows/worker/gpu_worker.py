"""The Prefect worker of type `gpu`.

Prefect's base worker sends heartbeats and keeps the pool's settings up to date. `PoolService` does everything
that concerns runs; each poll of the base worker makes it read the pool.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any
from uuid import UUID

import anyio.abc
import httpx
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import InfrastructureNotFound
from prefect.workers.base import BaseWorker, BaseWorkerResult

from gpu_flows import prefect_private as private
from gpu_flows.common.urls import LOGO, documentation_url
from gpu_flows.prefect_api.job_variables import GpuJobConfiguration, GpuJobVariables

if TYPE_CHECKING:
    from gpu_flows.worker.pool_service import PoolService


class GpuWorkerResult(BaseWorkerResult):
    """Required by Prefect's base class, and never returned: the service reports the ends of runs."""


class GpuWorker(BaseWorker[GpuJobConfiguration, GpuJobVariables, GpuWorkerResult]):
    """Runs flows on shared GPUs, in the order and on the devices that a policy chooses."""

    type = "gpu"
    job_configuration = GpuJobConfiguration
    job_configuration_variables = GpuJobVariables
    _display_name = "GPU"
    _description = (
        "Run training jobs on shared GPUs. A policy, which can be swapped while jobs run, decides which "
        "waiting run starts next and on which devices."
    )
    _documentation_url = documentation_url("jobs")
    _logo_url = LOGO

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.service: PoolService | None = None

    async def get_and_submit_flow_runs(self) -> list[FlowRun]:
        """Poll the pool. The base worker calls this every few seconds. It never raises, because an
        unreachable server must not end the worker while jobs run."""
        private.record_poll(self)
        if private.is_synced(self):
            if self.service is None:
                self._start_service()
            assert self.service is not None
            try:
                await self.service.poll_if_due()
            except httpx.HTTPError as error:
                private.logger(self).warning("The server does not answer (%s); trying again.", error)
            except Exception:
                private.logger(self).exception("Polling the pool failed; trying again.")
        return []

    def _start_service(self) -> None:
        # Here, because Prefect imports this module in every process that looks up workers, also in servers.
        from gpu_flows.worker.pool_service import PoolService

        log = private.logger(self)
        for line in private.find_missing_names():
            log.warning("This version of Prefect lacks a name that gpu-flows uses. %s.", line)
        queues = private.requested_queues(self)
        self.service = PoolService(self.client, self.work_pool, queues, self._identity, log)
        self.service.start()

    def _identity(self) -> tuple[str, UUID | None]:
        return self.name, self.backend_id

    async def run(
        self,
        flow_run: FlowRun,
        configuration: GpuJobConfiguration,
        task_status: anyio.abc.TaskStatus[int] | None = None,
    ) -> GpuWorkerResult:
        """Not supported: only the policy decides which run of the pool starts next."""
        raise NotImplementedError(
            "A gpu worker takes runs from its pool only. Deploy the flow to the pool and run the deployment."
        )

    async def kill_infrastructure(
        self, infrastructure_pid: str, configuration: GpuJobConfiguration, grace_seconds: int = 30
    ) -> None:
        """Kill a run. The server requests this when a cancelled run has not ended in time."""
        if self.service is None or not self.service.kill(infrastructure_pid):
            raise InfrastructureNotFound(f"Nothing runs here as {infrastructure_pid}.")

    async def teardown(self, *exc_info: Any) -> None:
        if self.service is not None:
            with anyio.CancelScope(shield=True), contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.service.close(), timeout=15)
        await super().teardown(*exc_info)
