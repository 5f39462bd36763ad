"""The deployments and flows of a pool's runs, read from the server and kept for a while."""

from __future__ import annotations

import time
from collections.abc import Iterable
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
from prefect.client.schemas.objects import Flow, FlowRun
from prefect.client.schemas.responses import DeploymentResponse

from gpu_flows.prefect_api.conventions import PAGE
from gpu_flows.prefect_api.due_runs import in_pages

KEEP_S = 10.0


class DeploymentCache:
    """Deployments change rarely and many runs share one, so each is read again only after `KEEP_S`."""

    def __init__(self, client: PrefectClient) -> None:
        self._client = client
        self._deployments: dict[UUID, DeploymentResponse] = {}
        self._read_at = 0.0
        self._flows: dict[UUID, Flow] = {}

    async def refresh(self, runs: Iterable[FlowRun]) -> None:
        """Read the deployments of these runs, unless they are known and recent."""
        fresh = time.monotonic() - self._read_at <= KEEP_S
        known = dict(self._deployments) if fresh else {}
        wanted = sorted({run.deployment_id for run in runs if run.deployment_id} - set(known), key=str)
        for some in in_pages(wanted):
            with_ids = DeploymentFilter(id=DeploymentFilterId(any_=some))
            for deployment in await self._client.read_deployments(deployment_filter=with_ids, limit=PAGE):
                known[deployment.id] = deployment
        if not fresh:
            self._read_at = time.monotonic()
        self._deployments = known

    def get(self, run: FlowRun) -> DeploymentResponse | None:
        """Return the run's deployment if it has one that is known."""
        return self._deployments.get(run.deployment_id) if run.deployment_id else None

    async def read(self, run: FlowRun) -> DeploymentResponse | None:
        """Return the run's deployment, from the server if it is not known."""
        if run.deployment_id is None:
            return None
        return self.get(run) or await self._client.read_deployment(run.deployment_id)

    async def read_flows(self, runs: Iterable[FlowRun]) -> None:
        """Read the flows of these runs that are not known."""
        for run in {run.flow_id: run for run in runs if run.flow_id not in self._flows}.values():
            await self.read_flow(run)

    def flow_name(self, run: FlowRun) -> str:
        """Return the name of the run's flow; empty if it is not known."""
        flow = self._flows.get(run.flow_id)
        return flow.name if flow else ""

    async def read_flow(self, run: FlowRun) -> Flow:
        """Return the run's flow, from the server if it is not known."""
        if run.flow_id not in self._flows:
            self._flows[run.flow_id] = await self._client.read_flow(run.flow_id)
        return self._flows[run.flow_id]
