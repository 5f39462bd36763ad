"""The `benchmark` flow: runs a declared workload under each policy on the live pool, and compares them.

It is an ordinary job of the pool that holds no device. It edits the pool's scheduler block for each
round and restores it at the end, even after an error. Other jobs in the pool are scheduled by the policy
of the current round.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import flow, get_run_logger
from prefect.artifacts import acreate_markdown_artifact, acreate_progress_artifact, aupdate_progress_artifact
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import WorkPool
from prefect.runtime import flow_run

from gpu_flows.analytics.facts import ExperimentRan
from gpu_flows.analytics.query_runner import QueryResult, run_query
from gpu_flows.analytics.recorder import Recorder
from gpu_flows.blocks import GpuScheduler
from gpu_flows.common.retry import wait_until
from gpu_flows.config.paths import default_warehouse, pool_folder
from gpu_flows.config.pool_blocks import BlockNames, PolicyChoice, read_policy, read_warehouse
from gpu_flows.deployments.workload import Workload
from gpu_flows.prefect_api.due_runs import PAGE, in_pages
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.protection import Protection
from gpu_flows.worker.status import read_status

COLUMNS = "policy, jobs, makespan_s, avg_turnaround_s, avg_queueing_s, allocation, utilization"
SWITCH_TIMEOUT_S = 30.0
FACTS_TIMEOUT_S = 30.0


@flow(name="benchmark")
async def benchmark(workload: Workload = Workload(), train: str = "train/train") -> dict[str, Any]:  # noqa: B008
    """Run a workload under each policy in turn and publish a comparison.

    Args:
        workload: The jobs, how they arrive, and the policies to compare.
        train: The deployment that the jobs are runs of.
    """
    for policy in workload.policies:
        make_policy(policy)  # report an unknown policy before any job is submitted
    base = re.sub(r"[^A-Za-z0-9]+", "-", flow_run.name or "benchmark") + f"-{int(time.time())}"
    experiments = {policy: f"{base}-{policy}" for policy in workload.policies}
    async with get_client() as client:
        pool, deployment = await _find_pool(client, train)
        blocks = BlockNames.of(pool)
        original = await read_policy(client, blocks.scheduler)
        progress = await acreate_progress_artifact(0.0, key="benchmark-progress", description="starting")
        try:
            for done, (policy, experiment) in enumerate(experiments.items(), start=1):
                await _switch_policy(blocks.scheduler, replace(original, name=policy, options={}), pool.name)
                await _run_jobs(client, workload, deployment, experiment)
                percent = 100 * done / len(experiments)
                await aupdate_progress_artifact(progress, percent, description=f"{policy} has finished")
        finally:
            await _switch_policy(blocks.scheduler, original, pool.name)
        warehouse = await read_warehouse(client, blocks.warehouse)
    database = Path(warehouse.path).expanduser() if warehouse.path else default_warehouse()
    _record_experiments(database, pool.name, workload, experiments)
    comparison = await asyncio.to_thread(_compare, database, workload, list(experiments.values()))
    await acreate_markdown_artifact(
        _build_report(workload, comparison), key="benchmark", description="Policies compared."
    )
    return {
        "experiments": experiments,
        "columns": comparison.columns,
        "rows": [[_rounded(value) for value in row] for row in comparison.rows],
    }


async def _find_pool(client: PrefectClient, train: str) -> tuple[WorkPool, UUID]:
    """Return the work pool and the id of the training deployment."""
    deployment = await client.read_deployment_by_name(train)
    if not deployment.work_pool_name:
        raise ValueError(f"Deployment {train!r} belongs to no work pool. Deploy it to a gpu pool.")
    return await client.read_work_pool(deployment.work_pool_name), deployment.id


async def _switch_policy(block: str, choice: PolicyChoice, pool: str) -> None:
    """Save the policy in the pool's scheduler block, and wait until the worker uses it."""
    scheduler = GpuScheduler(protection=choice.protection or Protection())
    await scheduler.use(choice.name, **choice.options).save(block, overwrite=True)

    def has_switched() -> bool:
        status = read_status(pool)
        return status is not None and status.policy["name"] == choice.name

    if not await asyncio.to_thread(wait_until, has_switched, SWITCH_TIMEOUT_S):
        raise RuntimeError(
            f"The worker of pool {pool!r} has not switched to {choice.name!r} within {SWITCH_TIMEOUT_S:g} s."
        )


async def _run_jobs(client: PrefectClient, workload: Workload, deployment: UUID, experiment: str) -> None:
    """Submit the jobs at their arrival times, and wait until all have ended."""
    log = get_run_logger()
    began, runs = time.monotonic(), []
    for number, arrival in enumerate(workload.arrivals()):
        await asyncio.sleep(max(0.0, began + arrival - time.monotonic()))
        parameters, variables = workload.job(number)
        run = await client.create_flow_run_from_deployment(
            deployment,
            parameters=parameters,
            job_variables=variables,
            tags=["benchmark", f"experiment:{experiment}"],
        )
        runs.append(run.id)
    log.info("%s: %d jobs submitted", experiment, len(runs))
    while await _count_unfinished(client, runs):
        await asyncio.sleep(1.0)


async def _count_unfinished(client: PrefectClient, runs: list[UUID]) -> int:
    unfinished = 0
    for some in in_pages(runs):
        with_ids = FlowRunFilter(id=FlowRunFilterId(any_=some))
        found = await client.read_flow_runs(flow_run_filter=with_ids, limit=PAGE)
        unfinished += sum(not (run.state and run.state.is_final()) for run in found)
    return unfinished


def _record_experiments(database: Path, pool: str, workload: Workload, experiments: dict[str, str]) -> None:
    recorder = Recorder(database, pool_folder(pool) / f"benchmark-{os.getpid()}")
    for policy, experiment in experiments.items():
        description = {**workload.model_dump(mode="json"), "policy": policy}
        recorder.write(ExperimentRan(experiment, time.time(), json.dumps(description)))
    recorder.close()


def _compare(database: Path, workload: Workload, experiments: list[str]) -> QueryResult:
    """Query the results of the experiments, after the worker has recorded the end of every job."""
    listed = ", ".join(f"'{experiment}'" for experiment in experiments)
    expected = workload.jobs * len(experiments)
    ended = f"select count(ended) from job_history where experiment in ({listed})"
    wait_until(lambda: run_query(database, ended).rows[0][0] >= expected, FACTS_TIMEOUT_S, every_s=0.5)
    summary = f"select {COLUMNS} from experiment_summary where experiment in ({listed}) order by 4"
    return run_query(database, summary)


def _build_report(workload: Workload, comparison: QueryResult) -> str:
    heading = f"{workload.jobs} jobs, arrival {workload.arrival}, on the live pool; best turnaround first."
    columns = comparison.columns
    lines = [heading, "", "| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for row in comparison.rows:
        lines.append("| " + " | ".join(str(_rounded(value)) for value in row) + " |")
    return "\n".join(lines)


def _rounded(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value
