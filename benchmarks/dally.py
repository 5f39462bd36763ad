"""The Dally study: policies that place by network, on generated and public workloads, under two networks.

    python benchmarks/dally.py [--trace FILE] [--seeds 100-104,200-209] [--schedulers NAME ...]
                               [--congestion 1] [--charts FOLDER] [--check]

Workloads: 500 jobs of six models at time 0 on 512 GPUs, as in Dally's batch; 100 jobs with Poisson arrivals
on 128 GPUs; and with --trace stretches of 1,000 jobs of a public trace, with models drawn by the seed.
Networks: the table `dally`, which is that of its simulator, and `realistic`. Leases are 3,600 s, as in the
re-run of Dally's program whose figures are printed beside; a restart takes 30 s, except under gandiva, which
moves jobs for nothing. Prints means and 95% intervals over the seeds.

Goals, of `patient` on each workload, by the means over the seeds: at least 5% less mean turnaround than
Dally's manual timers, 15% less than its tuned ones, and a makespan that is at most 1% longer than with either
(it is the end of a single job). With --check the exit code is 1 if one is missed.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from common import Goal, log_progress, positive_int, report, run_benchmark, save_figure, seed_list
from dally_baselines import PACKED, DallysTiresias, Gandiva, PackingGandiva, SkewAwareTiresias, let_pack
from dally_workloads import BATCH, GENERATED, Workload, read_trace
from schedtune import interval

from gpu_flows.analytics.figures.intervals import draw_groups
from gpu_flows.schedulers.network.tables import load_network
from gpu_flows.schedulers.policy import Policy, make_policy
from gpu_flows.schedulers.simulation.conditions import Conditions
from gpu_flows.schedulers.simulation.estimates import parse_estimates
from gpu_flows.schedulers.simulation.simulator import simulate
from gpu_flows.schedulers.simulation.summary import summarize

TUNED, MANUAL, OURS = "dally, tuned", "dally, manual 12/24 h", "patient"
TIRESIAS, GANDIVA, PACKING = "tiresias, Dally's", "gandiva-like", "gandiva, packing"
SCHEDULERS: dict[str, Callable[[], Policy]] = {
    GANDIVA: Gandiva,
    PACKING: PackingGandiva,
    TIRESIAS: DallysTiresias,
    "tiresias, skew-aware": SkewAwareTiresias,
    "tiresias, topology": partial(make_policy, "tiresias", {"placement": "topology"}),
    "fifo, packed": partial(make_policy, "fifo", {"skip": True, "placement": "pack"}),
    "lwf_kappa": partial(make_policy, "lwf_kappa"),
    "dally, no wait": partial(make_policy, "dally", {"timers": "none"}),
    "dally, consolidated": partial(make_policy, "dally", {"timers": "consolidated"}),
    TUNED: partial(make_policy, "dally", {"timers": "tuned"}),
    MANUAL: partial(make_policy, "dally", {"timers": "manual"}),
    OURS: partial(make_policy, "patient"),
}
WITH_ERRORS = {
    "patient, noisy:0.5": "noisy:0.5",
    "patient, noisy:1": "noisy:1",
    "patient, no durations": "stated",
}
DALLYS = {MANUAL: 5, TUNED: 15}  # how much less turnaround our policy must reach, in percent
NETWORKS = ("dally", "realistic")
RERUN = {  # Dally's own program on its own 500 jobs: makespan, turnaround, queueing, communication (s)
    TIRESIAS: (34_308_297, 7_014_676, 6_834_671, 127_875),
    TUNED: (14_866_603, 4_957_045, 4_812_834, 92_082),
    MANUAL: (12_247_790, 4_513_764, 4_386_734, 74_900),
}
PUBLISHED = (
    "Dally's paper: makespan up to -69%, turnaround up to -83%, communication up to -98% when congested"
)


class Figures(NamedTuple):
    """The outcome of one simulation, in seconds."""

    makespan: float
    turnaround: float
    queueing: float
    communication: float  # lost to the network by a job


def run(workload: Workload, scheduler: str, network: str, congestion: float, seed: int) -> Figures:
    packs = scheduler == PACKING
    conditions = Conditions(
        network=load_network(network, congestion),
        interference=PACKED if packs else 0.0,
        restart_s=0.0 if scheduler in (GANDIVA, PACKING) else 30.0,
    )
    arrivals = let_pack(workload.arrivals, workload.nodes) if packs else workload.arrivals
    estimates = parse_estimates(WITH_ERRORS.get(scheduler, "oracle"), seed)
    policy = SCHEDULERS[OURS if scheduler in WITH_ERRORS else scheduler]()
    found = simulate(arrivals, workload.nodes, policy, conditions, estimates)
    summary = summarize(found)
    if found.policy_error or summary.unfinished:
        raise RuntimeError(f"{scheduler}: {summary.unfinished} jobs unfinished. {found.policy_error}")
    communication = statistics.fmean(job.comm_s for job in found.jobs)
    return Figures(summary.makespan_s, summary.avg_turnaround_s, summary.avg_queueing_s, communication)


Results = Mapping[str, Sequence[Figures]]  # by scheduler, one for each seed


def change(ours: Sequence[Figures], base: Sequence[Figures], field: str) -> tuple[float, float]:
    """Return the mean change of a figure in percent, seed by seed, and half of its interval."""
    pairs = zip(ours, base, strict=True)
    return interval([100 * (getattr(a, field) / getattr(b, field) - 1) for a, b in pairs])


def show(name: str, network: str, results: Results) -> dict[str, Any]:
    """Print the table of a workload under a network, and return its figures."""
    base = TIRESIAS if TIRESIAS in results else next(iter(results))
    print(f"\n{name}; network: {network}")
    print(
        f"{'':<24}{'makespan s':>25}{'turnaround s':>24}{'queueing s':>13}{'comm. s/job':>13}"
        f"{f'makespan, turnaround against {base}':>50}"
    )
    figures: dict[str, Any] = {}
    for scheduler, runs in results.items():
        columns = {field: interval([getattr(each, field) for each in runs]) for field in Figures._fields}
        against = {field: change(runs, results[base], field) for field in ("makespan", "turnaround")}
        print(
            f"{scheduler:<24}{columns['makespan'][0]:>13,.0f} ±{columns['makespan'][1]:>9,.0f}"
            f"{columns['turnaround'][0]:>13,.0f} ±{columns['turnaround'][1]:>9,.0f}"
            f"{columns['queueing'][0]:>13,.0f}{columns['communication'][0]:>13,.0f}"
            f"{against['makespan'][0]:>+28.1f}%{against['turnaround'][0]:>+20.1f}%"
        )
        figures[scheduler] = {**columns, "against": base, "change_percent": against}
    return figures


def show_ours(results: Results) -> None:
    """Print how our policy compares with Dally: the change of the means, and the mean change by seed."""
    for other in DALLYS:
        for field in ("turnaround", "makespan"):
            percent, half = change(results[OURS], results[other], field)
            of_means = f"{100 * (part_of(results, other, field) - 1):+.1f}% of the mean"
            print(f"{OURS} against {other}: {field} {of_means}, {percent:+.1f} ± {half:.1f}% by seed")


def show_rerun() -> None:
    """Print the figures of Dally's own program, in the columns of `show`."""
    print(f"\nDally's own program on its own 500 jobs (re-run); {PUBLISHED}")
    base = RERUN[TIRESIAS]
    for scheduler, row in RERUN.items():
        print(
            f"{scheduler:<24}{row[0]:>25,}{row[1]:>24,}{row[2]:>13,}{row[3]:>13,}"
            f"{100 * (row[0] / base[0] - 1):>+28.1f}%{100 * (row[1] / base[1] - 1):>+20.1f}%"
        )


def part_of(results: Results, other: str, field: str) -> float:
    """Return the mean of a figure under our policy, as a part of that under the other."""
    ours, theirs = (
        statistics.fmean(getattr(each, field) for each in results[scheduler]) for scheduler in (OURS, other)
    )
    return ours / theirs


def goals_of(name: str, results: Results) -> list[Goal]:
    """Return the goals of our policy against Dally's manual and tuned timers."""
    return [
        Goal(f"{name}: {field}, part of {other}", part_of(results, other, field), limit)
        for other, percent in DALLYS.items()
        for field, limit in (("turnaround", 1 - percent / 100), ("makespan", 1.01))
    ]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path, metavar="FILE", help="a public trace, such as Philly")
    parser.add_argument("--trace-cluster", default="16x8@4", metavar="SPEC", help="for the trace (16x8@4)")
    parser.add_argument("--trace-jobs", type=positive_int, default=1000, metavar="N")
    parser.add_argument(
        "--seeds", type=seed_list, default="0-4", metavar="LIST", help="such as 100-104,200 (0-4)"
    )
    names = (*SCHEDULERS, *WITH_ERRORS)
    parser.add_argument(
        "--schedulers", nargs="+", choices=names, default=names, metavar="NAME", help="only these"
    )
    parser.add_argument(
        "--congestion", type=float, default=1.0, help="traffic of others on all links (1: none)"
    )
    parser.add_argument("--charts", type=Path, metavar="FOLDER", help="write the figures as plotly JSON")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file too")
    return parser.parse_args()


def write_charts(folder: Path, figures: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    for network, by_workload in figures.items():
        groups = {
            name.partition(":")[0]: {scheduler: row["turnaround"] for scheduler, row in rows.items()}
            for name, rows in by_workload.items()
        }
        text = f"Mean turnaround in seconds, logarithmic; network {network}; lines are 95% intervals"
        save_figure(
            folder, f"dally-{network}", "Turnaround", draw_groups(groups, text, ("dally,", "patient"))
        )


def main() -> int:
    args = parse_arguments()
    cases: dict[str, Callable[[Random], Workload]] = dict(GENERATED)
    if args.trace:
        name = f"{args.trace.stem}: {args.trace_jobs:,} jobs on {args.trace_cluster}"
        cases[name] = partial(read_trace, args.trace, args.trace_cluster, args.trace_jobs)
    figures: dict[str, dict[str, Any]] = {network: {} for network in NETWORKS}
    goals: list[Goal] = []
    for name, make in cases.items():
        workloads = {seed: make(Random(seed)) for seed in args.seeds}
        for network in NETWORKS:
            log_progress(f"{name}, {network}")
            results = {
                scheduler: [
                    run(each, scheduler, network, args.congestion, seed) for seed, each in workloads.items()
                ]
                for scheduler in args.schedulers
            }
            figures[network][name] = show(name, network, results)
            if {OURS, *DALLYS} <= set(results):
                show_ours(results)
                goals += goals_of(f"{name.partition(':')[0]}, {network}", results)
        if name == BATCH:
            show_rerun()
    if args.charts:
        write_charts(args.charts, figures)
    missed = report(goals, {"networks": figures}, args.json)
    return missed if args.check else 0


if __name__ == "__main__":
    run_benchmark(main)
