"""Compares a live pool with the simulator: thirty jobs run, then are simulated from their records.

    python benchmarks/live_simulated.py [--runs 30] [--cluster 2x2] [--json FILE]

Jobs of 3 to 7 seconds on 1 or 2 devices each go through a private server and a real worker under fifo. Their
recorded durations are the simulator's input. Goals: makespan and mean turnaround within 5%, and the jobs
started in the same order. Takes about two minutes. Exit code 1 when a goal is missed.
"""

from __future__ import annotations

from itertools import combinations
from statistics import fmean

from common import Goal, log_progress, make_parser, report, run_benchmark, wait_until
from live_pool import Api, deploy_command, private_stack, submit_command

from gpu_flows.analytics.query_runner import QueryError, run_query
from gpu_flows.analytics.recorded_trace import load
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.simulation.simulator import simulate

LIVE = "select job_id, epoch(first_started), epoch(submitted), epoch(ended), turnaround_s from job_history"


def main() -> int:
    parser = make_parser(__doc__ or "", 30, "jobs")
    parser.add_argument("--cluster", default="2x2", help="NODESxGPUS (default: 2x2)")
    args = parser.parse_args()
    with private_stack(args.cluster) as stack:
        stack.start_worker()
        api = Api(stack.api_url)
        deployment = deploy_command(api, stack.pool)
        log_progress(f"submitting {args.runs} jobs")
        for number in range(args.runs):
            submit_command(api, deployment, f"sleep {3 + number % 5}", gpus=1 + number % 2)
        warehouse = stack.home / "warehouse.duckdb"

        def all_ended() -> bool:
            try:
                return len(run_query(warehouse, "select 1 from job_ends").rows) == args.runs
            except QueryError:  # the recorder is writing
                return False

        wait_until(all_ended, "all jobs have ended", 600)
        rows = run_query(warehouse, LIVE).rows
        arrivals = load(warehouse).arrivals
    found = simulate(arrivals, declare(args.cluster), make_policy("fifo"))
    live_start = {row[0]: row[1] for row in rows}
    starts = sorted((job.started or 0.0, live_start[job.arrival.job.id]) for job in found.jobs)
    live = {
        "makespan": max(row[3] for row in rows) - min(row[2] for row in rows),
        "mean turnaround": fmean(row[4] for row in rows),
    }
    simulated = {
        "makespan": max(job.ended or 0.0 for job in found.jobs),
        "mean turnaround": fmean(job.turnaround_s for job in found.jobs),
    }
    goals = []
    print(f"{'':<18}{'live s':>10}{'simulated s':>13}{'off by':>9}")
    for what, seconds in live.items():
        off = 100 * (simulated[what] / seconds - 1)
        print(f"{what:<18}{seconds:>10.2f}{simulated[what]:>13.2f}{off:>+8.1f}%")
        goals.append(Goal(f"{what}: off by", abs(off), 5.0, " %"))
    # The worker launches the jobs of one plan concurrently, in no particular order.
    swapped = sum(here[0] < there[0] and here[1] > there[1] for here, there in combinations(starts, 2))
    goals.append(Goal("pairs of jobs that started in the opposite order", swapped, 0))
    return report(goals, {"live": live, "simulated": simulated}, args.json)


if __name__ == "__main__":
    run_benchmark(main)
