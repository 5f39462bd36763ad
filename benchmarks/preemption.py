"""How long an urgent job waits for its devices on a full cluster, and what that costs the others.

    python benchmarks/preemption.py [--runs 10] [--json FILE]

Four jobs of one device each fill a node; each is a shell that saves and exits as soon as it is stopped. An
urgent job of four devices preempts them all and ends immediately, then they start again, and so on, on a
private server with a real worker. Goals: the median time from the creation of an urgent job to its launch is
under a second, and no device is ever held twice. Takes about a minute. Exit code 1 when a goal is missed.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from common import Goal, log_progress, make_parser, report, run_benchmark, wait_until
from live_pool import Api, private_stack
from spread_table import print_spreads

from gpu_flows.analytics.query_runner import QueryError, run_query

SAVE_AND_EXIT = (
    "trap 'date > \"$GPU_FLOWS_CHECKPOINT_DIR/saved\"; exit 85' TERM; while :; do sleep 60 & wait $!; done"
)
URGENT = """
    select seconds(submitted, planned), seconds(planned, started), seconds(submitted, started)
    from attempts join jobs using (job_id) where priority >= 1000 order by started
"""
PREEMPTED = "select stopping_s, lost_s, waited_s from preemptions where waited_s is not null"
HELD_TWICE = """
    select count(*) from device_holds a join device_holds b on a.device_id = b.device_id
        and (a.job_id, a.attempt) < (b.job_id, b.attempt) and a.since < b.until and b.since < a.until
"""
RUNNING = "select count(*) from attempt_history where is_open and gpus = 1"
CREATED_TO_LAUNCHED = "urgent: created to launched"


def main() -> int:
    options = make_parser(__doc__ or "", 10, "urgent jobs").parse_args()
    times, held_twice = measure(options.runs)
    print()
    print_spreads("seconds", times, width=44)
    goals = [
        Goal(
            "urgent job, created to launched, median",
            statistics.median(times[CREATED_TO_LAUNCHED]),
            1.0,
            " s",
        ),
        Goal("devices held twice", held_twice, 0),
    ]
    return report(goals, {label: list(values) for label, values in times.items()}, options.json)


def measure(runs: int) -> tuple[dict[str, Sequence[float]], int]:
    """Return the measured times by their labels, and how often a device was held twice."""
    with private_stack("1x4") as stack:
        api = Api(stack.api_url)
        use_priority_policy(api)
        stack.start_worker()
        deployment = deploy(api, stack.pool)
        warehouse = stack.home / "warehouse.duckdb"
        for _ in range(4):
            submit(api, deployment, f"sh -c {quote(SAVE_AND_EXIT)}")
        wait_until(lambda: node_is_full(warehouse), "the node is full")
        for number in range(runs):
            log_progress(f"urgent job {number + 1} of {runs}")
            path = "/flow_runs/" + submit(api, deployment, "true", gpus=4, priority_class="urgent")
            wait_until(lambda path=path: api.get(path)["state"]["name"] == "Completed", "it ran")
            wait_until(lambda: node_is_full(warehouse), "the others run again")
        planned, freed, started = zip(*run_query(warehouse, URGENT).rows, strict=True)
        stopping, lost, waited = zip(*run_query(warehouse, PREEMPTED).rows, strict=True)
        held_twice = run_query(warehouse, HELD_TWICE).rows[0][0]
    return {
        "urgent: created to planned": planned,
        "urgent: planned to launched (others stop)": freed,
        CREATED_TO_LAUNCHED: started,
        "others: stop requested to devices released": stopping,
        "others: work lost": lost,
        "others: released to launched again": waited,
    }, held_twice


def use_priority_policy(api: Api) -> None:
    block = api.get("/block_types/slug/gpu-scheduler/block_documents/name/default")["id"]
    data = {"policy": {"name": "priority"}, "protection": {"min_run_seconds": 0, "most_preemptions": 0}}
    api.patch(f"/block_documents/{block}", {"data": data, "merge_existing_data": False})


def deploy(api: Api, pool: str) -> str:
    """Deploy the command flow to the pool. Returns the id of the deployment."""
    flow = api.post("/flows/", {"name": "command"})["id"]
    body = {"name": "live", "flow_id": flow, "entrypoint": "gpu_flows.flows.command:command"}
    return str(api.post("/deployments/", {**body, "work_pool_name": pool})["id"])


def submit(api: Api, deployment: str, command: str, **variables: object) -> str:
    """Create a run whose command replaces the flow. Returns the id of the run."""
    body = {"parameters": {"command": "unused"}, "job_variables": {"command": command, **variables}}
    return str(api.post(f"/deployments/{deployment}/create_flow_run", body)["id"])


def node_is_full(warehouse: Path) -> bool:
    try:
        return run_query(warehouse, RUNNING).rows == [(4,)]
    except QueryError:  # the recorder is writing
        return False


if __name__ == "__main__":
    run_benchmark(main)
