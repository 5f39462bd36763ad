"""The `rl-retrain` flow: retrains the policy `rl` on the recorded jobs of its pool.

It is an ordinary job of the pool that holds no device, so it runs on the worker's machine, where the
warehouse and the weights are. It needs the extra `rl`. The learning curves are facts in the warehouse.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import acreate_markdown_artifact
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import BlockDocumentUpdate

from gpu_flows.analytics.facts import LearningStep
from gpu_flows.analytics.query_runner import QueryError
from gpu_flows.analytics.recorder import Recorder
from gpu_flows.common.files import write_atomically
from gpu_flows.config.paths import pool_folder, weights_folder
from gpu_flows.config.pool_blocks import read_policy
from gpu_flows.deployments.own_pool import OwnPool, find_own_pool
from gpu_flows.learning.retraining import History, Retrained, retrain
from gpu_flows.schedulers.learning.curve import LearningPoint
from gpu_flows.schedulers.policy_choice import write_choice

POLICY = "rl"


@flow(name="rl-retrain")
async def rl_retrain(
    minutes: float = 20.0, steps: int = 0, seeds: int = 1, processes: int = 1, apply: bool = True
) -> dict[str, Any]:
    """Retrain the policy rl. New weights are kept only if they are better on the latest jobs of the pool.

    Args:
        minutes: How long to train with each seed.
        steps: Train for so many decisions instead, which always gives the same weights; 0 goes by the time.
        seeds: How many networks to train; the best one is judged.
        processes: How many processes to train in. The jobs of the pool may need the other processors.
        apply: Let the pool use the new weights from now on, if its policy is rl.
    """
    try:
        from gpu_flows.learning.training import train
    except ImportError as error:
        raise RuntimeError(f"rl-retrain needs {error.name}: pip install 'gpu-flows[rl,train]'") from error
    async with get_client() as client:
        pool = await find_own_pool(client)
        chosen = await read_policy(client, pool.blocks.scheduler)
    options = chosen.options if chosen.name == POLICY else {}
    version = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    output = weights_folder() / f"{version}.npz"
    with _recorded_curves(pool, version) as record:
        done = await asyncio.to_thread(
            lambda: retrain(
                History.read(pool.warehouse, pool.name),
                output,
                options,
                train=train,
                seeds=range(seeds),
                minutes=None if steps else minutes,
                steps=steps or None,
                processes=processes,
                progress=record,
            )
        )
    get_run_logger().info(done.reason)
    applied = False
    if done.weights:
        async with get_client() as client:
            applied = apply and await _use_weights(client, pool.blocks.scheduler, done.weights)
        try:
            await asyncio.to_thread(_write_curves, pool, version, output.with_suffix(".html"))
        except (QueryError, OSError, ImportError) as error:  # the weights are in use without it
            get_run_logger().warning("The learning curve was not drawn: %s", error)
    await acreate_markdown_artifact(
        build_report(done, applied), key="rl-retrain", description="Weights judged on the latest jobs."
    )
    return {"training": version, "replaced": bool(done.weights), "applied": applied, "reason": done.reason}


@contextmanager
def _recorded_curves(pool: OwnPool, training: str) -> Iterator[Callable[[int, LearningPoint], None]]:
    """Record each point of a learning curve in the pool's warehouse, under the name of the training."""
    recorder = Recorder(pool.warehouse, pool_folder(pool.name) / "rl-retrain")
    recorder.start()

    def record(seed: int, point: LearningPoint) -> None:
        recorder.write(LearningStep.of(point, training, seed, time.time()))

    try:
        yield record
    finally:
        recorder.close()


def _write_curves(pool: OwnPool, training: str, page: Path) -> None:
    """Write a page with the learning curves of a training. Needs the extra `charts`."""
    from gpu_flows.analytics.figures.learning import learning_of, read_curves
    from gpu_flows.analytics.pages import render_figures

    write_atomically(page, render_figures(training, [learning_of(read_curves(pool.warehouse, training))]))


async def _use_weights(client: PrefectClient, block: str, weights: Path) -> bool:
    """Name the weights in the scheduler block, if it names the policy. Returns whether it does."""
    chosen = await read_policy(client, block)
    if chosen.name != POLICY:
        return False
    document = await client.read_block_document_by_name(block, "gpu-scheduler")
    content = write_choice(document.data, POLICY, {**chosen.options, "weights": str(weights)})
    await client.update_block_document(
        document.id, BlockDocumentUpdate(data=content, merge_existing_data=False)
    )
    return True


def build_report(done: Retrained, applied: bool) -> str:
    """A table with a row for each of the judged: new weights, current ones, fifo."""
    lines = [f"The weights were {done.reason}.", ""]
    if done.judgements:
        lines += [
            f"Learned from {done.learned} jobs, judged on the {done.judged} after them.",
            "",
            "| | mean turnaround s | makespan s |",
            "| --- | --- | --- |",
        ]
        for name, each in done.judgements.items():
            lines.append(f"| {name} | {_write(each.turnaround_s)} | {_write(each.makespan_s)} |")
    if done.weights and not applied:
        lines += ["", f"To use them: `gpu-flows policy set rl --option weights={done.weights}`"]
    return "\n".join(lines)


def _write(seconds: float) -> str:
    return f"{seconds:,.1f}" if math.isfinite(seconds) else ""
