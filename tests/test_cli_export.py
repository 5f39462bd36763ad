"""`gpu-flows export`: every table and main view in files that DuckDB reads back."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from analytics_history import History
from command_line.run import HOSTILE_TEXT, CommandResult, expect_error, gpu_flows
from lab_history import END, T, lab_facts

from gpu_flows.analytics.export import TABLES, VIEWS
from gpu_flows.analytics.facts import Fact

pytest_plugins = ["command_line.fixtures"]
pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """The lab's hour, which ended a moment ago."""
    history = History(tmp_path_factory.mktemp("lab"))
    history.record(*(later(fact, time.time() - END - T) for fact in lab_facts()))
    history.query("from jobs")
    return history


def later(fact: Fact, seconds: float) -> Fact:
    times = ("time", "submitted", "deadline", "started", "planned", "ended", "since", "requested", "released")
    values = {name: getattr(fact, name, None) for name in times}
    moved = {name: value + seconds for name, value in values.items() if isinstance(value, float)}
    if fact.table == "jobs" and values["submitted"] == T + 100:
        moved["name"] = HOSTILE_TEXT
    return replace(fact, **moved)


def export(history: History, *words: str) -> CommandResult:
    return gpu_flows("export", *words, "--database", str(history.database))


@pytest.mark.slow
def test_every_table_and_view_is_written(history: History) -> None:
    written = export(history, "out", "--json").json
    assert [each["name"] for each in written] == [*TABLES, *VIEWS]


@pytest.mark.parametrize("file_format", ["parquet", "csv"])
def test_files_read_back(history: History, tmp_path: Path, file_format: str) -> None:
    tables = "jobs,samples,energy,utilization_by_device"
    written = export(history, "out", "--format", file_format, "--json", "--tables", tables).json
    assert [each["name"] for each in written] == tables.split(",")
    with duckdb.connect() as reader:
        for each in written:
            file = tmp_path / "out" / f"{each['name']}.{file_format}"
            [(rows,)] = reader.execute(f"select count(*) from '{file}'").fetchall()
            assert rows == each["rows"] == history.query(f"select count(*) from {each['name']}")[0][0]
        jobs = reader.execute(f"select epoch(submitted) from '{tmp_path}/out/jobs.{file_format}'").fetchall()
        [(name,)] = reader.execute(
            f"select name from '{tmp_path}/out/jobs.{file_format}' where job_id = 'b'"
        ).fetchall()
    assert sorted(jobs) == sorted(history.query("select epoch(submitted) from jobs"))
    assert name == HOSTILE_TEXT


def test_a_period_chooses_jobs_that_had_not_ended_and_later_samples(history: History, tmp_path: Path) -> None:
    """20 minutes ago is second 2800 of the lab's hour: a had ended."""
    tables = "jobs,job_history,attempts,devices,samples"
    exported = export(history, "out", "--since", "20m", "--json", "--tables", tables).json
    written = {each["name"]: each["rows"] for each in exported}
    assert written["jobs"] == written["job_history"] == 6
    assert written["attempts"] == 5
    assert written["devices"] == 3
    assert 200 < written["samples"] < 250  # g0 until 3890, g1 until 4000, and one of x0


def test_chosen_tables_and_files_that_exist(history: History, tmp_path: Path) -> None:
    assert export(history, "out", "--tables", "jobs, energy").code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["energy.parquet", "jobs.parquet"]
    before = (tmp_path / "out" / "jobs.parquet").stat().st_mtime_ns
    assert "out has jobs.parquet." in expect_error(export(history, "out", "--tables", "jobs,attempts"))
    assert not (tmp_path / "out" / "attempts.parquet").exists()
    assert export(history, "out", "--tables", "jobs", "--overwrite").code == 0
    assert (tmp_path / "out" / "jobs.parquet").stat().st_mtime_ns > before


def test_mistakes_are_explained(history: History, tmp_path: Path) -> None:
    assert "Did you mean jobs?" in expect_error(export(history, "out", "--tables", "job"))
    assert "--format is parquet or csv" in expect_error(export(history, "out", "--format", "xls"))
    (tmp_path / "file").write_text("")
    assert "is a file" in expect_error(export(history, "file"))
    missing = gpu_flows("export", "out", "--database", "none.duckdb")
    assert "There is no warehouse" in expect_error(missing, code=1)
