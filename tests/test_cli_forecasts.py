"""What `queue` and `why` tell of the future: forecasts, classes of reasons, and what would help."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line.pool_server import PoolServer
from command_line.run import HOSTILE_TEXT, gpu_flows
from command_line.worker import device, running_job, waiting_job, write_status

import gpu_flows as package
from gpu_flows.common.clock import describe_time
from gpu_flows.config.paths import pool_folder
from gpu_flows.forecasting.state_file import state_path
from gpu_flows.schedulers import reasons
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.forecast.pool_state import PoolState
from gpu_flows.schedulers.mirror import Held
from gpu_flows.schedulers.model import NO_PROGRESS, Job
from gpu_flows.schedulers.prediction.estimate import Estimate

pytest_plugins = ["command_line.fixtures"]

PATIENT, BUSY = "11111111-aaaa-4aaa-8aaa-000000000001", "22222222-bbbb-4bbb-8bbb-000000000002"


def eta(start: float) -> dict[str, float]:
    return {"start_p50": start, "start_p90": start + 900, "end_p50": start + 3600, "end_p90": start + 7200}


def serve_pool(*, is_known: bool = True, busy: str = "busy", **more: Any) -> float:
    """A pool with two devices: `busy` has one for another 1,000 s, and `patient` waits for both. Returns the
    time at which it starts."""
    now, nodes = time.time(), tuple(declare("1x2"))
    starts = now + 1000
    first, second = nodes[0].devices
    patient = {"class": "capacity", "eta": eta(starts) if is_known else None, **more}
    write_status(
        waiting=[waiting_job(**patient)],
        running=[running_job(busy, eta=eta(now - 65))],
        devices=[device(id=each.id, node=each.node, index=each.index) for each in (first, second)],
    )
    state = PoolState(
        "gpu",
        now,
        "fifo",
        {},
        nodes,
        ((Job(PATIENT, now - 200, 2, name="patient"), NO_PROGRESS),),
        (Held(Job(BUSY, now - 100, 1, name=busy), (first,), now - 65, 1, NO_PROGRESS),),
        {PATIENT: Estimate(60, 60, "stated"), BUSY: Estimate(1065, 1065, "stated")} if is_known else {},
    )
    state_path(pool_folder("gpu")).write_bytes(state.to_json())
    return starts


def test_why_tells_when_a_job_starts_what_it_waits_for_and_what_would_help(pool_server: PoolServer) -> None:
    starts = serve_pool()
    found = gpu_flows("why", "patient", "--json").json
    assert (found["class"], found["place"], found["eta"]["start_p50"]) == ("capacity", 1, starts)
    (holder,) = found["waits_for"]
    assert (holder["name"], holder["until"]) == ("busy", pytest.approx(starts, abs=5))
    assert found["alternatives"][0]["label"] == "on 1 GPU instead of 2"
    shown = re.sub(r"\s+", " ", gpu_flows("why", "patient").out)
    at = describe_time(starts, time.time())
    assert f"waits for busy (until about {at})" in shown
    assert f"starts {at} (90%: {describe_time(starts + 900, time.time())})" in shown
    assert "would start now on 1 GPU instead of 2" in shown


def test_queue_and_why_say_why_nothing_is_forecast(pool_server: PoolServer) -> None:
    why = f"Nothing is known about how long {HOSTILE_TEXT} takes."
    write_status(waiting=[waiting_job(eta=None)], no_forecast=why)
    assert "Nothing is known about how long" in (shown := gpu_flows("queue").out)
    assert "\x1b" not in shown
    assert gpu_flows("why", "patient", "--json").json["no_forecast"] == why
    write_status(waiting=[waiting_job(eta=None)])
    assert "No forecasts" not in gpu_flows("queue").out


def test_why_is_honest_when_nothing_is_known_of_durations(pool_server: PoolServer) -> None:
    serve_pool(is_known=False)
    found = gpu_flows("why", "patient", "--json").json
    assert found["eta"] is None
    assert "Nothing is known about how long" in found["no_forecast"]
    assert "forecast" in gpu_flows("why", "patient").out


def test_the_queue_shows_starts_and_the_head_what_would_help(pool_server: PoolServer) -> None:
    help_: dict[str, Any] = {
        "waits_for": [{"job_id": BUSY, "name": "busy", "until": time.time() + 1000}],
        "alternatives": [{"kind": "gpus", "value": "1", "label": "on 1 GPU", "start": time.time()}],
    }
    starts = serve_pool(**help_)
    at, late = describe_time(starts, time.time()), describe_time(starts + 900, time.time())
    shown = re.sub(r"\s+", " ", gpu_flows("queue").out)
    assert "starts" in shown
    assert f" {at} " in shown
    assert "It waits for busy (until about" in shown
    assert "It would start now on 1 GPU." in shown
    assert f"90%: {late}" not in shown
    assert f"90%: {late}" in re.sub(r"\s+", " ", gpu_flows("queue", "--wide").out)
    (job,) = gpu_flows("queue", "--json").json["waiting"]
    assert (job["class"], job["position"], job["eta"]["end_p90"]) == ("capacity", 1, starts + 7200)


def test_hostile_names_of_others_are_harmless(pool_server: PoolServer) -> None:
    serve_pool(busy=HOSTILE_TEXT)
    out = gpu_flows("why", "patient").out
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_a_state_that_is_older_than_the_run_is_not_used(pool_server: PoolServer) -> None:
    serve_pool()
    path = state_path(pool_folder("gpu"))
    path.write_bytes(replace(PoolState.from_json(path.read_bytes()), waiting=()).to_json())
    found = gpu_flows("why", "patient", "--json").json
    assert "alternatives" not in found
    path.write_text("{broken")
    assert gpu_flows("why", "patient").code == 0


def test_every_code_has_a_class() -> None:
    root = Path(package.__file__ or "").parent
    files = [*root.rglob("*.py"), *Path(reasons.__file__).parent.glob("*.py")]
    found = {
        code
        for path in files
        for code in re.findall(r'\bReason\(\s*"([a-z_]+)"', path.read_text(encoding="utf-8"))
    }
    assert {"impossible", "held", "dependency", "making_room"} <= found
    unclassified = {code for code in found if reasons.class_of(code) == reasons.NOT_EVALUATED}
    assert unclassified == {"predicting"}
