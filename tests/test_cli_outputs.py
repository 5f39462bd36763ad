"""The files that `gpu-flows simulate` writes: a row for every job, facts and charts."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line.run import HOSTILE_TEXT, expect_error, gpu_flows
from command_line.simulation import simulate, write

from gpu_flows.cli import charts
from gpu_flows.cli.simulation import running
from gpu_flows.schedulers.simulation.simulator import simulate as real_simulation

pytest_plugins = ["command_line.fixtures"]
pytestmark = pytest.mark.usefixtures("own_home")

# A row for every job


def test_a_row_for_every_job_as_csv_and_json(trace: Path) -> None:
    simulate(trace, "--policy", "srtf", "--jobs-out", "out.csv")
    simulate(trace, "--policy", "srtf", "--jobs-out", "out.json")
    row = next(csv.DictReader(Path("out.csv").read_text().splitlines()))
    assert row == {
        "policy": "srtf",
        "job_id": "long",
        "user": "ann",
        "gpus": "2",
        "submit": "0.0",
        "start": "0.0",
        "end": "140.0",
        "turnaround": "140.0",
        "queueing": "40.0",
        "communication": "0.0",
        "attempts": "2",
        "devices": "SIM-node-1-0 SIM-node-1-1",
        "outcome": "finished",
        "reason": "",
        "deadline": "",
        "priority": "0",
        "missed": "",
    }
    rows = json.loads(Path("out.json").read_text())
    assert rows[0]["devices"] == ["SIM-node-1-0", "SIM-node-1-1"]
    assert [each["job_id"] for each in rows] == ["long", "short", "small", "late"]


# Outputs that cannot be written


@pytest.mark.parametrize(
    ("option", "path"),
    [
        *(("--jobs-out", "file/jobs.csv"), ("--jobs-out", "folder.csv")),
        *(("--warehouse", "file/w.duckdb"), ("--warehouse", "folder.csv")),
        *(("--charts", "file"), ("--charts", "file/charts")),
    ],
)
def test_unwritable_output_is_refused_before_the_simulation(
    trace: Path, monkeypatch: pytest.MonkeyPatch, option: str, path: str
) -> None:
    def never(*arguments: Any) -> Any:
        raise AssertionError("it was simulated")

    monkeypatch.setattr(running, "simulate", never)
    write(Path("file"), "mine")
    Path("folder.csv").mkdir()
    assert option in expect_error(simulate(trace, option, path))
    assert Path("file").read_text() == "mine\n"


def test_check_of_outputs_leaves_no_files(trace: Path) -> None:
    before = sorted(Path.cwd().iterdir())
    outputs = ["--jobs-out", "new/deep/jobs.csv", "--warehouse", "new/w.duckdb", "--charts", "drawn/page"]
    assert "no trace format" in expect_error(simulate(trace, *outputs, "--format", "nope"))
    assert sorted(Path.cwd().iterdir()) == before
    assert simulate(trace, *outputs).code == 0
    assert all(Path(path).exists() for path in outputs[1::2])


def test_results_are_printed_even_if_an_output_cannot_be_written(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_the_way(*arguments: Any) -> Any:
        Path("jobs.csv.d/out.csv").mkdir(parents=True, exist_ok=True)
        return real_simulation(*arguments)

    monkeypatch.setattr(running, "simulate", in_the_way)
    words = ["--policy", "fifo", "--jobs-out", "jobs.csv.d/out.csv", "--charts", "charts", "--json"]
    for command in ("simulate", "compare"):
        if (blocking := Path("jobs.csv.d/out.csv")).exists():
            blocking.rmdir()
        result = simulate(trace, *words, command=command)
        assert result.code == 1
        assert "jobs.csv.d/out.csv cannot be written" in result.err
        assert "Traceback" not in result.err
        assert result.json
        assert Path("charts/simulation.html").exists()


# Charts and facts


def test_one_page_has_the_figures_of_all_policies_whatever_the_names_of_jobs(tmp_path: Path) -> None:
    name = HOSTILE_TEXT.replace("\n", " ").replace(",", "")
    trace = write(tmp_path / "t.csv", "job_id,submit_time,num_gpus,duration", f"{name}<&>,0,1,90000")
    assert simulate(trace, "--charts", "deep/charts", "--policy", "fifo,fifo:skip=true").code == 0
    assert [path.name for path in Path("deep/charts").iterdir()] == ["simulation.html"]
    page = Path("deep/charts/simulation.html").read_text()
    assert re.findall(r'<section class="card wide" id="([\w-]+)"', page) == [
        *("turnaround", "utilization", "gantt-1", "gantt-2"),
    ]
    assert "Devices over time: fifo:skip=true" in page
    assert page.count("</script>") == page.count("<script")
    assert "\x1b" not in page


def test_charts_need_the_extra_before_anything_is_simulated(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charts, "find_spec", lambda name: None)
    assert "pip install 'gpu-flows[charts]'" in expect_error(simulate(trace, "--charts", "charts"), code=1)
    assert not Path("charts").exists()


def test_warehouse_of_a_simulation_can_be_used_as_a_trace(trace: Path) -> None:
    simulate(trace, "--policy", "fifo,srtf", "--warehouse", "w.duckdb")
    simulate(trace, "--policy", "fifo,srtf", "--warehouse", "w.duckdb")  # changes nothing
    rows = gpu_flows("sql", "--database", "w.duckdb", "experiments", "--json").json
    assert [(row["policy"], row["jobs"], row["avg_turnaround_s"]) for row in rows] == [
        ("srtf", 4, 50.0),
        ("fifo", 4, 85.0),
    ]
    assert len({row["experiment"] for row in rows}) == 1

    warehouse = Path("w.duckdb")
    several = expect_error(simulate(warehouse, "--policy", "fifo"))
    assert "2 pools" in several
    pool = several.partition("pool=")[2].partition(".")[0]
    [again] = simulate(warehouse, "--format", f"warehouse:pool={pool}", "--policy", "srtf", "--json").json
    assert again["avg_turnaround_s"] == 50
    assert any("not recorded" in each for each in again["caveats"])


def test_warehouse_never_overwrites_another_file(trace: Path) -> None:
    before = trace.read_text()
    assert "not a DuckDB file" in expect_error(simulate(trace, "--warehouse", str(trace)))
    assert trace.read_text() == before
