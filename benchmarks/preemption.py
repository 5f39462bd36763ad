"""How long an urgent job waits for its devices on a full cluster, and what that costs the others.

    python benchmarks/preemption.py [--runs 10] [--json FILE]

Four jobs of one device each fill a node, each a shell that saves and leaves as soon as it is asked. An
urgent job of four devices preempts them all and ends at once, they come back, and so on, on a private server
with a real worker. Goals: from its creation to its launch in under a second, median, and no device ever
held twice. Takes about a minute. Exit code 1 when a goal is missed.
"""

from __future__ import annotations

from shlex import quote

from common import (
    SPREAD_HEADING,
    Api,
    Goal,
    Spread,
    arguments,
    carry_out,
    conclude,
    private_stack,
    say,
    wait_until,
)

from gpu_flows.analytics.query_runner import QueryError, run_query

SAVES = (
    "trap 'date > \"$GPU_FLOWS_CHECKPOINT_DIR/saved\"; exit 85' TERM; while :; do sleep 60 & wait $!; done"
)
URGENT = """
    select seconds(submitted, planned), seconds(planned, started), seconds(submitted, started)
    from attempts join jobs using (job_id) where priority >= 1000 order by started
"""
LEFT = "select stopping_s, lost_s, waited_s from preemptions where waited_s is not null"
HELD_TWICE = """
    select count(*) from device_holds a join device_holds b on a.device_id = b.device_id
        and (a.job_id, a.attempt) < (b.job_id, b.attempt) and a.since < b.until and b.since < a.until
"""
RUNNING = "select count(*) from attempt_history where is_open and gpus = 1"


def main() -> int:
    asked = arguments(__doc__ or "", 10, "urgent jobs").parse_args()
    with private_stack("1x4") as stack:
        api = Api(stack.api_url)
        block = api.get("/block_types/slug/gpu-scheduler/block_documents/name/default")["id"]
        choice = {"policy": {"name": "priority"}, "protection": {"min_run_seconds": 0, "most_preemptions": 0}}
        api.patch(f"/block_documents/{block}", {"data": choice, "merge_existing_data": False})
        stack.start_worker()
        flow = api.post("/flows/", {"name": "command"})["id"]
        about = {"name": "live", "flow_id": flow, "entrypoint": "gpu_flows.flows.command:command"}
        deployment = api.post("/deployments/", {**about, "work_pool_name": stack.pool})["id"]
        warehouse = stack.home / "warehouse.duckdb"

        def submit(command: str, **variables: object) -> str:
            body = {"parameters": {"command": "unused"}, "job_variables": {"command": command, **variables}}
            return str(api.post(f"/deployments/{deployment}/create_flow_run", body)["id"])

        def all_run() -> bool:
            try:
                return run_query(warehouse, RUNNING).rows == [(4,)]
            except QueryError:  # the recorder is writing
                return False

        for _ in range(4):
            submit(f"sh -c {quote(SAVES)}")
        wait_until(all_run, "the node is full")
        for number in range(asked.runs):
            say(f"urgent job {number + 1} of {asked.runs}")
            path = "/flow_runs/" + submit("true", gpus=4, priority_class="urgent")
            wait_until(lambda path=path: api.get(path)["state"]["name"] == "Completed", "it ran")
            wait_until(all_run, "the others are back")
        planned, freed, started = zip(*run_query(warehouse, URGENT).rows, strict=True)
        leaving, lost, waited = zip(*run_query(warehouse, LEFT).rows, strict=True)
        twice = run_query(warehouse, HELD_TWICE).rows[0][0]
    print(f"\n{'seconds':<44}{SPREAD_HEADING}")
    rows = {
        "urgent: created to planned": planned,
        "urgent: planned to launched (others leave)": freed,
        "urgent: created to launched": started,
        "others: asked to gone": leaving,
        "others: work lost": lost,
        "others: gone to launched again": waited,
    }
    for what, values in rows.items():
        print(f"{what:<44}{Spread.of(values).text()}")
    goals = [
        Goal("urgent job, created to launched, median", Spread.of(started).median, 1.0, " s"),
        Goal("devices held twice", twice, 0),
    ]
    return conclude(goals, {what: list(values) for what, values in rows.items()}, asked.json)


if __name__ == "__main__":
    carry_out(main)
