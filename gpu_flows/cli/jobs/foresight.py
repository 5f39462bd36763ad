"""What `gpu-flows why` tells of the future of a job, by trying it on the state of its pool; and of an ended
job, how good the forecasts were."""

from __future__ import annotations

import time
from typing import Any

from gpu_flows.cli.jobs.etas import describe_alternative, describe_eta, describe_holders, describe_miss
from gpu_flows.config.paths import pool_folder
from gpu_flows.worker.status import Status

TRY_FOR_S = 0.5


def foresee(pool: str, job_id: str, status: Status) -> dict[str, Any]:
    """What a waiting job waits for and what would let it start earlier, tried now."""
    from gpu_flows.forecasting.prospects import describe_prospects  # imports the simulator
    from gpu_flows.forecasting.state_file import read_present_state
    from gpu_flows.schedulers.forecast.forward import UnknownDurations
    from gpu_flows.schedulers.policy import PolicyError

    state = read_present_state(pool_folder(pool))
    entry = next((job for job in status.waiting if job["id"] == job_id), {})
    missing = {"no_forecast": status.no_forecast} if status.no_forecast and not entry.get("eta") else {}
    if state is None or not entry or job_id not in {job.id for job, _ in state.waiting}:
        return missing
    tried = {key: entry[key] for key in ("waits_for", "alternatives") if entry.get(key)}
    if tried.get("alternatives"):
        return tried
    until = time.monotonic() + TRY_FOR_S
    try:
        return missing | describe_prospects(state, job_id, lambda: time.monotonic() > until)
    except (UnknownDurations, PolicyError) as error:
        return {**tried, "no_forecast": status.no_forecast or str(error)}


def show_forecast(found: dict[str, Any]) -> dict[str, str]:
    """The lines about the future of a job, or about how it had been foreseen."""
    now, eta = time.time(), found.get("eta")
    alternatives = found.get("alternatives") or []
    return {
        "waiting_for": describe_holders(found.get("waits_for") or [], now),
        "starts": describe_eta(eta, "start") if found["state"] == "waiting" else "",
        "ends": describe_eta(eta, "end"),
        "earlier": "; ".join(describe_alternative(each, now) for each in alternatives[:4]),
        "forecast_was": _judge(found.get("forecasts") or []) if "ended" in found else "",
    }


def _judge(forecasts: list[dict[str, Any]]) -> str:
    """`it started 12s later than forecast, and ended 1m 05s earlier than forecast`."""
    verbs = {"start": "started", "end": "ended"}
    told = {each["quantity"]: each["p50_error_s"] for each in forecasts}
    texts = [f"{verbs[key]} {describe_miss(told[key])}" for key in verbs if key in told]
    return f"it {', and '.join(texts)}" if texts else ""
