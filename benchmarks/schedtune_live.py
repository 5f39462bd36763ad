"""SchedTune on a live pool: the same jobs on whole devices, packed by predictions, and packed naively.

    python benchmarks/schedtune_live.py [--runs 24] [--cluster 1x2:T4:16+1x1:A100:40] [--check] [--json FILE]

A private server and a real worker run the same jobs three times on a simulated cluster. The jobs really run,
and allocate memory of the simulated devices, which can run out (see `gpu_flows.devices.simulated_memory`).

  whole    policy fifo: every job gets whole devices, and nothing is known of the jobs
  packed   policy schedtune: the memory of each job is predicted from the jobs before it
  naive    policy fifo with shared devices: owners state three quarters of what their jobs need

Makespan, use of memory and jobs that ran out of memory come from the warehouse, by SQL. The jobs wait rather
than compute, so those on one device do not slow each other down, and the last jobs of a short round leave
devices empty: the figures show the direction, and that the live path works. How much is won in the long run,
with interference, is simulated (benchmarks/schedtune.py).

Goals: packed jobs use more memory, take 17.5 % less time, and none runs out of memory. With --check the exit
code is 1 if one is missed. Takes about five minutes.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import Goal, log_progress, make_parser, report, run_benchmark, wait_until
from live_pool import Api, deploy_command, private_stack

from gpu_flows.analytics.query_runner import QueryError, run_query

CLUSTER = "1x2:T4:16+1x1:A100:40"
# MiB and seconds of the kinds of jobs.
KINDS = [(2200, 6), (3400, 8), (5100, 6), (7300, 10), (9800, 8), (13_000, 10), (21_000, 8)]
UNDERSTATED = 0.75
FIGURES = """
with mine as (select * from job_history where experiment = $experiment),
span as (select min(submitted) as since, max(ended) as until, min(first_started) as started from mine),
memory as (
    select sum(memory_used_mb) / sum(memory_mb) as used
    from samples join (select device_id, any_value(memory_mb) as memory_mb from devices group by device_id)
        using (device_id), span
    where time between started and until
)
select
    epoch(until) - epoch(since),
    100 * used,
    (select count(*) from attempt_ends join mine using (job_id) where attempt_ends.outcome = 'out_of_memory'),
    (select count(*) from mine where outcome = 'completed'),
    (select avg(waited_s) from mine),
from span, memory
"""
ENDED = "select count(*) from job_history where experiment = $experiment and state = 'ended'"


@dataclass(frozen=True)
class Figures:
    """What the warehouse says of one round."""

    makespan_s: float
    memory_percent: float
    out_of_memory: int
    completed: int
    waited_s: float


def main() -> int:
    parser = make_parser(__doc__ or "", 24, "jobs in each round")
    parser.add_argument("--cluster", default=CLUSTER, help=f"the simulated cluster (default: {CLUSTER})")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    args = parser.parse_args()
    with private_stack(args.cluster) as stack:
        stack.start_worker()
        api, warehouse = Api(stack.api_url), stack.home / "warehouse.duckdb"
        deployment = deploy_command(api, stack.pool)
        rounds = {
            "whole": _run(api, deployment, warehouse, "whole", args.runs, "fifo", {}),
            "packed": _run(api, deployment, warehouse, "packed", args.runs, "schedtune", {}),
            "naive": _run(
                api, deployment, warehouse, "naive", args.runs, "fifo", {"sharing": "shared"}, UNDERSTATED
            ),
        }
    print(f"{'':<10}{'makespan':>10}{'memory used':>13}{'OOMs':>6}{'completed':>11}{'waited':>9}")
    for name, found in rounds.items():
        print(
            f"{name:<10}{found.makespan_s:>8.1f} s{found.memory_percent:>11.1f} %{found.out_of_memory:>6}"
            f"{found.completed:>11}{found.waited_s:>7.1f} s"
        )
    whole, packed = rounds["whole"], rounds["packed"]
    shorter = 100 * (1 - packed.makespan_s / whole.makespan_s)
    more = 100 * (packed.memory_percent / whole.memory_percent - 1)
    print(f"\npacked: makespan {shorter:.0f} % shorter, {more:.0f} % more memory used than on whole devices")
    goals = [
        Goal("makespan, of that on whole devices", packed.makespan_s / whole.makespan_s, 0.825),
        Goal("memory use on whole devices, of packed", 100 / (100 + more), 1.0),
        Goal("jobs that ran out of memory when packed", packed.out_of_memory, 0),
        Goal("jobs that did not complete", 3 * args.runs - sum(f.completed for f in rounds.values()), 0),
    ]
    code = report(goals, {name: vars(found) for name, found in rounds.items()}, args.json)
    return code if args.check else 0


def _run(
    api: Api,
    deployment: str,
    warehouse: Path,
    name: str,
    count: int,
    policy: str,
    options: dict[str, Any],
    stated: float = 0.0,
) -> Figures:
    """Run the jobs under a policy. `stated` is the part of their memory that their owners state; 0: none."""
    data = {
        "policy": policy,
        "options": {policy: options},
        "prediction": {"enabled": policy == "schedtune", "wait_seconds": 20},
    }
    block = api.get("/block_types/slug/gpu-scheduler/block_documents/name/default")["id"]
    api.patch(f"/block_documents/{block}", {"data": data, "merge_existing_data": False})
    log_progress(f"{name}: {count} jobs under {policy}")
    kinds = [KINDS[number % len(KINDS)] for number in range(count)]
    random.Random(11).shuffle(kinds)
    for mb, seconds in kinds:
        uses = f"{sys.executable} -m gpu_flows.devices.simulated_memory --mb {mb} --seconds {seconds}"
        variables: dict[str, Any] = {"command": uses}
        if stated:
            variables["gpu_memory_gb"] = round(stated * mb / 1024, 2)
        body = {
            "parameters": {"command": "unused"},
            "job_variables": variables,
            "tags": [f"experiment:{name}"],
        }
        api.post(f"/deployments/{deployment}/create_flow_run", body)

    def all_ended() -> bool:
        try:
            return run_query(warehouse, ENDED, {"experiment": name}).rows == [(count,)]
        except QueryError:  # the recorder is writing
            return False

    wait_until(all_ended, f"all jobs of the round {name!r} have ended", 900, every_s=1.0)
    (row,) = run_query(warehouse, FIGURES, {"experiment": name}).rows
    return Figures(*row)


if __name__ == "__main__":
    run_benchmark(main)
