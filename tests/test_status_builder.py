"""The status of a pool: waiting jobs with reason and help, and how long each has waited."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fake_pool import FakePool, in_event_loop

from gpu_flows.config.block_follower import BlockFollower
from gpu_flows.schedulers.cluster.device_links import parse_links
from gpu_flows.schedulers.model import Job, Reason
from gpu_flows.worker import status_builder
from gpu_flows.worker.status import Status, WaitingCount
from gpu_flows.worker.status_builder import build_status

BLOCKS = SimpleNamespace(
    cluster_error="",
    unknown_drained="",
    network_error="",
    missing_devices="",
    policy_options={},
    policy_error="",
    policy_saved=None,
    shadows={},
    shadows_error="",
    readings={},
)


@dataclass
class Waiting:
    """The queue of a pool and one job that is held back."""

    pool: FakePool
    active: bool = True

    def reasons(self, limit: int) -> Iterator[tuple[Job, Reason]]:
        held = (Job("held", time.time() - 5), Reason("held", "It is held.", "Release it."))
        return islice(chain(self.pool.dispatcher.reasons(), [held]), limit)

    def waits(self, job_id: str) -> bool:
        return True

    def count(self) -> WaitingCount:
        return WaitingCount({"capacity": 9}, 9)


def status_of(pool: FakePool) -> Status:
    blocks = cast(BlockFollower, BLOCKS)
    return build_status("pool", "worker", pool.dispatcher, Waiting(pool), blocks, recorder_trouble="")


def by_id(jobs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {job["id"]: job for job in jobs}


@in_event_loop
async def test_held_back_jobs_are_listed_after_the_queue_with_reason_and_help(tmp_path: Path) -> None:
    pool = FakePool(tmp_path, "1x1")
    pool.submit("a")
    await pool.wait_for_running("a")
    pool.submit("b")
    waiting = status_of(pool).waiting
    assert [(job["id"], job["reason"]) for job in waiting] == [("b", "capacity"), ("held", "held")]
    assert all(job["why"] and job["fix"] for job in waiting)
    assert 4 < waiting[1]["waited"] < 60


@in_event_loop
async def test_the_time_that_a_preempted_job_ran_does_not_count_as_waiting(tmp_path: Path) -> None:
    pool = FakePool(tmp_path, "1x1")
    pool.runtime.now = time.time() - 1000
    pool.submit("low")
    await pool.wait_for_running("low")
    pool.runtime.now += 600
    pool.submit("high", priority=9)
    await pool.wait_for_stop_request("low")
    pool.save_and_stop("low")
    await pool.wait_for_running("high")
    await pool.wait_for(lambda: pool.waiting() == {"low"}, "it waits again")
    low = by_id(status_of(pool).waiting)["low"]
    assert 399 < low["waited"] < 460, "1,000 s have passed, and it ran for 600 of them"
    assert 599 < low["ran"] < 601
    pool.runtime.now += 300
    pool.runtime.exit("high", 0)
    await pool.wait_for_running("low")
    await pool.wait_for(lambda: pool.dispatcher.running_processes() == ["low"], "its launch is known")
    low = by_id(status_of(pool).running)["low"]
    assert 299 < low["waited"] < 310
    assert 699 < low["ran"] < 760, "the first attempt, and the 100 s of the second until now"


@in_event_loop
async def test_devices_have_their_rack_and_links(tmp_path: Path) -> None:
    pool = FakePool(tmp_path, "2x2@1")
    pool.engine.set_nodes(
        replace(node.node, links=parse_links("nvlink:2", 2)) for node in list(pool.engine.cluster)
    )
    devices = status_of(pool).devices
    assert [device["rack"] for device in devices] == ["rack-1", "rack-1", "rack-2", "rack-2"]
    assert devices[0]["links"] == [{"link": "NVLink", "devices": [0, 1]}]


@in_event_loop
async def test_a_queue_that_is_cut_is_counted_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = FakePool(tmp_path, "1x1")
    pool.submit("a")
    assert status_of(pool).whole == {}
    monkeypatch.setattr(status_builder, "MOST_LISTED", 1)
    status = status_of(pool)
    assert (len(status.waiting), status.waiting_count, status.gpus_waited_for) == (1, 9, 9)
