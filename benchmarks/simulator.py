"""Measures the simulator: jobs a second for each policy, compared with a minimal loop, and the growth.

    python benchmarks/simulator.py [--trace philly20k.csv] [--growth philly82k.csv] [--cluster 64x8]
        [--policies fifo,sjf,srtf,tiresias,dally] [--placement any] [--runs 3] [--json FILE]

Times are CPU seconds of one core, without reading the trace. The minimal loop is FIFO in a few lines on a
count of free GPUs, without engine, devices or checks. Without a trace, a workload is generated. Goals: 20,000
jobs/s for fifo and sjf, 5,000 for srtf and tiresias, 3,000 for dally; with --growth the whole trace on 2,490
GPUs within 10 s of CPU (40 s for srtf and tiresias) and 1 GB, and costs that grow at most like n log n. The
exit code is 1 if a goal is missed.
"""

from __future__ import annotations

import gc
import math
import resource
import time
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from common import Goal, log_progress, make_parser, report, run_benchmark

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.policy import make_policy, policies
from gpu_flows.schedulers.simulation.generators import generate
from gpu_flows.schedulers.simulation.simulator import simulate
from gpu_flows.schedulers.traces import load
from gpu_flows.schedulers.workload import Arrival, allow_spanning

GENERATED = "poisson:jobs=20000,rate_per_hour=1000"
GOALS = {"fifo": 20_000, "sjf": 20_000, "srtf": 5_000, "tiresias": 5_000, "dally": 3_000}  # jobs a second
PHILLY = "311x8+1x2"  # 2,490 GPUs
LIMIT_S = {"fifo": 10.0, "sjf": 10.0}  # for the whole trace; 40 s for other policies
STEPS = (1_000, 5_000, 20_000)  # numbers of jobs, followed by the whole trace


def workload(path: Path | None) -> list[Arrival]:
    return allow_spanning(load(path).arrivals if path else generate(GENERATED, seed=0))


def measure(arrivals: list[Arrival], cluster: str, policy: str, placement: str) -> float:
    """Return the CPU seconds of one simulation, after a check that every job has an outcome."""
    has_placement = "placement" in policies()[policy].Options.model_fields
    nodes, chosen = declare(cluster), make_policy(policy, {"placement": placement} if has_placement else {})
    gc.collect()
    began = time.process_time()
    found = simulate(arrivals, nodes, chosen)
    took = time.process_time() - began
    lost = [job for job in found.jobs if job.ended is None and job.reason is None]
    if lost or found.policy_error:
        raise SystemExit(f"{policy}: {len(lost)} jobs lost. {found.policy_error}")
    return took


def measure_minimal_loop(arrivals: list[Arrival], gpus: int) -> float:
    """Return the CPU seconds of strict FIFO on plain numbers."""
    jobs = [
        (arrival.job.submitted, arrival.job.gpus, arrival.duration_s)
        for arrival in arrivals
        if arrival.job.gpus <= gpus
    ]
    began = time.process_time()
    ends: list[tuple[float, int]] = []
    free, now, total = gpus, 0.0, 0.0
    for submitted, wanted, duration in jobs:
        now = max(now, submitted)
        while ends and ends[0][0] <= now:
            free += heappop(ends)[1]
        while free < wanted:
            now, back = heappop(ends)
            free += back
        free -= wanted
        heappush(ends, (now + duration, wanted))
        total += now + duration - submitted
    return time.process_time() - began


def measure_growth(
    policy: str, arrivals: list[Arrival], placement: str
) -> tuple[float, list[tuple[int, float]]]:
    """Return how CPU time grows with the number of jobs: the slope between the first and the last step on
    logarithmic scales. The load is the same at every step: part of the trace, on the same cluster."""
    points = []
    for count in [*(step for step in STEPS if step < len(arrivals)), len(arrivals)]:
        points.append((count, measure(arrivals[:count], PHILLY, policy, placement)))
    (first, cost_first), (last, cost_last) = points[0], points[-1]
    return math.log(cost_last / cost_first) / math.log(last / first), points


def main() -> int:
    parser = make_parser(__doc__ or "", 3, "runs of each; the fastest counts")
    parser.add_argument("--trace", type=Path, help="a trace, for example 20,000 jobs of Philly")
    parser.add_argument("--growth", type=Path, help="a larger trace, for example all 82,000 jobs of Philly")
    parser.add_argument("--cluster", default="64x8", help="NODESxGPUS (default: 64x8, which is 512 GPUs)")
    parser.add_argument("--policies", default=",".join(GOALS), help="names, separated by commas")
    parser.add_argument("--placement", default="any", help="how devices are chosen")
    args = parser.parse_args()
    names: list[str] = args.policies.split(",")

    arrivals = workload(args.trace)
    gpus = sum(len(node.devices) for node in declare(args.cluster))
    minimal = min(measure_minimal_loop(arrivals, gpus) for _ in range(args.runs))
    print(f"{len(arrivals):,} jobs on {gpus:,} GPUs, placement {args.placement}")
    print(f"{'policy':<16}{'jobs/s':>10}{'CPU s':>9}{'x min. loop':>13}")
    print(f"{'(minimal loop)':<16}{len(arrivals) / minimal:>10,.0f}{minimal:>9.2f}{1:>13.1f}")
    goals: list[Goal] = []
    details: dict[str, Any] = {"jobs": len(arrivals), "bare_loop_s": minimal, "policies": {}}
    for policy in names:
        log_progress(f"{policy}, {args.runs} times")
        cpu = min(measure(arrivals, args.cluster, policy, args.placement) for _ in range(args.runs))
        print(f"{policy:<16}{len(arrivals) / cpu:>10,.0f}{cpu:>9.2f}{cpu / minimal:>13.1f}")
        details["policies"][policy] = {"cpu_s": cpu, "jobs_per_s": len(arrivals) / cpu}
        if policy in GOALS:
            goals.append(
                Goal(f"{policy}: us of CPU for a job", cpu / len(arrivals) * 1e6, 1e6 / GOALS[policy], " us")
            )
    if args.growth:
        all_jobs = workload(args.growth)
        for policy in names:
            log_progress(f"{policy}, growing to {len(all_jobs):,} jobs")
            slope, points = measure_growth(policy, all_jobs, args.placement)
            steps = ", ".join(f"{count:,}: {cpu:.2f} s" for count, cpu in points)
            print(f"{policy:<16}grows with exponent {slope:.2f}  ({steps})")
            goals.append(
                Goal(f"{policy}: {len(all_jobs):,} jobs", points[-1][1], LIMIT_S.get(policy, 40), " s")
            )
            span = math.log(points[-1][0] / points[0][0])
            n_log_n = 1 + math.log(math.log(points[-1][0]) / math.log(points[0][0])) / span
            goals.append(Goal(f"{policy}: exponent (n log n here: {n_log_n:.2f})", slope, n_log_n + 0.05))
            details["policies"][policy] |= {"exponent": slope, "growth": points}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    goals.append(Goal("peak memory", peak, 1024, " MB"))
    return report(goals, details, args.json)


if __name__ == "__main__":
    run_benchmark(main)
