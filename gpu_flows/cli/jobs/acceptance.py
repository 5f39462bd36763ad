"""Waiting a moment for the worker's first word about new runs, so that `submit` itself reports a refusal."""

from __future__ import annotations

from typing import Any

from gpu_flows.cli.jobs.runs import read_runs
from gpu_flows.cli.prefect_client import PrefectClient
from gpu_flows.common.retry import wait_until
from gpu_flows.worker.status import read_status

NOTICE_S = 3.0
POLL_S = 0.2
MOST_WATCHED = 200  # of a large array: those refused alike are refused for the same reason
REFUSED = "Refused"
_REFUSAL_CODES = {"impossible", "bad_request"}  # the worker refuses such a job next


def wait_for_notice(client: PrefectClient, pool: str, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Wait until the worker has refused, queued or started the runs. Returns their newest states.

    A run that only waits has its reason as message.
    """
    newest = {run["id"]: run for run in runs}
    reasons: dict[str, str] = {}  # of the runs in the worker's queue

    def all_noticed() -> bool:
        unnoticed = [id for id in list(newest)[:MOST_WATCHED] if _is_new(newest[id]) and id not in reasons]
        for run in read_runs(client, unnoticed):
            newest[run["id"]] = run
        status = read_status(pool)
        for job in status.waiting if status else []:
            if job["id"] in newest and job["reason"] not in _REFUSAL_CODES:
                reasons[job["id"]] = f"{job['why']} {job['fix']}".strip()
        return not any(_is_new(newest[id]) and id not in reasons for id in unnoticed)

    wait_until(all_noticed, NOTICE_S, POLL_S)
    for run_id, reason in reasons.items():
        if _is_new(newest[run_id]):
            newest[run_id] = {**newest[run_id], "state": {**newest[run_id]["state"], "message": reason}}
    return list(newest.values())


def is_refused(run: dict[str, Any]) -> bool:
    return bool((run.get("state") or {}).get("name") == REFUSED)


def _is_new(run: dict[str, Any]) -> bool:
    """Whether the run is as it was created: scheduled, and without a message of the worker."""
    state = run.get("state") or {}
    return bool(run["state_type"] == "SCHEDULED" and not state.get("message"))
