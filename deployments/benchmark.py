"""The `benchmark` flow: runs a declared workload under each policy on the live pool, and compares them.

It is an ordinary job of the pool that holds no device. It edits the pool's scheduler block for each round and
restores it at the end, even after an error. Other jobs in the pool are scheduled by the policy of the current
round. If someone else edits the block meanwhile, the benchmark ends: the edit stays, and the figures of that
round are marked as disturbed.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import State, flow
from prefect.artifacts import acreate_markdown_artifact
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.objects import WorkPool
from prefect.runtime import flow_run
from prefect.states import Failed

from gpu_flows.analytics.facts import ExperimentRan
from gpu_flows.analytics.query_runner import QueryResult, run_query
from gpu_flows.analytics.recorder import Recorder
from gpu_flows.common.retry import wait_until
from gpu_flows.config.paths import default_warehouse, pool_folder
from gpu_flows.config.pool_blocks import BlockNames, read_warehouse
from gpu_flows.config.temporary_policies import TemporaryPolicies
from gpu_flows.deployments.benchmark_rounds import Rounds
from gpu_flows.deployments.workload import Workload
from gpu_flows.schedulers.policy import make_policy

COLUMNS = (
    "policy, jobs, makespan_s, avg_turnaround_s, avg_queueing_s, allocation_percent, utilization_percent,"
    " disturbed"
)
FACTS_TIMEOUT_S = 30.0


@flow(name="benchmark")
async def benchmark(
    workload: Workload = Workload(),  # noqa: B008
    train: str = "train/train",
) -> dict[str, Any] | State[Any]:
    """Run a workload under each policy in turn and publish a comparison.

    Args:
        workload: The jobs, how they arrive, and the policies to compare.
        train: The deployment that the jobs are runs of.
    """
    for policy in workload.policies:
        make_policy(policy)  # report an unknown policy before any job is submitted
    async with get_client() as client:
        pool, deployment = await _find_pool(client, train)
        blocks = BlockNames.of(pool)
        policies = TemporaryPolicies(client, pool.name, blocks.scheduler)
        rounds = Rounds(client, policies, pool.name, workload, deployment)
        await policies.begin(str(flow_run.id), str(flow_run.name))
        try:
            await rounds.run_all(_name_experiments(str(flow_run.name)))
        finally:
            await policies.restore()
        warehouse = await read_warehouse(client, blocks.warehouse)
    database = Path(warehouse.path).expanduser() if warehouse.path else default_warehouse()
    _record_experiments(database, pool.name, rounds)
    comparison = await asyncio.to_thread(_compare, database, rounds)
    report = _build_report(workload, comparison)
    await acreate_markdown_artifact(report, key="benchmark", description="Policies compared.")
    if rounds.edited_during:
        message = f"{rounds.disturbance} The edit stays in force. The benchmark ended without further rounds."
        return Failed(name="Disturbed", message=message)
    return {
        "experiments": rounds.experiments,
        "columns": comparison.columns,
        "rows": [[_rounded(value) for value in row] for row in comparison.rows],
    }


def _name_experiments(run_name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", run_name) + f"-{int(time.time())}"


async def _find_pool(client: PrefectClient, train: str) -> tuple[WorkPool, UUID]:
    """Return the work pool and the id of the training deployment."""
    deployment = await client.read_deployment_by_name(train)
    if not deployment.work_pool_name:
        raise ValueError(f"Deployment {train!r} belongs to no work pool. Deploy it to a gpu pool.")
    return await client.read_work_pool(deployment.work_pool_name), deployment.id


def _record_experiments(database: Path, pool: str, rounds: Rounds) -> None:
    recorder = Recorder(database, pool_folder(pool) / "benchmark")
    for policy, experiment in rounds.experiments.items():
        description = {**rounds.workload.model_dump(mode="json"), "policy": policy}
        disturbed = rounds.disturbance if policy == rounds.edited_during else ""
        recorder.write(ExperimentRan(experiment, time.time(), json.dumps(description), disturbed))
    recorder.close()


def _compare(database: Path, rounds: Rounds) -> QueryResult:
    """Query the results of the experiments, after the worker has recorded the end of every job."""
    listed = ", ".join(f"'{experiment}'" for experiment in (*rounds.experiments.values(), ""))
    expected = rounds.workload.jobs * len(rounds.experiments)
    ended = f"select count(ended) from job_history where experiment <> '' and experiment in ({listed})"
    if not rounds.edited_during:
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
