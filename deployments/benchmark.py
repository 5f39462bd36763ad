"""The `benchmark` flow: runs a declared workload under each policy, on the live pool, and compares.

It is an ordinary job of the pool that holds no device. The pool's scheduler block is switched for
each round and restored at the end, whatever happens; other people's jobs meanwhile are scheduled
by whichever policy is being tried.
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
from gpu_flows.config.paths import default_warehouse, pool_folder
from gpu_flows.config.pool_blocks import BlockNames, PolicyChoice, read_policy, read_warehouse
from gpu_flows.deployments.workload import Workload
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.protection import Protection
from gpu_flows.worker.status import read_status

SHOWN = "policy", "jobs", "makespan_s", "avg_turnaround_s", "avg_queueing_s", "allocation", "utilization"


@flow(name="benchmark")
async def benchmark(workload: Workload = Workload(), train: str = "train/train") -> dict[str, Any]:  # noqa: B008
    """Run a workload under each policy in turn and publish how they compare.

    Args:
        workload: The jobs, how they arrive, and the policies to compare.
        train: The deployment that the jobs are runs of.
    """
    for name in workload.policies:
        make_policy(name)  # a wrong name ends it before anything was submitted
    async with get_client() as client:
        pool, deployment = await _where(client, train)
        names = BlockNames.of(pool)
        before = await read_policy(client, names.scheduler)
        base = re.sub(r"[^A-Za-z0-9]+", "-", flow_run.name or "benchmark") + f"-{int(time.time())}"
        rounds = {name: f"{base}-{name}" for name in workload.policies}
        progress = await acreate_progress_artifact(0.0, key="benchmark-progress", description="starting")
        try:
            for done, (name, experiment) in enumerate(rounds.items()):
                await _use(names.scheduler, replace(before, name=name, options={}), pool.name)
                await _round(client, workload, deployment, experiment)
                share = 100 * (done + 1) / len(rounds)
                await aupdate_progress_artifact(progress, share, description=f"{name} is through")
        finally:
            await _use(names.scheduler, before, pool.name)
        warehouse = await read_warehouse(client, names.warehouse)
    database = Path(warehouse.path).expanduser() if warehouse.path else default_warehouse()
    _note(database, pool.name, workload, rounds)
    found = await _compare(database, workload, rounds)
    await acreate_markdown_artifact(
        _report(workload, found), key="benchmark", description="Policies compared."
    )
    return {
        "experiments": rounds,
        "columns": found.columns,
        "rows": [list(map(_plain, row)) for row in found.rows],
    }


async def _where(client: PrefectClient, train: str) -> tuple[WorkPool, Any]:
    deployment = await client.read_deployment_by_name(train)
    if not deployment.work_pool_name:
        raise ValueError(f"Deployment {train!r} belongs to no work pool. Deploy it to a gpu pool.")
    return await client.read_work_pool(deployment.work_pool_name), deployment.id


async def _use(block: str, choice: PolicyChoice, pool: str) -> None:
    """Switch the pool's policy and see that its worker follows."""
    block_now = GpuScheduler(protection=choice.protection or Protection())
    await block_now.use(choice.name, **choice.options).save(block, overwrite=True)
    for _ in range(300):
        status = read_status(pool)
        if status and status.policy["name"] == choice.name:
            return
        await asyncio.sleep(0.1)
    raise RuntimeError(f"The worker of pool {pool!r} has not switched to {choice.name!r} within 30 s.")


async def _round(client: PrefectClient, workload: Workload, deployment: Any, experiment: str) -> None:
    """Submit the jobs at their moments, and wait for the last of them."""
    log = get_run_logger()
    began, runs = time.monotonic(), []
    for number, at in enumerate(workload.arrivals()):
        await asyncio.sleep(max(0.0, began + at - time.monotonic()))
        parameters, variables = workload.job(number)
        run = await client.create_flow_run_from_deployment(
            deployment,
            parameters=parameters,
            job_variables=variables,
            tags=["benchmark", f"experiment:{experiment}"],
        )
        runs.append(run.id)
    log.info("%s: %d jobs submitted", experiment, len(runs))
    while True:
        left = 0
        for start in range(0, len(runs), 200):
            some = FlowRunFilter(id=FlowRunFilterId(any_=runs[start : start + 200]))
            found = await client.read_flow_runs(flow_run_filter=some, limit=200)
            left += sum(not (run.state and run.state.is_final()) for run in found)
        if not left:
            return
        await asyncio.sleep(1.0)


def _note(database: Path, pool: str, workload: Workload, rounds: dict[str, str]) -> None:
    spool = pool_folder(pool) / f"benchmark-{os.getpid()}"
    recorder = Recorder(database, spool)
    for name, experiment in rounds.items():
        described = {**workload.model_dump(mode="json"), "policy": name}
        recorder.write(ExperimentRan(experiment, time.time(), json.dumps(described)))
    recorder.close()


async def _compare(database: Path, workload: Workload, rounds: dict[str, str]) -> QueryResult:
    """Read the rounds back by SQL, once the facts of every job are in."""
    listed = ", ".join(f"'{experiment}'" for experiment in rounds.values())
    expected = workload.jobs * len(rounds)
    counted = f"select count(ended) from job_history where experiment in ({listed})"
    for _ in range(60):
        if (await asyncio.to_thread(run_query, database, counted)).rows[0][0] >= expected:
            break
        await asyncio.sleep(0.5)
    summary = f"select {', '.join(SHOWN)} from experiment_summary where experiment in ({listed}) order by 4"
    return await asyncio.to_thread(run_query, database, summary)


def _report(workload: Workload, found: QueryResult) -> str:
    heading = f"{workload.jobs} jobs, arrival {workload.arrival}, on the live pool; best turnaround first."
    lines = [heading, "", "| " + " | ".join(found.columns) + " |", "|" + " --- |" * len(found.columns)]
    for row in found.rows:
        lines.append("| " + " | ".join(str(_plain(value)) for value in row) + " |")
    return "\n".join(lines)


def _plain(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value
