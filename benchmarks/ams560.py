"""The AMS-560 study: its four learning tasks under heavy load, classical policies against the learned one.

    python benchmarks/ams560.py [--runs 10] [--live] [--warehouse FILE] [--charts FOLDER] [--write FILE]

The project (github.com/gabbyvaillant/scheduling-algo) set FCFS and Round Robin against a learned scheduler,
on four tasks that it measured: cnn, lstm, matrix multiplication, xgboost. Here they arrive twice as fast as
the devices can serve them. Simulated: on one GPU as there, on 12 GPUs with tasks of 1 to 4 GPUs, and on 16
GPUs of unlike nodes. A job that was preempted needs 3 s more. Prints means and 95% intervals over workloads.

With --live, the recurring deployment `benchmark` also runs its schedule `ams560` on a private server: the
tasks really train in torch, in processes on a simulated cluster of 2 x 2 GPUs. Takes up to five minutes.

--warehouse records the live rounds, and the first workload of each simulated case, as experiments. --write
puts the tables between the marks of a Markdown file. Goals are those of the policy `rl`, if it is installed:
a higher utilization and 20% less turnaround than fifo and round_robin, no more turnaround than tiresias, and
on no workload a makespan that is more than 10% longer than that of fifo.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from ams560_live import LIVE_COLUMNS, run_live
from common import Goal, log_progress, make_parser, report, run_benchmark, save_figure, write_between
from schedtune import interval

from gpu_flows.analytics.figures.intervals import draw_groups
from gpu_flows.analytics.simulated_facts import Experiment, write_simulations
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.policy import make_policy, policies
from gpu_flows.schedulers.simulation.bounds import bounds
from gpu_flows.schedulers.simulation.conditions import Conditions
from gpu_flows.schedulers.simulation.generators import generate
from gpu_flows.schedulers.simulation.simulator import Simulation, simulate
from gpu_flows.schedulers.simulation.summary import Summary, summarize

FIRST_SEED = 5600  # no policy was trained or tuned on these workloads
RESTART_S = 3.0
FIFO, ROBIN, RL = "fifo (FCFS)", "round_robin", "rl"
LAS, TIRESIAS, GITTINS = "tiresias", "tiresias, limits 10 and 60", "tiresias, gittins, the same"


class Case(NamedTuple):
    """A cluster and the jobs on it."""

    cluster: str
    workload: str


CASES = {
    "one GPU": Case("1x1", "ams560:jobs=200"),
    "12 GPUs, tasks of 1 to 4": Case("3x4", "ams560:jobs=400,devices=12,wide=true"),
    "unlike nodes, tasks of 1 to 4": Case("1x8+1x4+2x2", "ams560:jobs=400,devices=16,wide=true"),
}
SCHEDULERS: dict[str, tuple[str, dict[str, Any]]] = {
    FIFO: ("fifo", {}),
    "fifo, skip": ("fifo", {"skip": True}),
    ROBIN: ("round_robin", {}),
    "srtf": ("srtf", {}),
    LAS: ("tiresias", {}),
    TIRESIAS: ("tiresias", {"limits": [10.0, 60.0]}),
    GITTINS: ("tiresias", {"limits": [10.0, 60.0], "discipline": "gittins", "quantum": 10.0}),
    RL: ("rl", {}),
    "rl, milp": ("rl", {"placement": "milp", "learned_placement": False}),
}
COLUMNS = {  # column -> figure of the summary, scale, decimals
    "utilization %": ("utilization", 100, 1),
    "makespan s": ("makespan_s", 1, 0),
    "mean turnaround s": ("avg_turnaround_s", 1, 0),
    "p90 s": ("p90_turnaround_s", 1, 0),
    "preemptions": ("preemptions", 1, 0),
}

Results = Mapping[str, Sequence[Summary]]  # by scheduler, one for each workload


def main() -> int:
    args = parse_arguments()
    schedulers = {label: choice for label, choice in SCHEDULERS.items() if choice[0] in policies()}
    for label in SCHEDULERS.keys() - schedulers.keys():
        print(f"{label}: policy {SCHEDULERS[label][0]!r} is not installed, so it is left out.")
    results = {name: run_case(name, case, schedulers, args) for name, case in CASES.items()}
    tables = {"simulated": [line for name in CASES for line in make_table(name, results[name])]}
    groups = {name: turnarounds(rows) for name, rows in results.items()}
    if args.live:
        rows = run_live(args.warehouse)
        tables["live"] = make_live_table(rows)
        groups["live, 2 x 2 GPUs"] = {
            row[0]: (row[LIVE_COLUMNS.index("avg_turnaround_s")], 0.0) for row in rows
        }
    for mark, lines in tables.items():
        print("\n".join(["", *lines]))
        if args.write:
            write_between(args.write, mark, lines)
    if args.charts:
        text = "Mean turnaround in seconds, logarithmic; lines are 95% intervals"
        save_figure(
            args.charts, "ams560", "AMS-560: turnaround under heavy load", draw_groups(groups, text, (RL,))
        )
    goals = [goal for name, rows in results.items() if RL in rows for goal in goals_of(name, rows)]
    missed = report(goals, {"tables": tables}, args.json)
    return missed if args.check else 0


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__ or "", 10, "workloads of each simulated case")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, metavar="N", help="of the workloads")
    parser.add_argument("--live", action="store_true", help="also run the tasks on a live pool")
    parser.add_argument("--warehouse", type=Path, metavar="FILE", help="record the experiments in this file")
    parser.add_argument("--charts", type=Path, metavar="FOLDER", help="write the figure as plotly JSON")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into docs/ams560.md")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    return parser.parse_args()


# -- simulated --------------------------------------------------------------------------------


def run_case(
    name: str, case: Case, schedulers: Mapping[str, tuple[str, dict[str, Any]]], args: argparse.Namespace
) -> Results:
    log_progress(f"{name}: {len(schedulers)} schedulers, {args.runs} workloads")
    results: dict[str, list[Summary]] = {label: [] for label in schedulers}
    for number in range(args.runs):
        arrivals, nodes = generate(case.workload, args.first_seed + number), declare(case.cluster)
        simulations: dict[str, Simulation] = {}
        for label, (policy, options) in schedulers.items():
            chosen = make_policy(policy, options)
            simulations[label] = simulate(arrivals, nodes, chosen, Conditions(restart_s=RESTART_S))
            summary = summarize(simulations[label])
            if summary.policy_error or summary.unfinished:
                raise SystemExit(f"{label}: {summary.unfinished} jobs unfinished. {summary.policy_error}")
            results[label].append(summary)
        if number == 0:
            limits = bounds(arrivals, nodes)
            log_progress(
                f"no policy can be below a mean turnaround of {limits.mean_turnaround_s:,.0f} s there"
            )
            if args.warehouse:
                title = f"ams560 {name}"
                about = {"cluster": case.cluster, "workload": case.workload, "seed": args.first_seed}
                experiment = Experiment.of(title, about, arrivals)
                write_simulations(args.warehouse, experiment, simulations, time.time())
    return results


def turnarounds(rows: Results) -> dict[str, tuple[float, float]]:
    return {label: interval([run.avg_turnaround_s for run in runs]) for label, runs in rows.items()}


def make_table(name: str, rows: Results) -> list[str]:
    """Return a Markdown table, the shortest mean turnaround first."""
    case, title = CASES[name], name[0].upper() + name[1:]
    order = sorted(rows, key=lambda label: fmean(run.avg_turnaround_s for run in rows[label]))
    lines = [
        f"**{title}** (cluster `{case.cluster}`, `{case.workload}`, {len(rows[FIFO])} workloads)",
        "",
        f"| policy | {' | '.join(COLUMNS)} | turnaround against FCFS |",
        f"|---{'|--:' * (len(COLUMNS) + 1)}|",
    ]
    for label in order:
        cells = []
        for figure, scale, decimals in COLUMNS.values():
            mean, half = interval([scale * getattr(run, figure) for run in rows[label]])
            cells.append(f"{mean:,.{decimals}f} ± {half:,.{decimals}f}")
        pairs = zip(rows[label], rows[FIFO], strict=True)
        mean, half = interval(
            [100 * (ours.avg_turnaround_s / fifo.avg_turnaround_s - 1) for ours, fifo in pairs]
        )
        cells.append(f"{mean:+.0f} ± {half:.0f}%" if label != FIFO else "")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return [*lines, ""]


def goals_of(name: str, rows: Results) -> list[Goal]:
    """Return the goals of the learned policy: ratios of means, and the worst ratio of all workloads."""

    def ratio(figure: str, ours: str, theirs: str) -> float:
        return fmean(getattr(run, figure) for run in rows[ours]) / fmean(
            getattr(run, figure) for run in rows[theirs]
        )

    goals = []
    for other in (FIFO, ROBIN):
        goals.append(Goal(f"{name}: turnaround, part of {other}", ratio("avg_turnaround_s", RL, other), 0.8))
        goals.append(
            Goal(f"{name}: utilization of {other}, part of ours", ratio("utilization", other, RL), 1)
        )
    best = min((LAS, TIRESIAS, GITTINS), key=lambda label: ratio("avg_turnaround_s", label, FIFO))
    goals.append(Goal(f"{name}: turnaround, part of {best}", ratio("avg_turnaround_s", RL, best), 1))
    pairs = zip(rows[RL], rows[FIFO], strict=True)
    worst = max(ours.makespan_s / fifo.makespan_s for ours, fifo in pairs)
    goals.append(Goal(f"{name}: makespan, worst part of fifo", worst, 1.1))
    return goals


# -- live -------------------------------------------------------------------------------------


def make_live_table(rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = [f"| {' | '.join(LIVE_COLUMNS)} |", f"|---{'|--:' * (len(LIVE_COLUMNS) - 1)}|"]
    for row in rows:
        cells = [f"{value:.1f}" if isinstance(value, float) else str(value) for value in row]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    run_benchmark(main)
