"""Samples that were rolled up into minutes and deleted: every view and query answers as before."""

from __future__ import annotations

import asyncio
import math
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from analytics_history import History, T
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_flows.analytics import sample_minutes, sql_files
from gpu_flows.analytics.facts import JobSubmitted, Sampled
from gpu_flows.analytics.figures import energy, utilization
from gpu_flows.analytics.query_runner import run_query
from gpu_flows.blocks import Warehouse
from gpu_flows.worker.recording import open_recorder

HOUR = 3600.0
LATER = 10 * HOUR  # everything is rolled up then, and samples are deleted

# Those that read samples; every other view reads these, or none.
VIEWS = ["energy", "job_use", "piece_use", "policy_use", "pool_clock", "last_samples",
         "utilization_by_device", "utilization_by_node", "utilization_by_minute",
         "utilization_by_device_minute"]  # fmt: skip


# Two hours in 120 intervals: they have the edges of the minutes.
FIGURES = [utilization.CHART, energy.CHART]
BEGIN = datetime.fromtimestamp(T, UTC)
SCOPE = {"pool": "pool", "since": BEGIN, "until": BEGIN + timedelta(hours=2)}


def ask_everything(history: History) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of every view and figure on samples, in an order that does not depend on rounding."""
    with history.connect() as connection:
        answers = {name: connection.execute(f"from {name}").fetchall() for name in VIEWS}
        answers |= {
            f"figure {chart.key}": connection.execute(chart.sql, SCOPE).fetchall() for chart in FIGURES
        }
    return {name: sorted(rows, key=_without_numbers) for name, rows in answers.items()}


def test_all_views_on_samples_are_compared() -> None:
    readers = {"device_readings", "last_samples", "samples", "sample_minutes"}
    texts = {
        name: "\n".join(line for line in sql.splitlines() if not line.strip().startswith("--"))
        for name, sql in sql_files.views().items()
    }
    found = {name for name, sql in texts.items() if readers & set(re.findall(r"\w+", sql))}
    assert found - {"device_readings", "sample_edges"} <= {*VIEWS}


def _without_numbers(row: tuple[Any, ...]) -> str:
    return repr([value for value in row if not isinstance(value, float)])


def assert_same(before: dict[str, list[tuple[Any, ...]]], after: dict[str, list[tuple[Any, ...]]]) -> None:
    for name, rows in before.items():
        assert len(rows) == len(after[name]), name
        for row, row_after in zip(rows, after[name], strict=True):
            for value, value_after in zip(row, row_after, strict=True):
                assert is_same(value, value_after), (name, row, row_after)


def is_same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-6)
    return one == other


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path)


def sample(history: History, device: str, at: float, value: float | None = 50.0) -> None:
    history.record(Sampled(T + at, device, value, 1_000.0, value and 2 * value, 60.0))


def sample_all(history: History, device: str, since: float, until: float, value: float = 50.0) -> None:
    at = since
    while at < until:
        sample(history, device, at, value)
        at += 5


def count_samples(history: History) -> int:
    return int(history.query("select count(*) from samples")[0][0])


def rolled(history: History) -> list[tuple[float, float]]:
    return history.query(f"select epoch(rolled_until) - {T}, epoch(kept_since) - {T} from sample_clock")


# --- the minutes ---


def test_samples_become_pieces_of_minutes_that_end_where_a_job_starts(history: History) -> None:
    history.device("g0")
    history.run("a", 0, 27, 62, "g0")
    for at, value in ((0, 10.0), (8, 20.0), (24, 40.0), (30, None), (36, 80.0), (55, 90.0), (66, 100.0)):
        sample(history, "g0", at, value)
    history.age_samples(2 * HOUR)
    columns = f"epoch(since) - {T}, epoch(until) - {T}, samples, measured_s, utilization, is_last"
    assert history.query(f"select {columns} from sample_minutes order by since, utilization is null") == [
        (0.0, 27.0, 3, 21.0, pytest.approx((80 + 200 + 120) / 21), False),  # a gap from 18 to 24
        (
            27.0,
            60.0,
            2,
            18.0,
            pytest.approx((120 + 800 + 450) / 18),
            False,
        ),  # without the readings that are NULL
        (30.0, 36.0, 1, 6.0, None, False),
        (60.0, 62.0, 0, 2.0, 90.0, False),
        (62.0, 65.0, 0, 3.0, 90.0, False),
        (66.0, 76.0, 1, 10.0, 100.0, True),  # if another sample follows
    ]


def test_only_samples_that_are_old_enough_are_rolled_up_and_deleted(history: History) -> None:
    history.device("g0")
    sample_all(history, "g0", 0, 5 * HOUR)
    assert count_samples(history) == 3600
    history.age_samples(5 * HOUR)
    assert rolled(history) == [(4 * HOUR, 2 * HOUR)]
    assert count_samples(history) == 3 * 720 + 24  # three hours, and two minutes before
    assert history.query("select samples from utilization_by_device") == [(3600,)]
    history.age_samples(5 * HOUR + 500)  # not worth a transaction yet
    assert rolled(history)[0][0] == 4 * HOUR
    history.age_samples(5 * HOUR + 600)
    assert rolled(history)[0][0] == 4 * HOUR + 600


def test_a_device_that_was_silent_for_a_day_continues(history: History) -> None:
    history.device("g0")
    sample_all(history, "g0", 0, 30)
    history.age_samples(6 * HOUR)
    assert history.query("select measured_s from utilization_by_device") == [(25.0,)]
    sample_all(history, "g0", 24 * HOUR, 24 * HOUR + 30, 80.0)
    assert history.query("select measured_s from utilization_by_device") == [(60.0,)]
    history.age_samples(48 * HOUR)
    assert history.query("select measured_s, samples from utilization_by_device") == [(60.0, 12)]
    assert history.query("select count(*) from sample_minutes where is_last") == [(1,)]


# --- facts that arrive late ---


@pytest.mark.parametrize("hours", [2, 10])
def test_samples_that_arrive_after_their_minutes_were_rolled_up_count(history: History, hours: int) -> None:
    """After two hours the minutes are made again, and after ten the samples of then are deleted."""
    for device in ("g0", "g1"):
        history.device(device)
    sample_all(history, "g0", 0, HOUR)
    history.age_samples(hours * HOUR)
    sample_all(history, "g1", 0, HOUR, 90.0)
    history.age_samples(hours * HOUR)
    history.age_samples((hours + 1) * HOUR)
    columns = "device_id, samples, measured_s, utilization_percent"
    assert history.query(f"select {columns} from utilization_by_device order by 1") == [
        ("g0", 720, 3595.0, pytest.approx(50.0)),
        ("g1", 720, pytest.approx(3595.0), pytest.approx(90.0)),
    ]
    assert history.query("from late_minutes") == []


def test_late_samples_around_the_time_since_which_samples_are_kept_count(history: History) -> None:
    for device in ("g0", "g1"):
        history.device(device)
    sample_all(history, "g0", 0, 5 * HOUR)
    history.age_samples(5 * HOUR)
    assert rolled(history) == [(4 * HOUR, 2 * HOUR)]
    sample_all(history, "g1", 2 * HOUR - 240, 2 * HOUR + 60)
    history.age_samples(5 * HOUR)
    assert history.query("select device_id, samples, measured_s from utilization_by_device order by 1") == [
        ("g0", 3600, pytest.approx(5 * HOUR - 5)),
        ("g1", 60, pytest.approx(295.0)),
    ]


def test_a_simulation_in_the_same_file_delays_nothing(history: History) -> None:
    history.device("g0")
    sample_all(history, "g0", 0, HOUR)
    history.age_samples(3 * HOUR)
    history.run("simulated", -T, 100 - T, 40 * HOUR - T)
    history.query("select 1")
    assert history.query("from late_minutes") == []
    assert rolled(history)[0][0] == 2 * HOUR


def test_late_minutes_without_samples_are_forgotten_at_once(history: History) -> None:
    history.device("g0")
    sample_all(history, "g0", 0, 30)
    sample_all(history, "g0", 40 * HOUR, 40 * HOUR + 30)
    history.age_samples(42 * HOUR)
    for number in range(30):  # each in an hour of its own
        history.job(f"late{number}", 2 * HOUR + number * HOUR)
    history.query("select 1")
    assert history.query("select count(*) > 30 from late_minutes") == [(True,)]
    history.age_once(42 * HOUR)
    assert history.query("from late_minutes") == []


def test_late_samples_of_a_device_fill_its_gap(history: History) -> None:
    history.device("g0")
    sample_all(history, "g0", 0, 95)
    sample_all(history, "g0", 300, 2 * HOUR)
    history.age_samples(2.5 * HOUR)
    sample_all(history, "g0", 95, 300, 100.0)
    history.age_samples(2.5 * HOUR)
    assert history.query("select samples, measured_s from utilization_by_device") == [(1440, 7195.0)]
    assert history.query(
        f"select utilization_percent from utilization_by_device_minute where epoch(minute) = {T + 60}"
    ) == [(pytest.approx((35 * 50 + 25 * 100) / 60),)]


def test_a_start_that_is_recorded_late_divides_the_energy_of_its_minute(history: History) -> None:
    history.device("g0")
    for at in range(0, 120, 5):
        sample(history, "g0", at, 10.0 if at < 30 else 90.0)
    history.job("a", 0)
    history.age_samples(2 * HOUR)
    history.start("a", 30, "g0")
    history.stop("a", 60)
    history.end("a", 60)
    history.age_samples(2 * HOUR)
    # 2 W per percent: 90 % for 30 s by the job; 10 % for 30 s and 90 % for 55 s by nobody
    assert history.query("select job_id, 3600 * energy_wh from energy order by job_id nulls last") == [
        ("a", pytest.approx(90 * 2 * 30)),
        (None, pytest.approx(10 * 2 * 30 + 90 * 2 * 55)),
    ]


def test_the_heat_map_weighs_what_was_measured(history: History) -> None:
    history.device("g0")
    history.run("a", 0, 40, 58, "g0")  # divides the minute
    for at, value in ((0, 0.0), (30, 0.0), (40, 100.0), (50, 100.0), (58, 100.0)):
        sample(history, "g0", at, value)  # a gap from 10 to 30
    before = ask_everything(history)["figure utilization"]
    assert before[0][-1] == pytest.approx(100 * 18 / 38)
    history.age_samples(2 * HOUR)
    [after] = [row for row in ask_everything(history)["figure utilization"] if row[2] == BEGIN]
    assert after[-1] == pytest.approx(100 * 18 / 38)


# --- every answer ---

VALUES = st.one_of(st.none(), st.integers(0, 100).map(float))
READINGS = st.lists(
    st.tuples(st.integers(1, 20), VALUES, VALUES, VALUES, VALUES), min_size=1, max_size=60
)  # seconds since the one before, and values
ATTEMPTS = st.lists(
    st.tuples(st.integers(0, 700), st.integers(1, 400), st.sampled_from(["g0", "g1", "g0 g1"]),
              st.sampled_from(["completed", "failed", "preempted", "suspended", "unknown"]),
              st.sampled_from(["", "bench"]), st.sampled_from(["ann", "bob"])),
    max_size=5,
)  # fmt: skip
SWAPS = st.lists(st.integers(0, 900), max_size=2, unique=True)
SICK = st.lists(st.integers(0, 900), max_size=2, unique=True)


@pytest.mark.slow
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    readings=st.tuples(READINGS, READINGS),
    attempts=ATTEMPTS,
    swaps=SWAPS,
    sick=SICK,
    split=st.integers(0, 1000),
)
def test_every_answer_stays_the_same(
    readings: tuple[Any, Any], attempts: Any, swaps: Any, sick: Any, split: int
) -> None:
    with TemporaryDirectory() as folder:
        history = History(Path(folder))
        record_devices(history, readings, sick)
        record_jobs(history, attempts)
        for number, at in enumerate(sorted(swaps)):
            history.swap(at + 0.25, ("fifo", "srtf")[number], ("srtf", "fifo")[number])
        before = ask_everything(history)
        history.age_samples(HOUR + split)  # a part
        assert_same(before, ask_everything(history))
        history.age_samples(LATER)
        assert count_samples(history) == 0
        assert_same(before, ask_everything(history))


def record_devices(history: History, readings: tuple[Any, Any], sick: list[int]) -> None:
    for device, steps in zip(("g0", "g1"), readings, strict=True):
        history.device(device)
        at = 0.5
        for gap, *values in steps:
            at += gap
            history.record(Sampled(T + at, device, *values))
    for number, at in enumerate(sorted(sick)):
        history.health("g0", at, ("sick", "healthy")[number])


def record_jobs(history: History, attempts: list[Any]) -> None:
    for number, (begin, length, devices, outcome, experiment, user) in enumerate(attempts):
        job_id = f"job{number}"
        request = len(devices.split()), 0, 0, None, None
        history.record(
            JobSubmitted(job_id, "pool", job_id, "f", "d", user, "[]", *request, T + begin - 7.5, experiment)
        )
        history.start(job_id, begin, *devices.split(), policy="srtf" if number % 2 else "fifo")
        if outcome != "unknown":
            history.stop(job_id, begin + length, outcome=outcome)
        if outcome in ("completed", "failed"):
            history.end(job_id, begin + length, outcome)


# --- in a worker ---


def test_the_recorders_thread_rolls_up_and_deletes_what_the_block_says(tmp_path: Path) -> None:
    warehouse = Warehouse(path=str(tmp_path / "w.duckdb"), keep_samples_days=1)
    recorder = asyncio.run(open_recorder(warehouse, tmp_path / "spool"))
    recorder.write(Sampled(T, "g0", 50.0, None, None, None), Sampled(T + 5, "g0", 50.0, None, None, None))
    clock = "select (select count(*) from samples), (select sum(samples) from sample_minutes)"
    deadline = time.monotonic() + 60
    while run_query(recorder.database, clock).rows != [(0, 2)]:
        assert time.monotonic() < deadline, recorder.trouble
        recorder.age_samples(datetime.now(UTC))
        time.sleep(0.1)
    recorder.close()


def test_samples_are_kept_for_ever_if_the_block_says_so(tmp_path: Path) -> None:
    warehouse = Warehouse(path=str(tmp_path / "w.duckdb"), keep_samples_days=0)
    recorder = asyncio.run(open_recorder(warehouse, tmp_path / "spool"))
    recorder.write(Sampled(T, "g0", 50.0, None, None, None))
    assert recorder.drain()
    while recorder.age_samples(datetime.now(UTC)):
        pass
    recorder.close()
    assert run_query(recorder.database, "select count(*) from samples").rows == [(1,)]


def test_a_roll_up_that_fails_changes_nothing(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    history.device("g0")
    sample_all(history, "g0", 0, 600)
    with monkeypatch.context() as broken:
        broken.setattr(sample_minutes, "_FOLLOWED", "select * from no_such_table where $since < $until")
        history.age_samples(2 * HOUR)
    assert history.query("select count(*) from sample_minutes") == [(0,)]
    assert rolled(history)[0][0] < 0
    history.age_samples(2 * HOUR)
    assert history.query("select samples, measured_s from utilization_by_device") == [(120, 595.0)]
