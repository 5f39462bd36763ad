"""The answer of every named query on one history (lab_history), worked out by hand."""

from __future__ import annotations

from datetime import UTC, date, datetime
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import duckdb
import pytest
from analytics_history import History
from lab_history import T, lab_facts

from gpu_flows.analytics.sql_files import named_queries

# Times are seconds after T. Devices are free: g0 0-10, 1810-1820, 3620-3900 (then sick); g1 0-1820,
# 2420-2430, 3000-3020, 3620-3810. Jobs wait: a 0-10, b 100-1820 and 2420-3020, c 2000-2420, d 2400-2430,
# f 3800-3810, w from 3850.
ANSWERS: dict[str, list[tuple[Any, ...]]] = {
    "allocation": [
        (None, None, None, 5560, 8400, 66.2),
        ("other", None, None, 0, 500, 0),
        ("other", "m0", None, 0, 500, 0),
        ("other", "m0", "x0", 0, 500, 0),
        ("pool", None, None, 5560, 7900, 70.4),
        ("pool", "n0", None, 3600, 3900, 92.3),
        ("pool", "n0", "g0", 3600, 3900, 92.3),
        ("pool", "n1", None, 1960, 4000, 49),
        ("pool", "n1", "g1", 1960, 4000, 49),
    ],
    # 2760 s of the first hour: 2520 s of waiting, 3070 s of running; 1240 s of the next one: 420 and 1290
    "busiest_hours": [(22, 0.91, 1.11), (23, 0.34, 1.04)],
    "checkpoints": [
        ("b", 2, "completed", 0, None, 0, 0, 600, 300, 4, 0),
        ("b", 1, "preempted", 3, 2, 1, 200, 300, None, None, 60),
    ],
    "communication": [
        ("pool", "fifo", "rack", 1, 1, 0.333, 30, 5, None),
        ("pool", "srtf", "rack", 1, 1, 0.333, None, None, None),
    ],
    "device_health": [
        ("pool", "n0", 0, "GTX", "g0", "sick", 3900, "xid 79", 100),
        ("other", "m0", 0, "GTX", "x0", "healthy", 3000, None, 0),
        ("pool", "n1", 0, "GTX", "g1", "healthy", 0, None, 0),
    ],
    # a 1800 s of 200 W and c 600 s of 100 W; b 1200 s of 250 W; idle for 290 s of 50 W
    # `b` started 20 s late and ended 1220 s late, `d` 10 s and 100 s; horizons of 800, 1400, 20 and 500 s
    "eta_quality": [
        ("pool", "fifo", "end", "first", 2, 50, 660, 660, 69.5),
        ("pool", "fifo", "end", "1 to 10 min", 1, 100, 100, 100, 20),
        ("pool", "fifo", "end", "10 to 60 min", 1, 0, 1220, 1220, 87.1),
        ("pool", "fifo", "start", "first", 2, 50, 15, 15, 3.7),
        ("pool", "fifo", "start", "under 1 min", 1, 0, 10, 10, 50),
        ("pool", "fifo", "start", "10 to 60 min", 1, 100, 20, 20, 2.5),
    ],
    "regret": [(3500, "pool", 0, 3000, "fifo", "srtf", 25, 4)],
    "shadows": [("pool", "fifo", "srtf", 1, 2, 75, -50, 25, 1, 300, 398, 0, 1)],
    "energy": [("pool", "ann", 2, 0.117), ("pool", "bob", 1, 0.083), ("pool", "(idle devices)", 0, 0.004)],
    "experiments": [("exp", "fifo", 2, 2, 3020, 1415, 1415, 1731, 215, 69.2, 43.9, "edited")],
    "failures": [
        (3700, "e", None, "e", "carl", None, "refused", None, "too large"),
        (3020, "c", 1, "c", "ann", '["n0"]', "failed", 1, "ValueError"),
    ],
    # ann (1810 / 1800 + 1020 / 600) / 2, bob (3520 / 1200 + 600 / 570) / 2
    "fairness": [("pool", "bob", 2, 1.99, 0.965), ("pool", "ann", 2, 1.35, 0.965)],
    "fragmentation": [
        ("pool", 0, 10, 2, 20),  # a
        ("pool", 1810, 10, 2, 20),  # b
        ("pool", 3800, 10, 2, 20),  # f
        ("pool", 2420, 10, 1, 10),  # d
    ],
    "gpu_hours": [("pool", "bob", 0.825, 53.4), ("pool", "ann", 0.667, 43.2), ("pool", "carl", 0.053, 3.4)],
    "idle_now": [("other", "m0", 0, "GTX", "x0", 3000, 500)],
    # 2910 s of waiting; idle then: 20 + 1710 + 20 (until 1820) + 10 + 20 + 20 + 50 device-seconds
    "idle_while_waiting": [("other", 0, 0, 0), ("pool", 0.808, 0.514, 0.019)],
    "jobs_per_week": [
        (date(2023, 11, 13), "bob", 3, 0.825),
        (date(2023, 11, 13), "ann", 2, 0.667),
        (date(2023, 11, 13), "carl", 2, 0.053),
    ],
    "launch_overhead": [("pool", "process", 6, 3.5, 10, 10)],  # 0, 1, 2, 5, 10, 10
    "learning": [("t", 1, 20, 10, 1, 3, 3, 90, 100, pytest.approx(-10), 0.4)],
    "longest_waits": [
        ("b", "b", "bob", 2, "ended", 100, 2320),
        ("c", "c", "ann", 1, "ended", 2000, 420),
        ("w", "w", "bob", 2, "waiting", 3850, 150),
        ("d", "d", "bob", 1, "ended", 2400, 30),
        ("a", "a", "ann", 1, "ended", 0, 10),
    ],
    "makespan": [
        ("overall", None, 4, 0, 3620, 3620),
        ("pool", "pool", 4, 0, 3620, 3620),
        ("experiment", "exp", 2, 0, 3020, 3020),
    ],
    "missed_deadlines": [
        ("w", "w", "bob", None, "waiting", 3900, None, 100),
        ("b", "b", "bob", "srtf", "ended", 3000, 3620, 620),
    ],
    "offers": [
        (1815, "b", 2, "fifo", "rack", "accepted", 1715, None, None, 1.25, 0.2),
        (1000, "b", 2, "fifo", "rack", "declined", 900, 2000, 815, 1.5, 0.1),
    ],
    # fifo until 3000: 4150 of 6000 device-seconds, utilization 263600 / 6000;
    # then 1410 of 1900, 117900 / 1890
    "policies": [
        ("pool", "fifo", 3, 3, 3020, 1143.3, 1020, 1652, 153.3, 69.2, 43.9),
        ("pool", "srtf", 2, 1, 3520, 3520, 3520, 3520, 2320, 74.2, 62.4),
    ],
    "predictions": [
        ("memory_mb", "history", "v1", 1, 100, 100, 0, 100),
        ("seconds", "stated", "", 1, 50, 50, 50, 100),
    ],
    "preempted_users": [("bob", 1, 1, 0.033, 600)],
    "preemption_costs": [("all", 1, 1, 10, 10, 0, 60, 120), ("pool", 1, 1, 10, 10, 0, 60, 120)],
    "preemptions": [(2410, "b", 1, "preempted", "fifo", "c", 600, 10, 60, 600, 10, "2", False)],
    "queue_by_hour": [("pool", -840, 0.91, 2, 1.11), ("pool", 2760, 0.34, 1, 1.04)],
    "queueing": [
        ("overall", None, 4, 695, 225, 1750, 2263, 2320),
        ("pool", "pool", 4, 695, 225, 1750, 2263, 2320),
        ("experiment", "exp", 2, 215, 215, 379, 415.9, 420),
    ],
    "running": [("f", 1, "pool", "f", "carl", "srtf", '["n1"]', 1, 3810, 190)],
    "slowest_jobs": [
        ("b", "b", "bob", 2, "srtf", "completed", 100, 3520, 2320, 1200),
        ("a", "a", "ann", 1, "fifo", "completed", 0, 1810, 10, 1800),
        ("c", "c", "ann", 1, "fifo", "failed", 2000, 1020, 420, 600),
        ("d", "d", "bob", 1, "fifo", "completed", 2400, 600, 30, 570),
    ],
    "small_jobs": [("pool", "fifo", 3, 1143.3, 153.3, 1.25)],
    "swaps": [
        (3100, "pool", "srtf", "nope", "{}", "unknown policy"),
        (3000, "pool", "fifo", "srtf", "{}", "in force"),
        (0, "pool", "", "fifo", "{}", "in force"),
    ],
    "turnaround": [
        ("overall", None, 4, 1737.5, 1415, 3007, 3468.7, 3520),
        ("pool", "pool", 4, 1737.5, 1415, 3007, 3468.7, 3520),
        ("experiment", "exp", 2, 1415, 1415, 1731, 1802.1, 1810),
    ],
    "unused_gpus": [("d", "d", "bob", 1, 1, 0, 0.158)],
    "unused_memory": [("d", "d", "bob", "completed", 6000, 2000, 4000)],
    "utilization": [
        ("m0", 0, "GTX", "x0", 1, 0, 0, None, 30),
        ("n0", 0, "GTX", "g0", 390, 67.9, 4627, 188.8, 60),  # over 3890 s
        ("n1", 0, "GTX", "g1", 401, 29.4, 2450, None, 60),  # over 4000 s
    ],
    "waiting": [("w", "pool", "w", "bob", 2, 0, 3850, 0, 150)],
    "waits_by_user": [("bob", 3, 833.3, 2320, "b"), ("ann", 2, 215, 420, "c"), ("carl", 1, 10, 10, "f")],
    "wasted_gpu_hours": [("ann", "failed", 1, 1, 0.167)],
    "who": [
        ("bob", 3, 1, 0, 2, 0.825, 2060, 1175),
        ("ann", 2, 0, 0, 1, 0.667, 1415, 215),
        ("carl", 2, 0, 1, 0, 0.053, None, None),
    ],
    "worst_predictions": [
        ("a", "a", "f", "seconds", "stated", 900, 2000, 1800, -0.5, False),
        ("d", "d", "f", "memory_mb", "history", 4000, 4500, 2000, 1, False),
    ],
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> History:
    history = History(tmp_path_factory.mktemp("lab"))
    history.record(*lab_facts())
    return history


@pytest.fixture(scope="module")
def aged_lab(tmp_path_factory: pytest.TempPathFactory) -> History:
    """The same history ten hours later: its samples are rolled up into minutes, and deleted."""
    history = History(tmp_path_factory.mktemp("aged_lab"))
    history.record(*lab_facts())
    history.age_samples(36_000)
    assert history.query("select count(*) from samples") == [(0,)]
    return history


def ask(connection: duckdb.DuckDBPyConnection, sql: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    rows = connection.execute(sql, parameters or None).fetchall()
    return [tuple(since_t(value) if isinstance(value, datetime) else value for value in row) for row in rows]


def since_t(time: datetime) -> float:
    return time.timestamp() - T


@pytest.mark.parametrize("state", ["lab", "aged_lab"])
def test_every_named_query_has_its_known_answer(state: str, request: pytest.FixtureRequest) -> None:
    wrong = {}
    with request.getfixturevalue(state).connect() as connection:
        connection.execute("set TimeZone = 'UTC'")
        for query in named_queries():
            defaults = {parameter.name: parameter.default for parameter in query.parameters}
            answer = ask(connection, query.sql, defaults)
            if answer != ANSWERS.get(query.name):
                wrong[query.name] = answer
    assert wrong == {}


def test_each_known_answer_belongs_to_a_query() -> None:
    assert sorted(ANSWERS) == sorted(query.name for query in named_queries())


@pytest.mark.parametrize(
    ("zone", "hours"),
    [("UTC", [(2, 900), (3, 900)]), ("Asia/Kolkata", [(8, 1800)]), ("Europe/Berlin", [(4, 900), (5, 900)])],
)
def test_hours_are_those_of_the_time_zone(tmp_path: Path, zone: str, hours: list[tuple[int, int]]) -> None:
    history = History(tmp_path)
    begun = datetime(2026, 5, 4, 2, 45, tzinfo=UTC).timestamp() - T
    history.device("g0", begun)
    history.run("a", begun, begun, begun + 1800, "g0")
    with history.connect() as connection:
        connection.execute(f"set TimeZone = '{zone}'")
        found = connection.execute(
            "select hour(hour) as h, sum(lasted_s) from queue_in_hours group by h order by h"
        ).fetchall()
    assert found == hours


@pytest.mark.parametrize(
    ("name", "parameters", "expected"),
    [
        ("longest_waits", {"limit": 1}, ["b"]),
        ("fragmentation", {"pool": "pool", "limit": 2}, ["pool", "pool"]),
        ("fragmentation", {"pool": "other", "limit": 2}, []),
        ("gpu_hours", {"pool": "other"}, []),
        ("small_jobs", {"gpus": 1, "minutes": 5}, []),
        ("small_jobs", {"gpus": 2, "minutes": 60}, ["pool", "pool"]),
        ("unused_gpus", {"percent": 30, "limit": 9}, ["c", "d"]),
        ("waits_by_user", {"days": 300 / 86400}, ["bob", "carl"]),  # w and f
        ("missed_deadlines", {"limit": 1}, ["w"]),
        ("jobs_per_week", {"weeks": 0}, []),
        ("queue_by_hour", {"days": 1 / 24, "pool": ""}, ["pool"]),
    ],
)
def test_parameters_choose_what_is_shown(
    lab: History, name: str, parameters: dict[str, Any], expected: list[str]
) -> None:
    [query] = [query for query in named_queries() if query.name == name]
    with lab.connect() as connection:
        assert [row[0] for row in ask(connection, query.sql, parameters)] == expected


def test_the_examples_in_the_docs_are_what_the_script_prints() -> None:
    path = Path(__file__).parent.parent / "benchmarks" / "sql_examples.py"
    spec = spec_from_file_location("sql_examples", path)
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.replace_examples(page, script.make_examples()) == page
