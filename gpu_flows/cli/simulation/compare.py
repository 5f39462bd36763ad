"""`gpu-flows compare`: policies on the same workload and cluster, relative to the first of them and to the
best possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer
from rich.text import Text

from gpu_flows.cli import output
from gpu_flows.cli.errors import BadInput
from gpu_flows.cli.escaping import escape
from gpu_flows.cli.options import JsonOption, accepts, examples
from gpu_flows.cli.simulation import tables
from gpu_flows.cli.simulation.inputs import Inputs
from gpu_flows.cli.simulation.options import SimulationOptions
from gpu_flows.cli.simulation.results import Result, raise_failures
from gpu_flows.cli.simulation.simulate import run_simulation

METRICS = (
    *("finished", "makespan_s", "avg_turnaround_s", "p50_turnaround_s", "p90_turnaround_s"),
    *("p99_turnaround_s", "avg_queueing_s", "utilization_percent", "allocation_percent", "preemptions"),
    *("moves", "ooms", "memory_use_percent", "deadlines_missed", "avg_comm_s", "comm_percent"),
)
HIGHER_IS_BETTER = {"finished", "utilization_percent", "allocation_percent", "memory_use_percent"}
OPTIONAL_COLUMNS = ("finished", "p90")  # left out where the terminal is too narrow
BOUNDS = {"makespan_s": "lower_bound_makespan_s", "avg_turnaround_s": "lower_bound_turnaround_s"}


@examples(
    "gpu-flows compare --trace jobs.csv --cluster 15x4 --policies fifo,srtf,tiresias",
    "gpu-flows compare --trace jobs.csv --cluster 15x4 --policies all --best avg_turnaround_s",
    "gpu-flows compare --trace jobs.csv --cluster 16x8@4 --network realistic --congestion 2",
    "gpu-flows compare --workload bursty:jobs=2000 --cluster 8x8 --policies fifo:placement=any,fifo --json",
)
@accepts(SimulationOptions)
def compare(
    options: SimulationOptions,
    best: Annotated[
        str, typer.Option(metavar="METRIC", help="Sort by this metric, and name the best policy.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Run a workload under several policies, by default under all that apply, and compare them.

    Each figure is followed by its change relative to the first policy, and by how far it is above the
    lower bound that no policy can beat. Everything else is as in `gpu-flows simulate`.
    """
    if best and best not in METRICS:
        raise BadInput(f"There is no metric {best!r}. There are: {', '.join(METRICS)}.")
    options = replace(options, policy=["all"]) if options.policy is None else options
    inputs, results, unwritten = run_simulation(options)
    baseline = results[0]
    compared: list[Result] = [
        {**result, "change": _compute_changes(result, baseline), "above_bound": _compute_gaps(result)}
        for result in results
    ]
    if best:
        compared.sort(key=lambda result: _sort_key(result, best))
    winner = compared[0]["policy"] if best and not compared[0]["policy_error"] else None
    if as_json:
        comparison = {"baseline": baseline["policy"], "best": winner, "policies": compared}
        output.print_json({**comparison, "left_out": inputs.left_out})
    else:
        _show(inputs, compared, baseline, best if winner else "")
    raise_failures(results, unwritten)


def _compute_changes(result: Result, baseline: Result) -> dict[str, float | None]:
    """The relative change of each metric: 0.1 is a tenth more than the baseline. None where a policy failed,
    because its figures are not its own."""
    if result["policy_error"] or baseline["policy_error"]:
        return dict.fromkeys(METRICS)
    return {metric: _relative_change(result[metric], baseline[metric]) for metric in METRICS}


def _compute_gaps(result: Result) -> dict[str, float | None]:
    """How far the result is above each lower bound: 0.1 is a tenth above it. None where the policy failed,
    and where jobs did not finish, because a bound is about all of them."""
    if result["unfinished"] or result["policy_error"]:
        return dict.fromkeys(BOUNDS)
    return {metric: _relative_change(result[metric], result[bound]) for metric, bound in BOUNDS.items()}


def _relative_change(value: float, base: float) -> float | None:
    return value / base - 1 if base else 0.0 if value == base else None


def _sort_key(result: Result, metric: str) -> tuple[bool, float]:
    """Sorts the best first, and last the policies that failed, left jobs unfinished or have no figure."""
    value = float(result[metric])
    is_last = bool(result["policy_error"] or result["unfinished"] or value != value)
    return is_last, -value if metric in HIGHER_IS_BETTER else value


# -- printing ---------------------------------------------------------------------------------


def _show(inputs: Inputs, ranking: Sequence[Result], baseline: Result, best: str) -> None:
    tables.print_heading(inputs, baseline, f"times in seconds, changes against {baseline['policy']}")
    metrics = [*tables.METRICS, *tables.choose_extra_metrics(ranking)]
    columns = ["policy", *map(tables.find_title, metrics)]
    columns += [f"{tables.find_title(metric)} above bound" for metric in BOUNDS]
    rows = [_draw_row(result, metrics, result["policy"] == baseline["policy"]) for result in ranking]
    tables.show_table(columns, rows, OPTIONAL_COLUMNS)
    tables.show_left_out(inputs)
    if best:
        value = tables.format_value(best, ranking[0][best])
        print()
        print(escape(f"{ranking[0]['policy']} has the best {tables.find_title(best)}: {value}."))
    if baseline["optimum_makespan_s"] is not None:
        print()
        label = "Best possible" if baseline["optimum_proven"] else "Best schedule found"
        makespan, turnaround = (
            tables.format_value("", baseline[f"optimum_{name}_s"]) for name in ("makespan", "turnaround")
        )
        print(f"{label} without preemption: makespan {makespan}, turnaround {turnaround}.")
    tables.show_unfinished(ranking)
    tables.show_caveats(ranking)


def _draw_row(result: Result, metrics: Sequence[str], is_baseline: bool) -> list[object]:
    cells: list[object] = [tables.name_policy(result)]
    for metric in metrics:
        value, change = str(tables.format_value(metric, result[metric]) or "-"), result["change"][metric]
        if is_baseline or not change or change != change:
            cells.append(value)
        else:
            style = "green" if (change > 0) == (metric in HIGHER_IS_BETTER) else "red"
            shown = ("0.0%", "") if abs(100 * change) < 0.05 else (f"{100 * change:+.1f}%", style)
            cells.append(Text.assemble(escape(value), "  ", shown))
    cells += [None if gap is None else f"{100 * gap:.1f}%" for gap in result["above_bound"].values()]
    return cells
