"""The tables that the Prefect UI shows of a pool, from its status, and when they are written."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

import pytest

from gpu_flows.analytics.query_runner import QueryResult
from gpu_flows.worker.artifact_refresh import REFRESH_MOVING_S, REFRESH_S, Pacer
from gpu_flows.worker.pool_tables import (
    MOST_LINKS,
    MOST_ROWS,
    Table,
    key_of,
    make_comparison_table,
    make_devices_table,
    make_queue_table,
    make_tables,
)
from gpu_flows.worker.status import Status

NOW = time.mktime((2026, 3, 4, 13, 0, 0, 0, 0, -1))
ZONE = time.strftime("%Z", time.localtime(NOW))
HOSTILE = (
    '<img src="http://evil/x" onerror="a()">[x](javascript:b) https://evil ![y](z) `\\ \x1b[2J\n| www.evil'
)


def waiting(name: str, **more: Any) -> dict[str, Any]:
    needs = {"user": "ada", "gpus": 2, "priority": 0, "submitted": NOW - 90, "waited": 90.0}
    why = {"reason": "capacity", "why": "2 GPUs are busy.", "fix": "Ask for fewer."}
    return {"id": f"id-of-{name}", "name": name, **needs, **why, **more}


def device(index: int, **more: Any) -> dict[str, Any]:
    place = {"id": f"GPU-{index}", "node": "node-1", "index": index, "model": "A100", "memory_mb": 81920}
    reading = {"utilization": 55.4, "memory_used_mb": 2048.0, "power_w": 70.0, "temperature_c": 40.0}
    return {**place, **reading, "healthy": True, "detail": "", "jobs": [], **more}


def status(*jobs: dict[str, Any], **more: Any) -> Status:
    policy = {"name": "fifo", "serving": "fifo", "saved": None}
    fields: dict[str, Any] = {"running": [], "devices": [], **more}
    return Status("gpu", "worker", NOW, policy, list(jobs), **fields)


def test_a_waiting_job_has_its_place_its_reason_and_what_would_help() -> None:
    eta = {"start_p50": NOW + 1200, "start_p90": NOW + 90_000, "end_p50": NOW, "end_p90": NOW}
    table = make_queue_table(status(waiting("first", eta=eta), waiting("second", waited=4000.0)))
    assert table.rows[0] == {
        "#": 1,
        "run": "first",
        "user": "ada",
        "GPUs": 2,
        "waited": "1 min",
        "ETA": f"13:20 (p90 Thu 14:00 {ZONE})",
        "reason": "capacity",
        "why": "2 GPUs are busy.",
        "what would help": "Ask for fewer.",
        "page": "[open](../../runs/flow-run/id-of-first)",
    }
    second = table.rows[1]
    assert (second["#"], second["waited"], second["ETA"]) == (2, "1 h 06 min", "")
    assert "2 waiting, 0 running, policy fifo" in table.description
    assert "[first](../../runs/flow-run/id-of-first)" in table.description


def test_a_long_queue_is_cut_and_says_so() -> None:
    table = make_queue_table(status(*(waiting(f"job-{number}") for number in range(MOST_ROWS + 5))))
    assert len(table.rows) == MOST_ROWS
    assert f"first {MOST_ROWS} of {MOST_ROWS + 5}" in table.description
    assert table.description.count("/runs/flow-run/") == MOST_LINKS
    table = make_queue_table(status(waiting("first"), whole={"by_reason": {"capacity": 5000}, "gpus": 5000}))
    assert "5000 waiting, 0 running" in table.description
    assert f"first {MOST_ROWS} of 5000" in table.description


def test_a_device_has_its_load_its_health_and_its_jobs() -> None:
    sick = device(1, healthy=False, detail="Xid 79", utilization=None, memory_used_mb=None)
    table = make_devices_table(status(devices=[device(0, jobs=["a", "b"]), sick]))
    assert [(row["device"], row["health"], row["jobs"]) for row in table.rows] == [
        ("node-1:0", "ok", "a, b"),
        ("node-1:1", "Xid 79", ""),
    ]
    assert (table.rows[0]["utilization"], table.rows[0]["memory"]) == ("55 %", "2.0 of 80 GB")
    assert (table.rows[1]["utilization"], table.rows[1]["memory"]) == ("", "80 GB")
    assert "1 of 2 in use, 1 out of use" in table.description


def test_a_comparison_has_a_row_for_each_policy() -> None:
    found = QueryResult(["pool", "policy", "jobs", "makespan_s"], [("gpu", "fifo", 3, 9.5)], False)
    assert make_comparison_table("gpu", found).rows == [{"policy": "fifo", "jobs": 3, "makespan_s": 9.5}]


def test_hostile_names_are_neither_html_nor_links() -> None:
    """What the browser makes of them is in test_browser_artifacts.py."""
    hostile = status(
        waiting(HOSTILE, id="id", user=HOSTILE, why=HOSTILE),
        running=[waiting(HOSTILE, id="id")],
        devices=[device(0, jobs=[HOSTILE], healthy=False, detail=HOSTILE, model=HOSTILE, node=HOSTILE)],
        cluster_trouble=HOSTILE,
    )
    for table in make_tables(replace(hostile, pool=HOSTILE)):
        own_links = re.compile(r"\[[^][]*\]\(\.\./\.\./runs/flow-run/id\)")
        cells = [str(value) for row in table.rows for key, value in row.items() if key != "page"]
        for text in [own_links.sub("", table.description), *cells]:
            assert not re.search(r"<\w|\]\(|://|\bwww\.|[\x00-\x09\x0b-\x1f]", text)
        assert not re.search(r"[<>`\\]", own_links.sub("", table.description))


@pytest.mark.parametrize(
    ("pool", "key"),
    [
        ("gpu", "gpu-queue-gpu"),
        ("gpu-lab", "gpu-queue-gpu-lab"),
        ("My Lab_2 (new)", "gpu-queue-my-lab-2-new-[0-9a-f]{8}"),
        ("日本", "gpu-queue-[0-9a-f]{8}"),
    ],
)
def test_keys_consist_of_what_prefect_allows(pool: str, key: str) -> None:
    assert re.fullmatch(key, key_of("queue", pool))


def test_similar_names_of_pools_have_different_keys() -> None:
    assert len({key_of("queue", pool) for pool in ("GPU lab", "gpu_lab", "gpu-lab", "日本", "京都")}) == 5


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_change_is_written_soon_and_what_moves_all_the_time_seldom() -> None:
    clock = Clock()
    pacer = Pacer(clock)

    def writes(jobs: list[dict[str, Any]], after: float) -> bool:
        clock.now += after
        due = [table for table in pacer.find_due([make_queue_table(status(*jobs))]) if pacer_note(table)]
        return bool(due)

    def pacer_note(table: Table) -> bool:
        pacer.note(table, is_written=True)
        return True

    one, two = [waiting("a")], [waiting("a"), waiting("b")]
    assert writes(one, 0), "the first one at once"
    assert not writes(two, REFRESH_S - 1), "too soon after it"
    assert writes(two, 1), "and then"
    assert writes(one, 100), "a change after a quiet time at once"
    later = [waiting("a", waited=3600.0)]
    assert not writes(later, REFRESH_S), "only how long it has waited has changed"
    assert writes(later, REFRESH_MOVING_S)
    assert not writes(later, 10 * REFRESH_MOVING_S), "nothing has changed"
    pacer.forget()
    assert writes(later, 0)
