"""How long one placement takes, and what the placements do for jobs across unlike nodes.

    python benchmarks/placements.py [--runs 200] [--seeds 10] [--placements milp,pack,...] [--json FILE]

Time: clusters of 3 to 1,250 nodes of 4 and 8 GPUs, of which a quarter is idle; jobs of 1 to 16 GPUs come and
go, and may span nodes. Milliseconds of processor time for one placement, without the first, which imports the
solver of milp.

Outcome: 300 jobs of 1 to 16 GPUs, which may span nodes, on 40 GPUs of unlike nodes, under fifo with skip and
under tiresias, with the network table `realistic`. A quarter of the jobs needs an A100. Means and 95%
intervals over the seeds, with the change against pack, seed by seed.

Goal: a median below 20 ms for milp across nodes, of up to 100 nodes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from random import Random

from common import Goal, Spread, log_progress, make_parser, positive_int, report, run_benchmark
from schedtune import interval

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.network.tables import load_network
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.simulation.conditions import Conditions
from gpu_flows.schedulers.simulation.generators import generate
from gpu_flows.schedulers.simulation.simulator import simulate
from gpu_flows.schedulers.simulation.summary import Summary, summarize
from gpu_flows.schedulers.workload import Arrival, allow_spanning

TIMED = {"3 nodes": "1x8+2x4", "12 nodes": "4x8+8x4", "100 nodes": "50x8+50x4", "1,250 nodes": "625x8+625x4"}
HELD_TO_GOAL = ("3 nodes", "12 nodes", "100 nodes")
GOAL_MS = 20.0
SIZES = (1, 1, 2, 2, 4, 6, 8, 12, 16)
UNLIKE = "2x8:A100:80+4x4:V100:16+4x2:T4:16"
WORKLOAD = "poisson:jobs=300,rate_per_hour=100,sizes=1:40+2:20+4:15+6:10+12:10+16:5,sigma=1.2"
POLICIES = {"fifo, skip": ("fifo", {"skip": True}), "tiresias": ("tiresias", {})}


def time_placements(placement: str, spec: str, runs: int) -> dict[str, list[float]]:
    """Return the processor seconds of placements on one node and across nodes."""
    random, cluster = Random(0), Cluster(declare(spec))
    options, holders, least_idle = PlacementOptions(placement=placement), list[Job](), cluster.idle / 4
    took: dict[str, list[float]] = {"one": [], "across": []}
    for number in count():
        job = Job(f"{number}", gpus=random.choice(SIZES), may_span_nodes=True)
        began = time.process_time()
        devices = options.place(job, cluster)
        seconds = time.process_time() - began
        if devices:
            took["across" if len({device.node for device in devices}) > 1 else "one"].append(seconds)
            cluster.allocate(job, devices)
            holders.append(job)
        elif holders:
            cluster.release(holders.pop(random.randrange(len(holders))))
        while cluster.idle < least_idle:
            cluster.release(holders.pop(random.randrange(len(holders))))
        if min(map(len, took.values())) > runs:
            return took
    raise AssertionError("unreachable")


def draw_jobs(seed: int) -> list[Arrival]:
    """Return the workload, in which a quarter of the jobs needs the memory of an A100."""
    random = Random(seed)
    return [
        replace(arrival, job=replace(arrival.job, memory_mb=60_000 if random.random() < 0.25 else 0))
        for arrival in allow_spanning(generate(WORKLOAD, seed))
    ]


def compare(placement: str, policy: str, seeds: int) -> list[Summary]:
    name, options = POLICIES[policy]
    found = []
    for seed in range(seeds):
        chosen = make_policy(name, {**options, "placement": placement})
        conditions = Conditions(network=load_network("realistic"), restart_s=30.0)
        found.append(summarize(simulate(draw_jobs(seed), declare(UNLIKE), chosen, conditions)))
        if found[-1].policy_error or found[-1].unfinished:
            raise SystemExit(f"{policy}, {placement}: {found[-1].policy_error or 'jobs are unfinished'}")
    return found


def change(ours: Sequence[Summary], base: Sequence[Summary], figure: str) -> tuple[float, float]:
    """Return the mean change of a figure in percent, seed by seed, and half of its interval."""
    pairs = zip(ours, base, strict=True)
    return interval([100 * (getattr(a, figure) / getattr(b, figure) - 1) for a, b in pairs])


def main() -> int:
    parser = make_parser(__doc__ or "", 200, "placements timed on each cluster")
    parser.add_argument("--seeds", type=positive_int, default=10, metavar="N", help="workloads compared")
    parser.add_argument("--placements", default="milp,pack,best_fit,topology,fragmentation,first_fit")
    args = parser.parse_args()
    placements = args.placements.split(",")
    goals, details = list[Goal](), dict[str, object]()
    print(f"{'ms for one placement':<16}{'':<14}" + "".join(f"{name:>22}" for name in TIMED))
    for placement in placements:
        log_progress(f"timing {placement}")
        found = {name: time_placements(placement, spec, args.runs) for name, spec in TIMED.items()}
        for where, label in (("one", "on one node"), ("across", "across nodes")):
            spreads = {name: Spread.of(took[where][1:]) for name, took in found.items()}
            cells = [f"{1e3 * each.median:.2f} (p90 {1e3 * each.p90:.2f})" for each in spreads.values()]
            print(f"{placement:<16}{label:<14}" + "".join(f"{cell:>22}" for cell in cells))
            details[f"{placement}, {label}"] = cells
            for name in HELD_TO_GOAL if placement == "milp" and where == "across" else ():
                goals.append(Goal(f"milp across {name}: median", 1e3 * spreads[name].median, GOAL_MS, " ms"))
    for policy in POLICIES:
        print(f"\n{policy}, {args.seeds} workloads on {UNLIKE}")
        print(f"{'':<16}{'turnaround s':>20}{'against pack':>20}{'makespan s':>20}{'across nodes':>14}")
        base = compare("pack", policy, args.seeds)
        for placement in placements:
            found = base if placement == "pack" else compare(placement, policy, args.seeds)
            turnaround = interval([each.avg_turnaround_s for each in found])
            against = change(found, base, "avg_turnaround_s")
            makespan = interval([each.makespan_s for each in found])
            spread = sum(each.attempts_in_rack + each.attempts_across_racks for each in found)
            print(
                f"{placement:<16}{turnaround[0]:>12,.0f} ±{turnaround[1]:>6,.0f}"
                f"{against[0]:>+13.1f} ±{against[1]:>4.1f}%{makespan[0]:>12,.0f} ±{makespan[1]:>6,.0f}"
                f"{spread / args.seeds:>14.1f}"
            )
    return report(goals, details, args.json)


if __name__ == "__main__":
    run_benchmark(main)
