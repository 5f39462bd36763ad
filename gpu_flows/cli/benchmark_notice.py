"""A line for `policy show` and `queue` about a benchmark that changes the pool's policy."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import quote

from gpu_flows.cli.errors import CommandError
from gpu_flows.cli.jobs.pool_jobs import WORKER
from gpu_flows.cli.prefect_client import SCHEDULER_BLOCK, NotFound, PrefectClient
from gpu_flows.config.benchmark_record import BenchmarkRecord, parse_record, variable_name
from gpu_flows.prefect_api.conventions import FINAL_STATES


def describe_benchmark(client: PrefectClient, pool: str) -> str:
    """What a benchmark does to the pool's policy, or has left behind; empty if there is none."""
    record = _read_record(client, pool)
    if record is None:
        return ""
    name, former = f"Benchmark {record.run_name!r}", record.former or "the block"
    if _is_running(client, record.run_id):
        return (
            f"{name} tries policies, now {record.policy or 'none yet'}; it restores {former} at its end. If"
            " you change the policy, it ends and your change stays."
        )
    if _was_edited_since(client, pool, record):
        return ""
    return (
        f"{name} ended without restoring {former}: `gpu-flows up` restores it, or"
        f" gpu-flows policy set {record.former or 'POLICY'}"
    )


def note_benchmark(jobs: dict[str, Any]) -> str:
    """The same for `queue`, from its jobs. If they are from the worker's status, the server is asked only
    while a job without devices runs, as a benchmark is one. If it does not answer, nothing is said."""
    if jobs["source"] == WORKER and all(job["gpus"] for job in jobs["running"]):
        return ""
    try:
        return describe_benchmark(PrefectClient(timeout_s=2), jobs["pool"])
    except CommandError:
        return ""


def _read_record(client: PrefectClient, pool: str) -> BenchmarkRecord | None:
    try:
        found = client.get(f"/variables/name/{quote(variable_name(pool), safe='')}")
    except NotFound:
        return None
    return parse_record(found["value"])


def _is_running(client: PrefectClient, run_id: str) -> bool:
    try:
        return client.get(f"/flow_runs/{quote(run_id, safe='')}")["state_type"] not in FINAL_STATES
    except NotFound:
        return False


def _was_edited_since(client: PrefectClient, pool: str, record: BenchmarkRecord) -> bool:
    document = client.read_block(SCHEDULER_BLOCK, client.find_block_name(pool, "scheduler"))
    if document is None or not record.saved:
        return True
    return datetime.fromisoformat(document["updated"]) != datetime.fromisoformat(record.saved)
