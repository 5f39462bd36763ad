"""The SchedTune study: how much packing by predicted memory gains over whole devices, and where it does not.

    python benchmarks/schedtune.py [--schedtune FOLDER] [--seeds 5] [--first-seed 0] [--charts DIR] [--check]

The same jobs run on the same cluster of unlike GPUs under six schedulers:

  kubernetes            whole devices, spread over the nodes, oldest job first, others may pass one that does
                        not fit; nobody knows the memory of a job
  kubernetes, memory    the same, but every job names the memory that it truly needs, so none runs out of it
  naive sharing         up to 4 jobs on each device, whatever their memory (as time slicing does)
  schedtune, perfect    policy `schedtune` with the true memory, durations and slowdowns
  schedtune, predicted  the same with predicted bounds: errors as required of our predictors (--error), raised
                        by a margin (--margin); durations with an error
  schedtune, half       the same, and half of all slowdowns were never measured, but are predicted

What is simulated: jobs on one device slow each other down as Gavel measured; a job that finds too little
memory dies after 1% of its work, waits again with a raised bound, and has failed after two raises; a restart
takes 30 s. FOLDER has SchedTune's baseline_arrival_times.csv and model_stats.csv (github.com/
Stone-ResearchLife/Scheduler-SchedTune-CCGrid-2022); without it, only generated workloads run.
benchmarks/schedtune_workloads.py states every assumption. The load is swept from idle to overloaded, so the
table also shows where the gain vanishes. Defaults and assumptions were settled after looking at seeds 0 to 4:
--first-seed 100 runs others, and --inference-excess tells how much hangs on what is assumed of inference.

Goals, by `schedtune, predicted` against `kubernetes`, on SchedTune's arrivals and at the highest load: at
least 81% more of the memory in use, at least 17.5% shorter makespan, and no job runs out of memory. With
--check the exit code is 1 if one is missed.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from common import Goal, log_progress, positive_int, report, run_benchmark, save_figure
from schedtune_workloads import INFERENCE_EXCESS, Workload, generate, read_schedtune, relative_errors
from scipy.stats import t as student

from gpu_flows.analytics.figures.intervals import draw_lines
from gpu_flows.schedulers.cluster.node_state import DeviceState
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.policy import Policy, State, make_policy
from gpu_flows.schedulers.prediction.interference import Interference
from gpu_flows.schedulers.simulation.conditions import Conditions
from gpu_flows.schedulers.simulation.estimates import Estimates, Noisy, Oracle
from gpu_flows.schedulers.simulation.simulator import simulate
from gpu_flows.schedulers.simulation.summary import Summary, summarize
from gpu_flows.schedulers.workload import Arrival

KUBERNETES, STATED, NAIVE = "kubernetes", "kubernetes, memory", "naive sharing"
PERFECT, PREDICTED, HALF = "schedtune, perfect", "schedtune, predicted", "schedtune, half"
SCHEDULERS = (KUBERNETES, STATED, NAIVE, PERFECT, PREDICTED, HALF)
PUBLISHED = "SchedTune's arrivals"
LOADS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
FULL_LOAD = 2.0  # the load at which the goals count: more work arrives than whole devices can do
REPLICAS = 4
DURATION_SIGMA = 0.3  # of the durations that `schedtune, predicted` expects


class NaiveSharing(Policy):
    """The oldest job starts on the devices with the fewest jobs, up to four on each."""

    name = "naive"

    def plan(self, state: State) -> None:
        for job in list(state.queue.in_order()):
            devices = self._find(job, state)
            if devices:
                state.draft.start(job, devices)

    def _find(self, job: Job, state: State) -> tuple[Device, ...]:
        def crowd(device: DeviceState) -> int:
            return len(device.holders)

        for node in sorted(state.cluster, key=lambda node: sum(map(crowd, node.devices))):
            open_to_it = [
                s for s in node.devices if len(s.holders) < REPLICAS and s.fits(job) and job.accepts(s.device)
            ]
            if len(open_to_it) >= job.gpus:
                return tuple(s.device for s in sorted(open_to_it, key=crowd)[: job.gpus])
        return ()


def told(
    arrivals: Iterable[Arrival], scheduler: str, errors: Iterable[float], margin: float
) -> list[Arrival]:
    """Return the jobs with the memory that the scheduler is told."""
    known = []
    for arrival, error in zip(arrivals, errors, strict=False):
        bound = {
            KUBERNETES: 0,
            NAIVE: 1,  # it lets jobs share, and fits everywhere
            STATED: arrival.memory_mb,
            PERFECT: arrival.memory_mb,
            PREDICTED: math.ceil(arrival.memory_mb * (1 + error) * (1 + margin)),
            HALF: math.ceil(arrival.memory_mb * (1 + error) * (1 + margin)),
        }[scheduler]
        known.append(replace(arrival, job=replace(arrival.job, memory_mb=bound)))
    return known


def run(workload: Workload, scheduler: str, seed: int, args: argparse.Namespace) -> Summary:
    random = Random(seed)
    errors = relative_errors(random, *args.error, args.worst)
    policies: dict[str, Policy] = {
        KUBERNETES: make_policy("fifo", {"skip": True, "placement": "spread"}),
        STATED: make_policy("fifo", {"skip": True, "placement": "spread"}),
        NAIVE: NaiveSharing(),
    }
    measured = workload.pairs
    half = Interference(random.sample(measured, len(measured) // 2))
    conditions = Conditions(
        workload.profile,
        pairs=Interference(measured),
        expected_pairs=half if scheduler == HALF else None,
        restart_s=30.0,
        oom_after=0.01,
    )
    estimates: Estimates = Noisy(DURATION_SIGMA, seed) if scheduler in (PREDICTED, HALF) else Oracle()
    policy = policies.get(scheduler) or make_policy("schedtune", {"most_slowdown": args.most_slowdown})
    arrivals = told(workload.arrivals, scheduler, errors, args.margin)
    found = simulate(arrivals, workload.nodes, policy, conditions, estimates)
    if found.policy_error:
        raise RuntimeError(found.policy_error)
    return summarize(found)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half the width of its 95% interval."""
    if len(values) < 2:
        return values[0], math.nan
    spread = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), float(student.ppf(0.975, len(values) - 1)) * spread


Results = Mapping[str, Sequence[Summary]]  # by scheduler, one for each seed


def show(name: str, results: Results) -> dict[str, Any]:
    """Print the table of a workload and return its figures."""
    print(f"\n{name}: {results[KUBERNETES][0].jobs} jobs, {len(results[KUBERNETES])} seeds")
    print(
        f"{'':<22}{'makespan s':>16}{'change':>18}{'memory in use':>18}{'change':>18}"
        f"{'turnaround s':>14}{'OOMs':>8}{'failed':>8}"
    )
    figures: dict[str, Any] = {}
    for scheduler, runs in results.items():
        base = results[KUBERNETES]
        makespan = interval([each.makespan_s for each in runs])
        memory = interval([100 * each.memory_use for each in runs])
        shorter = interval([100 * (a.makespan_s / b.makespan_s - 1) for a, b in zip(runs, base, strict=True)])
        more = interval([100 * (a.memory_use / b.memory_use - 1) for a, b in zip(runs, base, strict=True)])
        turnaround, _ = interval([each.avg_turnaround_s for each in runs])
        ooms, failed = (
            statistics.fmean(values)
            for values in ([each.ooms for each in runs], [each.unfinished + each.impossible for each in runs])
        )
        print(
            f"{scheduler:<22}{makespan[0]:>9,.0f} ±{makespan[1]:>5,.0f}"
            f"{shorter[0]:>+11.1f} ±{shorter[1]:>4.1f}%{memory[0]:>11.1f} ±{memory[1]:>4.1f}%"
            f"{more[0]:>+11.1f} ±{more[1]:>4.1f}%{turnaround:>14,.0f}{ooms:>8.1f}{failed:>8.1f}"
        )
        figures[scheduler] = {
            "makespan_s": makespan,
            "makespan_change_percent": shorter,
            "memory_use_percent": memory,
            "memory_use_change_percent": more,
            "turnaround_s": turnaround,
            "ooms": ooms,
            "failed": failed,
        }
    return figures


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedtune", type=Path, metavar="FOLDER", help="SchedTune's published files")
    parser.add_argument("--seeds", type=positive_int, default=5, metavar="N", help="runs of each case")
    parser.add_argument(
        "--first-seed",
        type=int,
        default=0,
        metavar="N",
        help="of these runs (0; defaults were chosen after looking at seeds 0 to 4)",
    )
    parser.add_argument(
        "--loads",
        type=float,
        nargs="*",
        default=LOADS,
        metavar="LOAD",
        help="of the generated workloads (0.25 to 2); none: only SchedTune's arrivals run",
    )
    parser.add_argument(
        "--jobs", type=positive_int, default=2000, metavar="N", help="of a generated workload"
    )
    parser.add_argument(
        "--error",
        type=float,
        nargs=2,
        default=(0.02, 0.06),
        metavar=("MEDIAN", "P90"),
        help="relative error of predicted memory (0.02 0.06), either way",
    )
    parser.add_argument(
        "--margin", type=float, default=0.1, help="by which a bound exceeds the prediction (0.1)"
    )
    parser.add_argument(
        "--worst", type=float, default=0.149, help="the worst under-estimate (0.149, that of xMem)"
    )
    parser.add_argument(
        "--inference-excess",
        type=float,
        default=INFERENCE_EXCESS,
        metavar="X",
        help=f"how much longer a job takes beside one of SchedTune's inferences, and it beside a job "
        f"({INFERENCE_EXCESS}: a tenth longer; assumed, not published)",
    )
    parser.add_argument("--most-slowdown", type=float, default=2.5, help="option of the policy (2.5)")
    parser.add_argument("--charts", type=Path, metavar="FOLDER", help="write the figures as plotly JSON")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file too")
    return parser.parse_args()


def goals_of(name: str, figures: Mapping[str, Any]) -> list[Goal]:
    """Return the goals of a workload: makespan and memory use against `kubernetes`, and no OOM."""
    ours = figures[PREDICTED]
    makespan = 1 + ours["makespan_change_percent"][0] / 100
    memory = 1 / (1 + ours["memory_use_change_percent"][0] / 100)
    return [
        Goal(f"{name}: makespan, part of kubernetes'", makespan, 1 - 0.175),
        Goal(f"{name}: kubernetes' memory use, part of ours", memory, 1 / 1.81),
        Goal(f"{name}: OOMs", ours["ooms"], 0),
    ]


LOAD_AXIS = "load: work that arrives, relative to what whole devices can do"


def write_charts(folder: Path, figures: Mapping[str, Mapping[str, Any]], loads: Sequence[float]) -> None:
    """Draw makespan and memory use by load, of the generated workloads."""
    charts = {
        "makespan": (
            "makespan_change_percent",
            "Makespan",
            "Change against kubernetes, without the jobs that failed",
        ),
        "memory": ("memory_use_percent", "Memory in use", "Mean part of all device memory over the makespan"),
    }
    for file, (figure, title, subtitle) in charts.items():
        lines = {
            scheduler: [(load, *figures[_name(load)][scheduler][figure]) for load in loads]
            for scheduler in SCHEDULERS
            if scheduler != STATED  # the same as kubernetes on these devices, which hold every job
        }
        text = f"{subtitle}; generated workloads, bars are 95% intervals"
        save_figure(folder, f"schedtune-{file}", title, draw_lines(lines, LOAD_AXIS, text))


def _name(load: float) -> str:
    return f"generated, load {load:g}"


def main() -> int:
    args = parse_arguments()
    cases: dict[str, Callable[[Random], Workload]] = {}
    if args.schedtune:
        cases[PUBLISHED] = partial(read_schedtune, args.schedtune, inference_excess=args.inference_excess)
    for load in args.loads:
        cases[_name(load)] = partial(generate, load=load, jobs=args.jobs)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    figures: dict[str, dict[str, Any]] = {}
    for name, make in cases.items():
        log_progress(name)
        workloads = {seed: make(Random(seed)) for seed in seeds}
        results = {
            scheduler: [run(workload, scheduler, seed, args) for seed, workload in workloads.items()]
            for scheduler in SCHEDULERS
        }
        figures[name] = show(name, results)
    if args.charts and args.loads:
        write_charts(args.charts, figures, args.loads)
    judged = [name for name in (PUBLISHED, _name(FULL_LOAD)) if name in figures]
    goals = [goal for name in judged for goal in goals_of(name, figures[name])]
    missed = report(goals, {"workloads": figures}, args.json)
    return missed if args.check else 0


if __name__ == "__main__":
    run_benchmark(main)
