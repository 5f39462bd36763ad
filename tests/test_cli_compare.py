"""`gpu-flows compare`, and results with deadlines, moves and the optimum."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line.run import CommandResult, expect_error, gpu_flows
from command_line.simulation import simulate, write
from rich.console import Console

from gpu_flows.cli import output
from gpu_flows.cli.simulation import limits
from gpu_flows.cli.simulation.compare import _draw_row
from gpu_flows.schedulers.simulation.optimum import Optimum
from gpu_flows.schedulers.simulation.optimum import optimum as real_optimum

pytest_plugins = ["command_line.fixtures"]
pytestmark = pytest.mark.usefixtures("own_home")

KEYS = [
    *("policy", "jobs", "finished", "makespan_s", "avg_turnaround_s"),
    *("p50_turnaround_s", "p90_turnaround_s", "p99_turnaround_s", "avg_queueing_s", "utilization_percent"),
    *("preemptions", "lower_bound_makespan_s", "events", "wall_s"),
]


# Deadlines


@pytest.fixture
def due(tmp_path: Path) -> Path:
    """Four jobs one after the other: in time but for rounding, too late, without a deadline, impossible."""
    return write(
        tmp_path / "due.csv",
        "job_id,submit_time,num_gpus,duration,deadline,priority",
        *("punctual,0.1,2,0.2,0.3,7", "late,1,2,10,10,", "whenever,2,2,10,,", "never,3,9,1,1000,"),
    )


def test_deadlines_are_counted_and_shown_if_there_are_any(due: Path, trace: Path) -> None:
    result = simulate(due, "--policy", "fifo", "--jobs-out", "out.csv", "--json")
    [figures] = result.json
    assert list(figures)[-2:] == ["deadlines", "deadlines_missed"]
    assert (figures["deadlines"], figures["deadlines_missed"]) == (3, 2)
    rows = list(csv.DictReader(Path("out.csv").read_text().splitlines()))
    assert [row["missed"] for row in rows] == ["false", "true", "", "true"]
    assert [row["priority"] for row in rows] == ["7", "0", "0", "0"]
    assert float(rows[0]["deadline"]) == pytest.approx(0.2)  # the first job comes at second 0
    assert rows[2]["deadline"] == ""
    simulate(due, "--jobs-out", "out.json")
    missed = [row["missed"] for row in json.loads(Path("out.json").read_text())]
    assert missed == [False, True, None, True]
    for command in ("simulate", "compare"):
        assert "missed" in header(simulate(due, "--policy", "fifo", command=command))
        assert "missed" not in header(simulate(trace, "--policy", "fifo", command=command))
    words = ["--policy", "fifo,edf", "--best", "deadlines_missed", "--json"]
    assert simulate(due, *words, command="compare").json["best"] in ("fifo", "edf")


def header(result: CommandResult) -> list[str]:
    return result.out.splitlines()[2].split()


def test_moves_have_a_column_if_there_are_any(trace: Path, tmp_path: Path) -> None:
    elastic = write(
        tmp_path / "e.csv",
        "job_id,submit_time,num_gpus,duration,min_gpus,max_gpus",
        *("a,0,1,100,1,2", "b,10,1,100,1,2"),
    )
    for command in ("simulate", "compare"):
        assert "moved" in header(simulate(elastic, "--policy", "ffdl", command=command))
        assert "moved" not in header(simulate(trace, "--policy", "fifo", command=command))


def test_ooms_and_memory_use_are_columns_where_there_are_any(tmp_path: Path, trace: Path) -> None:
    packed = write(
        tmp_path / "m.csv",
        "job_id,submit_time,num_gpus,duration,gpu_memory_gb,peak_memory_gb",
        *("a,0,1,100,6,9", "b,0,1,100,6,8"),
    )
    words = ["--policy", "fifo", "--sharing", "shared", "--cluster", "1x1:T4:16"]
    for command in ("simulate", "compare"):
        heading = header(simulate(packed, *words, command=command))
        assert "OOMs" in heading
        assert "memory" in heading
        assert "OOMs" not in header(simulate(trace, "--policy", "fifo", command=command))
    [result] = simulate(packed, *words, "--json").json
    assert (result["ooms"], result["finished"]) == (1, 2)
    assert result["memory_use_percent"] == pytest.approx(100 * 17 / 32)


def test_interference_is_a_number_or_as_measured(tmp_path: Path) -> None:
    pair = write(
        tmp_path / "p.csv",
        "job_id,submit_time,num_gpus,duration,gpu_memory_gb,model",
        *("a,0,1,100,4,ResNet-50 (batch size 64)", "b,0,1,100,4,ResNet-50 (batch size 64)"),
    )
    words = [pair, "--policy", "schedtune", "--cluster", "1x1:V100:16", "--json", "--interference"]
    spans = {text: simulate(*words, text).json[0]["makespan_s"] for text in ("0", "0.5", "gavel")}
    assert spans["0"] == 100
    assert spans["0.5"] == 150
    assert spans["gavel"] > 190, "two ResNet-50 trainings gain nothing from each other"
    wrong = simulate(*words, "much")
    assert wrong.code == 2
    assert "neither a number" in wrong.err


# compare


def test_compare_relates_policies_to_the_first_and_to_the_bound(trace: Path) -> None:
    comparison = simulate(trace, "--policies", "fifo,srtf", "--json", command="compare").json
    assert (comparison["baseline"], comparison["best"]) == ("fifo", None)
    fifo, srtf = comparison["policies"]
    assert list(fifo)[: len(KEYS)] == KEYS
    assert fifo["change"].pop("memory_use_percent") is None, "no job of the trace states its memory"
    assert set(fifo["change"].values()) == {0.0}
    assert srtf["change"]["avg_turnaround_s"] == pytest.approx(50 / 85 - 1)
    assert srtf["above_bound"]["makespan_s"] == pytest.approx(0, abs=1e-6)
    assert srtf["above_bound"]["avg_turnaround_s"] >= 0


def test_compare_names_the_best(trace: Path) -> None:
    words = ["--policies", "fifo,srtf", "--best", "avg_turnaround_s"]
    comparison = simulate(trace, *words, "--json", command="compare").json
    assert comparison["best"] == "srtf"
    assert [each["policy"] for each in comparison["policies"]] == ["srtf", "fifo"]
    drawn = simulate(trace, *words, command="compare").out
    assert "srtf has the best turnaround: 50.0." in drawn
    assert "50.0  -41.2%" in drawn
    assert "There is no metric 'speed'" in expect_error(simulate(trace, "--best", "speed", command="compare"))


@pytest.mark.parametrize(
    ("change", "expected"), [(-0.0001, "1.00  0.0%"), (0.0001, "1.00  0.0%"), (-0.1, "1.00  -10.0%")]
)
def test_a_change_that_rounds_to_nothing_has_no_sign(change: float, expected: str) -> None:
    changes = {"makespan_s": change}
    result = {"policy": "srtf", "policy_error": "", "makespan_s": 1.0, "change": changes, "above_bound": {}}
    assert str(_draw_row(result, ["makespan_s"], is_baseline=False)[1]) == expected


def test_compare_runs_every_policy_that_applies(trace: Path) -> None:
    comparison = simulate(trace, "--json", command="compare").json
    names = [each["policy"] for each in comparison["policies"]]
    assert names[0] == "fifo"
    assert {"fifo", "sjf", "srtf", "round_robin"} <= set(names)
    left_out = comparison["left_out"]
    assert left_out["edf"] == "no job has a deadline"
    assert left_out["ffdl"] == "no job can run on more or fewer devices"
    assert {"edf", "afs_l", "ffdl", "schedtune"} == set(left_out)
    assert not set(left_out) & set(names)
    [line] = [line for line in simulate(trace, command="compare").out.splitlines() if "Left out" in line]
    assert "edf (no job has a deadline)" in line
    assert "afs_l, ffdl (no job can run" in line
    few = simulate(trace, "--policies", "fifo", "--json", command="compare").json
    assert few["left_out"] == {}
    assert "Left out: " in simulate(trace, "--policy", "all").out


def test_compare_leaves_out_columns_in_a_narrow_terminal(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown() -> list[str]:
        return header(simulate(trace, "--policies", "fifo", command="compare"))

    assert shown()[:6] == ["policy", "finished", "makespan", "turnaround", "p50", "p90"]
    monkeypatch.setattr(output, "make_console", lambda: Console(width=130))
    assert shown()[:5] == ["policy", "makespan", "turnaround", "p50", "p99"]
    monkeypatch.setattr(output, "make_console", lambda: Console(width=80))
    assert shown() == ["policy", "fifo"]


def test_help_of_compare_explains_policy_options() -> None:
    help_text = " ".join(gpu_flows("compare", "--help").out.split())
    assert "by default under all that apply" in help_text
    assert "fifo:skip=true,placement=best_fit,sjf" in help_text


# The optimum


def test_optimum_of_a_few_jobs_is_shown(trace: Path) -> None:
    [fifo] = simulate(trace, "--policy", "fifo", "--optimum", "--json").json
    # Without preemption, the best schedule runs the short and the small job before the long one.
    assert fifo["optimum_proven"] is True
    assert fifo["lower_bound_turnaround_s"] <= fifo["optimum_turnaround_s"] < fifo["avg_turnaround_s"]
    assert fifo["optimum_makespan_s"] == fifo["makespan_s"] == 220
    assert "optimum (no preemption)" in simulate(trace, "--policy", "fifo", "--optimum").out
    assert "Best possible without preemption" in simulate(trace, "--optimum", command="compare").out
    [plain] = simulate(trace, "--policy", "fifo", "--json").json
    assert plain["optimum_makespan_s"] is None


def test_optimum_is_refused_for_many_jobs_and_costs(trace: Path) -> None:
    assert "leave those options out" in expect_error(simulate(trace, "--optimum", "--restart-seconds", "5"))
    many = ("--workload", "poisson:jobs=16", "--cluster", "1x8", "--optimum")
    error = expect_error(gpu_flows("simulate", *many, "--jobs-out", "out.csv"))
    assert "up to 15 jobs" in error
    assert "leave out --optimum" in error
    assert not Path("out.csv").exists()


def test_optimum_error_names_the_columns_that_it_does_not_model(tmp_path: Path) -> None:
    elastic = write(tmp_path / "e.csv", "job_id,submit_time,num_gpus,duration,max_gpus", "a,0,1,100,2")
    error = expect_error(simulate(elastic, "--optimum"))
    assert "leave out --optimum, or the columns gpu_memory_gb, min_gpus and max_gpus" in error


def test_schedule_that_meets_the_lower_bound_is_optimal(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsure(*arguments: Any) -> Optimum:
        return replace(real_optimum(*arguments), proven=False)

    monkeypatch.setattr(limits, "optimum", unsure)
    one = write(tmp_path / "one.csv", "job_id,submit_time,num_gpus,duration", "a,0,2,100")
    assert "optimum (no preemption)" in simulate(one, "--optimum").out
    assert "best found (no preemption)" in simulate(trace, "--optimum").out
