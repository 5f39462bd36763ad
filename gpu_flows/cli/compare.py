"""`gpu-flows compare`: policies side by side on the same jobs and cluster, against the first of them
and against the best there could be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.text import Text

from gpu_flows.cli import parts
from gpu_flows.cli.findings import (
    blame,
    called,
    draw_caveats,
    draw_left_out,
    draw_table,
    draw_troubles,
    matters,
    shown,
)
from gpu_flows.cli.inputs import Inputs
from gpu_flows.cli.parts import JsonOption
from gpu_flows.cli.problem import BadInput, inert
from gpu_flows.cli.simulate import conduct
from gpu_flows.cli.study import Study, asks

# Metric -> its title, and whether more of it is better.
METRICS = {
    "finished": ("finished", True),
    "makespan_s": ("makespan", False),
    "avg_turnaround_s": ("turnaround", False),
    "p50_turnaround_s": ("p50", False),
    "p90_turnaround_s": ("p90", False),
    "p99_turnaround_s": ("p99", False),
    "avg_queueing_s": ("queueing", False),
    "utilization": ("utilization", True),
    "allocation": ("allocation", True),
    "preemptions": ("preempted", False),
    "moves": ("moved", False),
    "deadlines_missed": ("missed", False),
}
DRAWN = (
    *("finished", "makespan_s", "avg_turnaround_s", "p50_turnaround_s", "p90_turnaround_s"),
    *("p99_turnaround_s", "avg_queueing_s", "utilization", "preemptions"),
)
SPARE = ("finished", "p90")  # columns that a terminal may be too narrow for
BOUNDS = {"makespan_s": "lower_bound_makespan_s", "avg_turnaround_s": "lower_bound_turnaround_s"}


@parts.examples(
    "gpu-flows compare --trace jobs.csv --cluster 15x4 --policies fifo,srtf,tiresias",
    "gpu-flows compare --trace jobs.csv --cluster 15x4 --policies all --best avg_turnaround_s",
    "gpu-flows compare --workload bursty:jobs=2000 --cluster 8x8 --policies fifo:placement=any,fifo --json",
)
@asks
def compare(
    study: Study,
    best: Annotated[
        str, typer.Option(metavar="METRIC", help="Sort by this metric, and name the best policy.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Run a workload under several policies, by default under all that apply, and set them side by side.

    Each figure is followed by its change against the first policy, and by how far it is above what no
    policy could do better. Everything else is as in `gpu-flows simulate`.
    """
    if best and best not in METRICS:
        raise BadInput(f"There is no metric {best!r}. There are: {', '.join(METRICS)}.")
    study = replace(study, policy=["all"]) if study.policy is None else study
    found, told, unwritten = conduct(study)
    compared = [{**each, "change": _changes(each, told[0]), "above_bound": _gaps(each)} for each in told]
    ranking = sorted(compared, key=lambda each: _merit(each, best)) if best else compared
    winner = ranking[0]["policy"] if best and not ranking[0]["policy_error"] else None
    if as_json:
        answer = {"baseline": told[0]["policy"], "best": winner, "policies": ranking}
        parts.print_json({**answer, "left_out": found.left_out})
    else:
        _draw(found, ranking, told[0], best if winner else "")
    blame(told, unwritten)


def _changes(each: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[str, float | None]:
    """By which part of the baseline's figure each metric differs from it: 0.1 is a tenth more. None where
    a policy failed, for the figures are not its own."""
    if each["policy_error"] or baseline["policy_error"]:
        return dict.fromkeys(METRICS)
    return {metric: _relative(each[metric], baseline[metric]) for metric in METRICS}


def _gaps(each: Mapping[str, Any]) -> dict[str, float | None]:
    """How far above the lower bound it is: 0.1 is a tenth above it. None where not all jobs finished,
    for a bound is about all of them, and where the policy failed."""
    if each["unfinished"] or each["policy_error"]:
        return dict.fromkeys(BOUNDS)
    return {metric: _relative(each[metric], each[bound]) for metric, bound in BOUNDS.items()}


def _relative(value: float, to: float) -> float | None:
    return value / to - 1 if to else 0.0 if value == to else None


def _merit(each: Mapping[str, Any], metric: str) -> tuple[bool, float]:
    """To sort by, the best first; whoever failed, left jobs behind or has no figure comes last."""
    value = float(each[metric])
    trouble = bool(each["policy_error"] or each["unfinished"] or value != value)
    return trouble, -value if METRICS[metric][1] else value


# -- drawing ----------------------------------------------------------------------------------


def _draw(
    found: Inputs, ranking: Sequence[Mapping[str, Any]], baseline: Mapping[str, Any], best: str
) -> None:
    where = f"{found.study.cluster} ({baseline['devices']:,} devices)"
    print(inert(f"{found.trace} on {where}, times in seconds, changes against {baseline['policy']}."))
    print()
    metrics = [*DRAWN, *matters(ranking)]
    columns = ["policy", *(METRICS[metric][0] for metric in metrics)]
    columns += [f"{METRICS[metric][0]} above bound" for metric in BOUNDS]
    rows = [_row(each, metrics, each["policy"] == baseline["policy"]) for each in ranking]
    draw_table(columns, rows, SPARE)
    draw_left_out(found)
    if best:
        value = shown(best, ranking[0][best])
        print()
        print(inert(f"{ranking[0]['policy']} has the best {METRICS[best][0]}: {value}."))
    if baseline["optimum_makespan_s"] is not None:
        print()
        label = "Best possible" if baseline["optimum_proven"] else "Best schedule found"
        span, turnaround = (shown("", baseline[f"optimum_{each}_s"]) for each in ("makespan", "turnaround"))
        print(f"{label} without preemption: makespan {span}, turnaround {turnaround}.")
    draw_troubles(ranking)
    draw_caveats(ranking)


def _row(each: Mapping[str, Any], metrics: Sequence[str], is_baseline: bool) -> list[object]:
    cells: list[object] = [called(each)]
    for metric in metrics:
        value, change = str(shown(metric, each[metric]) or "-"), each["change"][metric]
        if is_baseline or not change or change != change:
            cells.append(value)
        else:
            style = "green" if (change > 0) == METRICS[metric][1] else "red"
            cells.append(Text.assemble(inert(value), "  ", (f"{100 * change:+.1f}%", style)))
    cells += [None if gap is None else f"{100 * gap:.1f}%" for gap in each["above_bound"].values()]
    return cells
