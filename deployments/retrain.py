"""The `retrain` flow: retrains the predictors of memory and time on the warehouse of its pool.

It is an ordinary job of the pool that holds no device, so it runs on the worker's machine, where the
warehouse and the predictors are. With too little history it changes nothing and says so.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import acreate_markdown_artifact
from prefect.client.orchestration import get_client

from gpu_flows.config.paths import predictor_folder
from gpu_flows.deployments.own_pool import find_own_pool
from gpu_flows.prediction.predictor_store import PredictorStore
from gpu_flows.prediction.retraining import Judgement, Retrained, describe_verdict, retrain_and_store


@flow(name="retrain")
async def retrain(fresh: bool = False) -> dict[str, Any]:
    """Retrain the predictors. They replace the current ones only where they are as good on the latest jobs.

    Args:
        fresh: Forget what was learned before, also where the current predictors cannot be read.
    """
    store = PredictorStore(predictor_folder())
    log = get_run_logger()
    async with get_client() as client:
        pool = await find_own_pool(client)
    done = await asyncio.to_thread(
        retrain_and_store, pool.warehouse, store, time.time(), fresh=fresh, say=log.info
    )
    version = done.predictors.version if done.predictors else store.current_version()
    await acreate_markdown_artifact(
        build_report(done, version), key="retrain", description="Predictors judged on the latest jobs."
    )
    return {
        "version": version,
        "replaced": bool(done.predictors),
        "parts": {verdict.part: describe_verdict(verdict) for verdict in done.verdicts},
    }


def build_report(done: Retrained, version: str) -> str:
    """A table with a row for each part: candidate and current one on the same jobs."""
    lines = [
        f"Current predictors: {version or 'those of the package'}.",
        "",
        "| part | verdict | jobs | error, new | error, current | bounds broken, new |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for verdict in done.verdicts:
        new = verdict.new
        figures = [new.jobs if new else "", _error(new), _error(verdict.old), new.broken if new else ""]
        lines.append(f"| {' | '.join(map(str, [verdict.part, verdict.reason, *figures]))} |")
    return "\n".join(lines)


def _error(judgement: Judgement | None) -> str:
    return f"{judgement.score:.1%}" if judgement else ""
