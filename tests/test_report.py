"""The report of a pool, from its warehouse to the page: what is asked, and what is shown."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest
from analytics_history import History, copy_empty_warehouse
from command_line.run import expect_error, gpu_flows
from figure_helpers import as_json
from report_history import EVIL, POOL, USERS, record_live

from gpu_flows.analytics.figures import gantt
from gpu_flows.analytics.figures.catalogue import CHARTS
from gpu_flows.analytics.figures.chart import Drawn, Scope, list_views, read_chart
from gpu_flows.analytics.pages import Table, format_cell, render_page
from gpu_flows.analytics.query_runner import QueryResult, run_query
from gpu_flows.analytics.report import Report, find_scope, read_report, render_report
from gpu_flows.analytics.report_tables import read_numbers
from gpu_flows.cli import charts

pytest_plugins = ["command_line.fixtures"]

WEEK = 7 * 86_400.0


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_live(tmp_path_factory.mktemp("live"), policies=("srtf", "fifo"))


@pytest.fixture(scope="module")
def report(warehouse: Path) -> Report:
    return read_report(find_scope(warehouse, POOL, WEEK))


def rows(report: Report, title: str) -> list[dict[str, object]]:
    (table,) = (table for table in report.tables if table.title == title)
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def chart(key: str, scope: Scope) -> Drawn:
    (found,) = (each for each in CHARTS if each.key == key)
    return read_chart(found, scope, set(found.views))


def figure(report: Report, key: str) -> Drawn:
    (found,) = (drawn for drawn in report.figures if drawn.key == key)
    return found


# What is asked


def test_every_figure_is_drawn_or_says_why_not(report: Report) -> None:
    assert [drawn.key for drawn in report.figures] == [chart.key for chart in CHARTS]
    missing = {drawn.key for drawn in report.figures if not drawn.drawing}
    assert missing <= {"eta"}
    for drawn in report.figures:
        assert drawn.missing if drawn.drawing is None else as_json(drawn.drawing)["data"]


def test_numbers_and_tables_agree_with_each_other(report: Report) -> None:
    assert report.measures["submitted"] == report.measures["ended"] == 120
    policies = rows(report, "Policies compared")
    assert {row["policy"]: row["jobs"] for row in policies} == {"srtf": 60, "fifo": 60}
    users = rows(report, "Users")
    assert {row["user_name"] for row in users} == set(USERS)
    assert report.measures["failed"] == len(rows(report, "Failures")) > 0
    hours = sum(row[2] for row in figure(report, "gpu-hours").data.rows)
    assert hours == pytest.approx(report.measures["gpu_hours"])
    assert report.measures["stops"] == figure(report, "preemption").data.rows[0][1] > 0


def test_gpu_hours_mean_the_same_everywhere(tmp_path: Path) -> None:
    """Two jobs share a device for an hour: that is half an hour for each."""
    history = History(tmp_path)
    history.device("d0")
    for job_id in ("a", "b"):
        history.run(job_id, 0, 0, 3600, "d0")
    history.query("select 1")
    database = tmp_path / "warehouse.duckdb"
    report = read_report(find_scope(database, "pool", 3600))
    assert report.measures["gpu_hours"] == pytest.approx(1)
    assert [row[2] for row in figure(report, "gpu-hours").data.rows] == [pytest.approx(1)]
    for title in ("Policies compared", "Users"):
        assert [row["gpu_hours"] for row in rows(report, title)] == [pytest.approx(1)], title
    for query in ("gpu_hours", "who", "jobs_per_week"):
        found = run_query(database, query)
        assert [row[found.columns.index("gpu_hours")] for row in found.rows] == [1], query


def test_the_time_ends_with_the_last_fact_and_counts_in_part(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.device("d0")
    history.run("early", 0, 0, 1000, "d0")
    history.run("late", 0, 4000, 5000, "d0")
    history.query("select 1")
    database = tmp_path / "warehouse.duckdb"
    scope = find_scope(database, "pool", 4500)
    assert (scope.until - scope.since).total_seconds() == pytest.approx(4500, abs=0.001)
    assert chart("gpu-hours", scope).data.rows[0][2] == pytest.approx(1500 / 3600)
    assert chart("turnaround-by-policy", scope).data.rows[0][1] == 2
    assert "2 jobs on 1 devices" in getattr(chart("gantt", scope).drawing, "subtitle", "")
    only_late = find_scope(database, "pool", 600)
    assert chart("gpu-hours", only_late).data.rows[0][2] == pytest.approx(600 / 3600)
    _, measures = read_numbers(only_late)
    assert measures["ended"] == 1


def test_a_large_history_is_summed_up(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scope = find_scope(warehouse, POOL, WEEK)
    bars = scope.ask(gantt.hold_query(most=1000)).rows
    shares = scope.ask(gantt.hold_query(most=50)).rows
    held = sum((row[6] - row[5]).total_seconds() for row in bars)
    bin_s = (scope.until - scope.since).total_seconds() / 120
    assert sum(row[9] / 100 * bin_s * row[8] for row in shares if row[9]) == pytest.approx(held, rel=1e-3)
    coarse = replace(gantt.CHART, sql=gantt.hold_query(most=50))
    for drawn, kind, columns in (
        (read_chart(coarse, scope, set()), "heatmap", "device since devices held_percent"),
        (chart("gantt", scope), "bar", "device job_id name user_name attempt since until outcome"),
    ):
        assert drawn.drawing is not None
        assert drawn.drawing.figure.data[0].type == kind
        assert drawn.data.columns == columns.split()


def test_a_figure_that_cannot_be_drawn_spares_the_others(warehouse: Path) -> None:
    def fail(*_: QueryResult) -> None:
        raise TypeError("no such colour")

    first = replace(CHARTS[0], draw=fail)
    drawn = read_chart(first, find_scope(warehouse, POOL, WEEK), set(first.views))
    assert drawn.drawing is None
    assert "cannot be drawn" in drawn.missing
    assert "no such colour" in drawn.missing
    assert drawn.data.rows


def test_turnarounds_of_an_unknown_policy_are_drawn(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.device("d0")
    for number, policy in enumerate(("fifo", "?")):
        history.run(f"job-{number}", 0, 100 * number, 100 * number + 50, "d0", policy=policy)
    history.query("select 1")
    database = tmp_path / "warehouse.duckdb"
    with duckdb.connect(str(database)) as connection:
        connection.execute("update attempts set policy = null where policy = '?'")
    drawing = chart("turnaround-by-policy", find_scope(database, "pool", WEEK)).drawing
    assert drawing is not None
    assert {line.name for line in drawing.figure.data} == {"fifo (1)", "no policy (1)"}


def test_an_older_warehouse_lacks_views_and_the_report_says_so(warehouse: Path) -> None:
    scope = find_scope(warehouse, POOL, WEEK)
    assert {"energy", "queue_over_time"} <= list_views(scope)
    (energy,) = (chart for chart in CHARTS if chart.key == "energy")
    assert "has no energy" in read_chart(energy, scope, set()).missing


def test_without_power_and_samples_it_says_what_is_missing(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.device("d0")
    history.run("a", 0, 1, 5, "d0")
    history.query("select 1")
    scope = find_scope(tmp_path / "warehouse.duckdb", "pool", WEEK)
    energy, utilization = chart("energy", scope), chart("utilization", scope)
    assert "No power was read" in energy.missing
    assert "No utilization was sampled" in utilization.missing
    page = render_report(Report(scope, [], [energy, utilization], [], {}), datetime.now(UTC), "1")
    assert "What is missing, and why" in page
    assert "No power was read" in page


# What is shown


@pytest.fixture(scope="module")
def page(report: Report) -> str:
    return render_report(report, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "1.2.3")


def visible(page: str) -> str:
    """The page without its scripts and its styles."""
    return re.sub(r"<(script|style)[^>]*>.*?</\1>", "", page, flags=re.DOTALL)


def test_hostile_names_are_text(page: str) -> None:
    assert EVIL.partition("\x1b")[0] not in page
    assert "<img src=x" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in visible(page)
    assert not {"\x1b", "\u202e"} & set(page)
    for data in re.findall(r'class="figure-data">(.*?)</script>', page):
        assert "<" not in data
        json.loads(data)


def test_the_page_asks_for_nothing_and_allows_only_its_own_scripts(page: str) -> None:
    shown = visible(page)
    assert not re.search(r"(src|href)=\"(?!#|data:,)", shown)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', page.replace("&#39;", "'"))
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    assert "'unsafe-inline'" not in policy.partition("style-src")[0]
    assert "Generated 2026-01-02 03:04:05 UTC by gpu-flows 1.2.3" in shown


def test_every_figure_has_a_text_alternative(page: str, report: Report) -> None:
    drawn = [each for each in report.figures if each.drawing]
    assert page.count('role="img" aria-label="') == len(drawn)
    assert page.count("The data as a table") == len(drawn)


def test_a_server_links_to_the_assets() -> None:
    page = render_page("figures.html", {"title": "t", "remark": "", "figures": []}, inline=False)
    assert 'src="static/plotly.min.js" defer' in page
    assert 'href="static/style.css"' in page
    assert "Content-Security-Policy" not in page  # the server's headers say it
    assert len(page) < 5_000


def test_cells_have_the_unit_of_their_column() -> None:
    cells = [("run_s", 90.0), ("jobs", 12345), ("share", 0.123456), ("name", None), ("run_s", None)]
    assert [format_cell(*cell) for cell in cells] == ["1m 30s", "12,345", "0.1235", "–", "–"]
    assert Table("t", [], []).when_empty


# The command


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_writes_one_file_and_names_what_is_missing(warehouse: Path, own_folder: Path) -> None:
    words = ["report", "--database", str(warehouse), "--pool", POOL, "--out", "new/monday.html"]
    summary = gpu_flows(*words, "--since", "24h", "--json").json
    assert [path.name for path in (own_folder / "new").iterdir()] == ["monday.html"]
    assert summary["path"] == str(own_folder / "new" / "monday.html")
    assert summary["numbers"]["submitted"] == 120
    found = {each["key"]: each for each in summary["figures"]}
    assert found["gantt"]["rows"] > 120
    assert {each["key"] for each in summary["figures"] if each["missing"]} <= {"eta"}


def test_mistakes_are_explained(warehouse: Path, own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["report", "--database", str(warehouse)]
    assert f"--pool takes: {POOL}" in expect_error(gpu_flows(*words, "--pool", "other"), code=1)
    assert "is a folder" in expect_error(gpu_flows(*words, "--pool", POOL, "--out", str(own_folder)))
    absent = ["report", "--database", "none.duckdb"]
    assert "There is no warehouse" in expect_error(gpu_flows(*absent), code=1)
    empty = copy_empty_warehouse(own_folder)
    assert "holds no history yet" in expect_error(gpu_flows("report", "--database", str(empty)), code=1)
    monkeypatch.setattr(charts, "find_spec", lambda name: None)
    assert "pip install 'gpu-flows[charts]'" in expect_error(gpu_flows(*words), code=1)
    assert not (own_folder / "report.html").exists()


def test_a_simulated_pool_can_be_reported(own_folder: Path) -> None:
    simulated = gpu_flows(
        *("simulate", "--workload", "poisson:jobs=20", "--cluster", "1x2", "--policy", "fifo"),
        *("--warehouse", "w.duckdb"),
    )
    assert simulated.code == 0, simulated.err
    several = expect_error(gpu_flows("report", "--database", "w.duckdb"), code=1)
    pool = several.partition("takes: ")[2].strip().rstrip(".")
    done = gpu_flows("report", "--database", "w.duckdb", "--pool", pool, "--since", "5000d")
    assert "report.html: 7 figures" in done.out
    assert "No figure 'Utilization': No utilization was sampled" in done.out
    assert "of the simulation" in (own_folder / "report.html").read_text()


def test_scope_survives_absurd_times(warehouse: Path) -> None:
    scope = find_scope(warehouse, POOL, 1e12)
    assert isinstance(scope, Scope)
    assert scope.since < scope.until
