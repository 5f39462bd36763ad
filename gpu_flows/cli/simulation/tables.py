"""Printing the results of `simulate` and `compare` for people."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from gpu_flows.cli import output
from gpu_flows.cli.escaping import escape
from gpu_flows.cli.simulation.inputs import Inputs
from gpu_flows.cli.simulation.results import Result
from gpu_flows.schedulers.simulation.summary import IMPOSSIBLE, UNFINISHED

TROUBLES_SHOWN = 5
METRICS = (
    *("finished", "makespan_s", "avg_turnaround_s", "p50_turnaround_s", "p90_turnaround_s"),
    *("p99_turnaround_s", "avg_queueing_s", "utilization_percent", "preemptions"),
)
_TITLES = {
    "makespan_s": "makespan",
    "avg_turnaround_s": "turnaround",
    "avg_queueing_s": "queueing",
    "preemptions": "preempted",
    "moves": "moved",
    "deadlines_missed": "missed",
    "ooms": "OOMs",
    "memory_use_percent": "memory",
    "comm_percent": "communication",
    "wall_s": "took",
}


def find_title(metric: str) -> str:
    """The title of a metric's column: `makespan_s` is `makespan`, `p90_turnaround_s` is `p90`."""
    return _TITLES.get(metric, metric.removesuffix("_turnaround_s").removesuffix("_percent"))


def choose_extra_metrics(results: Sequence[Result]) -> list[str]:
    """The metrics that get a column only where some result has a value for them."""
    conditions = {
        "moves": "moves",
        "ooms": "ooms",
        "memory_use_percent": "memory_use_percent",
        "deadlines_missed": "deadlines",
        "comm_percent": "comm_percent",
    }
    return [
        metric
        for metric, condition in conditions.items()
        if any((value := result[condition]) and value == value for result in results)
    ]


def show_results(inputs: Inputs, results: Sequence[Result]) -> None:
    print_heading(inputs, results[0], "times in seconds")
    metrics = [*METRICS, *choose_extra_metrics(results), "wall_s"]
    rows = [
        [name_policy(result), *(format_value(metric, result[metric]) for metric in metrics)]
        for result in results
    ]
    for limits in dict.fromkeys(map(_list_limits, results)):
        for label, makespan_s, turnaround_s in limits:
            values = {"makespan_s": makespan_s, "avg_turnaround_s": turnaround_s}
            cells = (format_value(metric, values[metric]) if metric in values else "" for metric in metrics)
            rows.append([label, *cells])
    show_table(["policy", *map(find_title, metrics)], rows)
    show_left_out(inputs)
    show_unfinished(results)
    show_caveats(results)


Limit = tuple[str, float, float]


def _list_limits(result: Result) -> tuple[Limit, ...]:
    """What no policy can beat, and what no policy without preemption can beat."""
    bound = ("lower bound", result["lower_bound_makespan_s"], result["lower_bound_turnaround_s"])
    if result["optimum_makespan_s"] is None:
        return (bound,)
    label = "optimum" if result["optimum_proven"] else "best found"
    best = f"{label} (no preemption)", result["optimum_makespan_s"], result["optimum_turnaround_s"]
    return bound, best


def print_heading(inputs: Inputs, result: Result, units: str) -> None:
    cluster = f"{inputs.options.cluster} ({result['devices']:,} devices)"
    print(escape(f"{inputs.trace} on {cluster}, {units}."))
    if result["network"]:
        congestion = f", congestion {result['congestion']:g}" if result["congestion"] != 1 else ""
        print(escape(f"Network: {result['network']}{congestion}."))
    print()


def name_policy(result: Result) -> str:
    return f"{result['policy']} (failed)" if result["policy_error"] else str(result["policy"])


def format_value(metric: str, value: Any) -> object:
    """A figure with as many digits as people need; None where there is none."""
    if value is None or value != value:
        return None
    if metric.endswith("_percent"):
        return f"{value:.1f}%"
    if isinstance(value, float):
        return f"{value:,.2f}" if value < 10 else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else value


def show_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], optional: Collection[str] = ()) -> None:
    """Print a row for each policy, without the `optional` columns if the terminal is too narrow.

    If that is still too wide, print a column for each policy; and if that is too wide, a list for each.
    """
    transposed = list(zip(columns, *rows, strict=True))
    needed, *shorter = zip(*(column for column in transposed if column[0] not in optional), strict=True)
    for heads, body in ((columns, rows), (needed, shorter), (transposed[0], transposed[1:])):
        table = output.make_table(heads, body, right=heads[1:])
        if output.fits(table):
            output.show(table)
            return
    for row in rows:
        output.show(output.make_value_list(*zip(columns, row, strict=True)))
        print()


def show_left_out(inputs: Inputs) -> None:
    """Print the policies that `all` leaves out, and why."""
    by_reason: dict[str, list[str]] = {}
    for name, why in inputs.left_out.items():
        by_reason.setdefault(why, []).append(name)
    if by_reason:
        print()
        groups = "; ".join(f"{', '.join(names)} ({why})" for why, names in by_reason.items())
        print(escape(f"Left out: {groups}."))


def show_unfinished(results: Sequence[Result]) -> None:
    """Print the first of the jobs that did not finish; once for policies with the same ones."""
    alike: dict[str, list[Result]] = {}
    for result in results:
        if result[IMPOSSIBLE] + result[UNFINISHED]:
            key = f"{result[IMPOSSIBLE]} {result[UNFINISHED]} {result['troubles']}"
            alike.setdefault(key, []).append(result)
    for first, *others in alike.values():
        missing = first[IMPOSSIBLE] + first[UNFINISHED]
        names = ", ".join(result["policy"] for result in (first, *others))
        print()
        print(escape(f"Not finished under {names}: {missing:,} of {first['jobs']:,} jobs"))
        troubles = first["troubles"][:TROUBLES_SHOWN]
        output.show(output.make_table(["job", "why"], [[job["job_id"], job["reason"]] for job in troubles]))
        if missing > len(troubles):
            print("...  (--jobs-out FILE has them all)")


def show_caveats(results: Sequence[Result]) -> None:
    """Print each caveat once, with the policies that it applies to unless it applies to all."""
    print("\nWhat this does not show")
    policies: dict[str, list[str]] = {}
    for result in results:
        for caveat in result["caveats"]:
            policies.setdefault(caveat, []).append(result["policy"])
    for caveat, names in policies.items():
        prefix = f"{', '.join(names)}: " if len(names) < len(results) else ""
        print(escape(f"- {prefix}{caveat}"))
