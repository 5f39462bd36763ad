"""The rounds of a benchmark: one policy is put in force at a time, and the workload runs under it.

The scheduler block is read every second. If someone else has edited it, the round ends and its unfinished
jobs are cancelled, because their figures would be those of two policies.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import acreate_progress_artifact, aupdate_progress_artifact
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelling

from gpu_flows.common.retry import wait_until
from gpu_flows.config.temporary_policies import BlockEdited, TemporaryPolicies
from gpu_flows.deployments.workload import Workload
from gpu_flows.prefect_api.conventions import PAGE
from gpu_flows.prefect_api.due_runs import in_pages
from gpu_flows.worker.status import read_status

SWITCH_TIMEOUT_S = 30.0
LOOK_EVERY_S = 1.0


@dataclass(slots=True)
class Rounds:
    client: PrefectClient
    policies: TemporaryPolicies
    pool: str
    workload: Workload
    deployment: UUID  # the jobs are runs of it
    experiments: dict[str, str] = field(default_factory=dict)  # policy -> the name of its experiment
    edited_during: str = ""  # the policy whose round ended because someone edited the scheduler block

    @property
    def disturbance(self) -> str:
        """Why the round that was edited does not count; empty if there is none."""
        edited = self.edited_during
        return edited and f"The scheduler block was edited during the round of {edited}."

    async def run_all(self, name: str) -> None:
        """Run a round for each policy, until all have run or someone else edits the scheduler block."""
        progress = await acreate_progress_artifact(0.0, key="benchmark-progress", description="starting")
        for done, policy in enumerate(self.workload.policies, start=1):
            try:
                await self._run(policy, f"{name}-{policy}")
            except BlockEdited:
                self.edited_during = policy
                return
            percent = 100 * done / len(self.workload.policies)
            await aupdate_progress_artifact(progress, percent, description=f"{policy} has finished")

    async def _run(self, policy: str, experiment: str) -> None:
        await self.policies.put_in_force(policy)
        await asyncio.to_thread(_wait_for_worker, self.pool, policy)
        self.experiments[policy] = experiment
        runs: list[UUID] = []
        try:
            await self._submit(runs, experiment)
            while [run async for run in self._find_unfinished(runs)]:
                await self.policies.check()
                await asyncio.sleep(LOOK_EVERY_S)
        except BlockEdited:
            async for run in self._find_unfinished(runs):
                await self.client.set_flow_run_state(run.id, Cancelling())
            raise

    async def _submit(self, runs: list[UUID], experiment: str) -> None:
        """Submit the jobs at their arrival times."""
        began = time.monotonic()
        for number, arrival in enumerate(self.workload.arrivals()):
            while (left := began + arrival - time.monotonic()) > 0:
                await asyncio.sleep(min(left, LOOK_EVERY_S))
                await self.policies.check()
            parameters, variables = self.workload.job(number)
            run = await self.client.create_flow_run_from_deployment(
                self.deployment,
                parameters=parameters,
                job_variables=variables,
                tags=["benchmark", f"experiment:{experiment}"],
            )
            runs.append(run.id)
        get_run_logger().info("%s: %d jobs submitted", experiment, len(runs))

    async def _find_unfinished(self, runs: list[UUID]) -> AsyncIterator[FlowRun]:
        for some in in_pages(runs):
            with_ids = FlowRunFilter(id=FlowRunFilterId(any_=some))
            for run in await self.client.read_flow_runs(flow_run_filter=with_ids, limit=PAGE):
                if not (run.state and run.state.is_final()):
                    yield run


def _wait_for_worker(pool: str, policy: str) -> None:
    def has_switched() -> bool:
        status = read_status(pool)
        return status is not None and status.policy["name"] == policy

    if not wait_until(has_switched, SWITCH_TIMEOUT_S):
        raise RuntimeError(
            f"The worker of pool {pool!r} has not switched to {policy!r} within {SWITCH_TIMEOUT_S:g} s."
        )
