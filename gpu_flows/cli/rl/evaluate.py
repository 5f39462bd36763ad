"""`gpu-flows rl evaluate`: compare the learned policy with classical ones on workloads it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer

from gpu_flows.cli import output
from gpu_flows.cli.errors import BadInput
from gpu_flows.cli.options import JsonOption, examples
from gpu_flows.cli.rl.inputs import ClusterOption, TraceOption, WorkloadOption, make_curriculum
from gpu_flows.learning.judging import (
    EVALUATION_SEED,
    Evaluation,
    PolicyChoice,
    draw_episodes,
    mean_ratio,
)
from gpu_flows.learning.judging import (
    evaluate as evaluate_policies,
)
from gpu_flows.schedulers.learning.weights import WeightsError, load, pretrained

POLICIES: dict[str, PolicyChoice] = {
    "fifo": ("fifo", {}),
    "round_robin": ("round_robin", {}),
    "srtf": ("srtf", {}),
    "tiresias": ("tiresias", {}),
    "tiresias, gittins": ("tiresias", {"discipline": "gittins"}),
}


@examples(
    "gpu-flows rl evaluate",
    "gpu-flows rl evaluate --weights my.npz --workload poisson:sigma=2 --cluster 8x8 --episodes 10",
    "gpu-flows rl evaluate --trace jobs.csv --cluster 4x8 --json",
)
def evaluate(
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Default: those of the package.")
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="How many workloads to draw.")] = 12,
    seed: Annotated[int, typer.Option(help="Draws other workloads.")] = EVALUATION_SEED,
    workloads: WorkloadOption = None,
    traces: TraceOption = None,
    clusters: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate unseen workloads, or windows of your traces, under `rl` and under classical policies.

    The table shows the mean turnaround and the makespan as parts of FIFO's (geometric means over the
    workloads), the utilization, and on how many workloads each policy had the lowest turnaround. srtf knows
    the true durations; the others know none.
    """
    try:
        header = (load(weights) if weights else pretrained()).header
    except WeightsError as error:
        raise BadInput(str(error)) from None
    options = {"weights": str(weights)} if weights else {}
    policies = {**POLICIES, "rl": ("rl", options)}
    drawn = draw_episodes(make_curriculum(workloads, traces, clusters), episodes, seed)
    found = evaluate_policies(list(drawn), policies)
    if as_json:
        output.print_json({"weights": asdict(header), "workloads": [asdict(each) for each in found]})
        return
    print(f"Weights: seed {header.seed}, {header.steps:,} decisions; made by `{header.command}`.")
    columns = ["policy", "turnaround", "makespan", "utilization", "lowest turnaround"]
    rows = [_make_row(label, found) for label in policies]
    output.show(output.make_table(columns, rows, right=columns[1:]))


def _make_row(label: str, found: Sequence[Evaluation]) -> list[Any]:
    turnaround, makespan = (
        mean_ratio([each[label] for each in figures], [each["fifo"] for each in figures])
        for figures in ([each.turnaround_s for each in found], [each.makespan_s for each in found])
    )
    blind = [{k: v for k, v in each.turnaround_s.items() if k != "srtf"} for each in found]
    won = "" if label == "srtf" else sum(min(each, key=lambda k: each[k]) == label for each in blind)
    utilization = fmean(each.utilization[label] for each in found)
    return [label, f"{turnaround:.3f}", f"{makespan:.3f}", f"{utilization:.1%}", won]
