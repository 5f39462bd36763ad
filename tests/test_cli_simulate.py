"""`gpu-flows simulate` and `compare`: a trace and a cluster in; figures, jobs, facts and charts out."""

from __future__ import annotations

import csv
import json
import os
import xml.dom.minidom
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line.run import EVIL, Said, gpu_flows, gpu_flows_process, refused
from rich.console import Console

from gpu_flows.cli import inputs, parts
from gpu_flows.cli import simulate as module
from gpu_flows.cli.inputs import _specs
from gpu_flows.schedulers import policy as registry
from gpu_flows.schedulers.model import Plan
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.simulation.optimum import Optimum
from gpu_flows.schedulers.simulation.optimum import optimum as real_optimum
from gpu_flows.schedulers.simulation.simulator import simulate as real_simulation

pytest_plugins = ["command_line.fixtures"]
pytestmark = pytest.mark.usefixtures("own_home")

KEYS = [
    *("policy", "jobs", "finished", "makespan_s", "avg_turnaround_s"),
    *("p50_turnaround_s", "p90_turnaround_s", "p99_turnaround_s", "avg_queueing_s", "utilization"),
    *("preemptions", "lower_bound_makespan_s", "events", "wall_s"),
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Four jobs on one node of two devices, where fifo and srtf differ."""
    return write(
        tmp_path / "jobs.csv",
        "job_id,submit_time,num_gpus,duration,user,utilization",
        "long,0,2,100,ann,50",
        "short,10,2,10,bob,100",
        "small,20,1,30,ann,100",
        "late,200,1,20,bob,80",
    )


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def simulate(trace: Path, *words: str, command: str = "simulate") -> Said:
    return gpu_flows(command, "--trace", str(trace), "--cluster", "1x2", *words)


# Figures


def test_one_policy_in_json_has_the_promised_keys_first(trace: Path) -> None:
    [told] = simulate(trace, "--policy", "fifo", "--json").json
    assert list(told)[: len(KEYS)] == KEYS
    expected = {
        "policy": "fifo",
        "jobs": 4,
        "finished": 4,
        "makespan_s": 220,  # the last one ends 20 s after it came
        "avg_turnaround_s": (100 + 100 + 120 + 20) / 4,
        "p50_turnaround_s": 100,
        "p90_turnaround_s": 120,
        "p99_turnaround_s": 120,
        "avg_queueing_s": (0 + 90 + 90 + 0) / 4,
        "utilization": (200 * 0.5 + 20 + 30 + 20 * 0.8) / 440,
        "allocation": (200 + 20 + 30 + 20) / 440,
        "preemptions": 0,
        "lower_bound_makespan_s": pytest.approx(220),
        "events": 12,
        "impossible": 0,
        "unfinished": 0,
        "policy_error": "",
    }
    assert {key: told[key] for key in expected} == expected


def test_several_policies_come_in_the_order_asked_and_with_their_options(trace: Path) -> None:
    told = simulate(trace, "--policy", "srtf:by=service,placement=any,fifo, srtf", "--json").json
    assert [each["policy"] for each in told] == ["srtf:by=service,placement=any", "fifo", "srtf"]
    assert [each["placement"] for each in told] == ["any", "first_fit", "first_fit"]
    assert [each["preemptions"] for each in told] == [1, 0, 1]
    assert told[2]["avg_turnaround_s"] == (140 + 10 + 30 + 20) / 4


def test_the_table_shows_policies_bound_and_what_it_does_not_show(trace: Path) -> None:
    said = simulate(trace, "--policy", "fifo,srtf")
    assert said.code == 0
    assert said.err == ""
    lines = said.out.splitlines()
    assert lines[0].endswith("jobs.csv (native): 4 jobs on 1x2 (2 devices), times in seconds.")
    assert lines[2].split()[:4] == ["policy", "finished", "makespan", "turnaround"]
    assert lines[3].split()[:4] == ["fifo", "4", "220.0", "85.0"]
    assert lines[4].split()[:4] == ["srtf", "4", "220.0", "50.0"]
    assert lines[5].split()[:3] == ["lower", "bound", "220.0"]
    assert "What this does not show" in lines
    assert "- srtf: Stopping and moving jobs costs nothing; see --restart-seconds" in said.out


def test_policies_may_be_asked_for_one_by_one(trace: Path) -> None:
    words = ["--policy", "fifo", "--policies", "sjf,srtf", "--policy", "fifo:skip=true,placement=best_fit"]
    told = simulate(trace, *words, "--json").json
    assert [each["policy"] for each in told] == ["fifo", "sjf", "srtf", "fifo:skip=true,placement=best_fit"]


def test_the_policy_is_fifo_unless_said(trace: Path) -> None:
    assert [each["policy"] for each in simulate(trace, "--json").json] == ["fifo"]


def test_caveats_follow_from_what_was_chosen(trace: Path) -> None:
    [plain] = simulate(trace, "--policy", "srtf", "--json").json
    [careful] = simulate(
        trace, "--policy", "srtf", "--json", "--estimates", "learned", "--restart-seconds", "5"
    ).json
    assert any("true duration" in each for each in plain["caveats"])
    assert any("costs nothing" in each for each in plain["caveats"])
    assert not any("true duration" in each or "costs nothing" in each for each in careful["caveats"])
    assert any("mean of earlier jobs" in each for each in careful["caveats"])
    assert careful["avg_turnaround_s"] > plain["avg_turnaround_s"]


def test_processes_side_by_side_answer_as_one_does(trace: Path) -> None:
    words = ["--policy", "fifo,srtf,sjf", "--json", "--jobs-out", "jobs.json", "--charts", "charts"]
    alone = simulate(trace, *words, "--processes", "1")
    rows = Path("jobs.json").read_text()
    asked = ["simulate", "--trace", str(trace), "--cluster", "1x2", *words, "--processes", "2"]
    both = gpu_flows_process(*asked, env={**os.environ})
    assert both.err == ""
    assert timeless(both) == timeless(alone)
    assert Path("jobs.json").read_text() == rows


def timeless(said: Said) -> list[dict[str, Any]]:
    """What was told, but for how long it took."""
    return [{k: v for k, v in each.items() if k not in ("wall_s", "cpu_s")} for each in said.json]


def test_the_same_seed_gives_the_same_answer() -> None:
    words = ["simulate", "--workload", "poisson:jobs=200", "--cluster", "2x4", "--policy", "srtf,tiresias"]
    words += ["--json", "--estimates", "noisy:0.5", "--node-mtbf-hours", "20", "--sharing", "exclusive"]
    first, again, other = (timeless(gpu_flows(*words, "--seed", seed)) for seed in ("1", "1", "2"))
    assert first == again
    assert first[0]["avg_turnaround_s"] != other[0]["avg_turnaround_s"]
    assert first[0]["losses"] > 0


# Nothing is dropped


def test_jobs_that_can_never_run_are_named_with_their_reason(tmp_path: Path) -> None:
    trace = write(
        tmp_path / "wide.csv",
        "job_id,submit_time,num_gpus,duration",
        *(f"wide-{number},0,3,10" for number in range(7)),
        "fits,0,1,10",
    )
    said = simulate(trace, "--policy", "fifo,srtf", "--jobs-out", "out.csv")
    assert said.code == 0
    assert "Not finished under fifo, srtf: 7 of 8 jobs" in said.out
    assert "wide-0  It needs 3 GPUs, and the whole pool has 2 of them." in said.out
    assert "--jobs-out FILE has them all" in said.out
    rows = list(csv.DictReader(Path("out.csv").read_text().splitlines()))
    assert [row["outcome"] for row in rows].count("impossible") == 14
    assert all(row["reason"] for row in rows if row["outcome"] == "impossible")
    [told] = simulate(trace, "--json").json
    assert (told["jobs"], told["finished"], told["impossible"], told["unfinished"]) == (8, 1, 7, 0)
    assert len(told["troubles"]) == 7


def test_a_sum_that_does_not_add_up_is_our_mistake(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(*arguments: Any) -> Any:
        found = real_simulation(*arguments)
        found.jobs[0].ended = None
        return found

    monkeypatch.setattr(module, "run_simulation", forgetful)
    said = simulate(trace)
    assert said.code == 70
    assert "1 of 4 jobs got lost: long" in said.err
    assert said.out == ""


def test_a_policy_that_fails_is_said_and_marked(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Policy):
        """It fails."""

        name = "broken"

        def plan(self, state: State) -> Plan:
            raise RuntimeError("oh no")

    monkeypatch.setitem(registry._built_in(), "broken", Broken)
    said = simulate(trace, "--policy", "fifo,broken", "--json")
    assert said.code == 1
    assert "Policy broken failed: RuntimeError: oh no" in said.err
    fine, broken = said.json
    assert broken["policy_error"].startswith("RuntimeError: oh no")
    assert broken["avg_turnaround_s"] == fine["avg_turnaround_s"]
    assert "these figures are not its own" in broken["caveats"][0]

    words = ["--policy", "srtf,broken"]
    drawn = simulate(trace, *words, command="compare").out.splitlines()
    row = next(line for line in drawn if line.startswith("broken (failed)"))
    assert row.count("%") == 1  # its utilization
    compared = simulate(trace, *words, "--json", command="compare").json["policies"][1]
    assert {*compared["change"].values(), *compared["above_bound"].values()} == {None}
    alone = simulate(trace, "--policy", "broken", "--best", "makespan_s", "--json", command="compare").json
    assert alone["best"] is None


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


# Deadlines


@pytest.fixture
def due(tmp_path: Path) -> Path:
    """Four jobs one after the other: in time but for rounding, too late, without a deadline, impossible."""
    return write(
        tmp_path / "due.csv",
        "job_id,submit_time,num_gpus,duration,deadline,priority",
        *("punctual,0.1,2,0.2,0.3,7", "late,1,2,10,10,", "whenever,2,2,10,,", "never,3,9,1,1000,"),
    )


def test_deadlines_are_counted_and_shown_where_there_are_any(due: Path, trace: Path) -> None:
    said = simulate(due, "--policy", "fifo", "--jobs-out", "out.csv", "--json")
    [told] = said.json
    assert list(told)[-2:] == ["deadlines", "deadlines_missed"]
    assert (told["deadlines"], told["deadlines_missed"]) == (3, 2)
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


def header(said: Said) -> list[str]:
    return said.out.splitlines()[2].split()


def test_moves_have_a_column_where_there_are_any(trace: Path, tmp_path: Path) -> None:
    elastic = write(
        tmp_path / "e.csv",
        "job_id,submit_time,num_gpus,duration,min_gpus,max_gpus",
        *("a,0,1,100,1,2", "b,10,1,100,1,2"),
    )
    for command in ("simulate", "compare"):
        assert "moved" in header(simulate(elastic, "--policy", "ffdl", command=command))
        assert "moved" not in header(simulate(trace, "--policy", "fifo", command=command))


# Outputs that cannot be written


@pytest.mark.parametrize(
    ("option", "path"),
    [
        *(("--jobs-out", "file/jobs.csv"), ("--jobs-out", "folder.csv")),
        *(("--warehouse", "file/w.duckdb"), ("--warehouse", "folder.csv")),
        *(("--charts", "file"), ("--charts", "file/charts")),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    trace: Path, monkeypatch: pytest.MonkeyPatch, option: str, path: str
) -> None:
    def never(*arguments: Any) -> Any:
        raise AssertionError("it was simulated")

    monkeypatch.setattr(module, "run_simulation", never)
    write(Path("file"), "mine")
    Path("folder.csv").mkdir()
    assert option in refused(simulate(trace, option, path))
    assert Path("file").read_text() == "mine\n"


def test_trying_outputs_leaves_nothing_behind(trace: Path) -> None:
    before = sorted(Path.cwd().iterdir())
    outputs = ["--jobs-out", "new/deep/jobs.csv", "--warehouse", "new/w.duckdb", "--charts", "drawn/svg"]
    assert "no trace format" in refused(simulate(trace, *outputs, "--format", "nope"))
    assert sorted(Path.cwd().iterdir()) == before
    assert simulate(trace, *outputs).code == 0
    assert all(Path(path).exists() for path in outputs[1::2])


def test_results_are_told_even_if_they_cannot_be_written(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_the_way(*arguments: Any) -> Any:
        Path("jobs.csv.d/out.csv").mkdir(parents=True, exist_ok=True)
        return real_simulation(*arguments)

    monkeypatch.setattr(module, "run_simulation", in_the_way)
    words = ["--policy", "fifo", "--jobs-out", "jobs.csv.d/out.csv", "--charts", "charts", "--json"]
    for command in ("simulate", "compare"):
        if (blocking := Path("jobs.csv.d/out.csv")).exists():
            blocking.rmdir()
        said = simulate(trace, *words, command=command)
        assert said.code == 1
        assert "jobs.csv.d/out.csv cannot be written" in said.err
        assert "Traceback" not in said.err
        assert said.json
        assert Path("charts/turnaround.svg").exists()


# Charts and facts


def test_charts_are_sound_svg_whatever_jobs_are_called(tmp_path: Path) -> None:
    name = EVIL.replace("\n", " ").replace(",", "")
    trace = write(tmp_path / "t.csv", "job_id,submit_time,num_gpus,duration", f"{name}<&>,0,1,90000")
    assert simulate(trace, "--charts", "deep/charts", "--policy", "fifo,fifo:skip=true").code == 0
    drawn = {path.name: path.read_text() for path in Path("deep/charts").iterdir()}
    assert sorted(drawn) == [
        "gantt-1-fifo.svg",
        "gantt-2-fifo-skip-true.svg",
        "turnaround.svg",
        "utilization.svg",
    ]
    for text in drawn.values():
        xml.dom.minidom.parseString(text)


def test_facts_go_into_a_warehouse_that_is_a_trace_too(trace: Path) -> None:
    simulate(trace, "--policy", "fifo,srtf", "--warehouse", "w.duckdb")
    simulate(trace, "--policy", "fifo,srtf", "--warehouse", "w.duckdb")  # changes nothing
    rows = gpu_flows("sql", "--database", "w.duckdb", "experiments", "--json").json
    assert [(row["policy"], row["jobs"], row["avg_turnaround_s"]) for row in rows] == [
        ("srtf", 4, 50.0),
        ("fifo", 4, 85.0),
    ]
    assert len({row["experiment"] for row in rows}) == 1

    warehouse = Path("w.duckdb")
    several = refused(simulate(warehouse, "--policy", "fifo"))
    assert "2 pools" in several
    pool = several.partition("pool=")[2].partition(".")[0]
    [again] = simulate(warehouse, "--format", f"warehouse:pool={pool}", "--policy", "srtf", "--json").json
    assert again["avg_turnaround_s"] == 50
    assert any("not recorded" in each for each in again["caveats"])


def test_a_warehouse_is_never_made_of_somebody_elses_file(trace: Path) -> None:
    before = trace.read_text()
    assert "no DuckDB file" in refused(simulate(trace, "--warehouse", str(trace)))
    assert trace.read_text() == before


# What may be said of the workload, the cluster and the world


def test_jobs_span_nodes_only_if_they_must_unless_said(tmp_path: Path) -> None:
    trace = write(
        tmp_path / "t.csv",
        "job_id,submit_time,num_gpus,duration",
        *("a,0,1,100", "b,0,1,100", "c,1,2,50", "d,300,3,10"),
    )

    def ends(*words: str) -> list[float | None]:
        said = gpu_flows(
            *("simulate", "--trace", str(trace), "--cluster", "2x2", "--jobs-out", "o.json", *words)
        )
        assert said.code == 0
        return [row["end"] for row in json.loads(Path("o.json").read_text())]

    apart = ["--policy", "round_robin"]  # a and b on different nodes
    assert ends(*apart) == [100, 100, 150, 310]
    assert ends(*apart, "--placement", "any") == [100, 100, 51, 310]
    assert ends(*apart, "--span") == [100, 100, 51, 310]
    assert ends(*apart, "--no-span") == [100, 100, 150, None]
    assert ends(*apart, "--span", "--tier-slowdown", "2,3") == [100, 100, 101, 320]


def test_racks_come_from_a_yaml_file(trace: Path, tmp_path: Path) -> None:
    rows = ["racks:", "  - {name: left, gpus: 1}", "  - {name: right, nodes: 2, gpus: 1, model: A100}"]
    racks = write(tmp_path / "c.yaml", *rows)
    wide = ["--trace", str(trace), "--cluster", str(racks), "--tier-slowdown", "1,2", "--json"]
    [told] = gpu_flows("simulate", *wide).json
    assert told["devices"] == 3
    assert told["avg_turnaround_s"] > 140  # the long job spans racks


def test_a_profile_says_how_fast_kinds_run_on_models(tmp_path: Path) -> None:
    jobs = ["job_id,submit_time,num_gpus,duration,model", "a,0,1,100,resnet", "b,0,1,100,other"]
    trace = write(tmp_path / "t.csv", *jobs)
    table = {"reference": "v100", "throughput": {"resnet": {"V100": {"1": 10}, "a100": {"1": 40}}}}
    profile = write(tmp_path / "p.json", json.dumps(table))
    words = ["--cluster", "1x2:A100:80", "--profile", str(profile), "--json"]
    [told] = gpu_flows("simulate", "--trace", str(trace), *words).json
    assert told["avg_turnaround_s"] == (25 + 100) / 2
    mixed = ["--cluster", "1x2:H100+1x2:V100", "--profile", str(profile), "--json"]
    [told] = gpu_flows("simulate", "--trace", str(trace), *mixed).json
    assert "The profile says nothing of H100: jobs run there as on V100." in told["caveats"]
    write(profile, json.dumps({**table, "reference": "H100"}))
    assert "'h100'" in refused(gpu_flows("simulate", "--trace", str(trace), *words))


def test_a_profile_says_how_much_kinds_suffer_from_distance(tmp_path: Path) -> None:
    rows = ["job_id,submit_time,num_gpus,duration,model", "a,0,2,100,resnet", "b,400,2,100,other"]
    trace = write(tmp_path / "t.csv", *rows)
    table = {"reference": "GPU", "throughput": {"": {"GPU": {"1": 1, "2": 2}}}}
    profile = write(tmp_path / "p.json", json.dumps({**table, "slowdown": {"resnet": [3, 4]}}))
    words = ["--cluster", "2x1", "--profile", str(profile), "--tier-slowdown", "1.5,2", "--json"]
    [told] = gpu_flows("simulate", "--trace", str(trace), *words).json
    assert told["avg_turnaround_s"] == (300 + 150) / 2
    write(profile, json.dumps({**table, "slowdown": {"resnet": 3}}))
    assert "slowdowns" in refused(gpu_flows("simulate", "--trace", str(trace), *words))


def test_gavel_tables_tell_durations_and_speeds(tmp_path: Path) -> None:
    measured = {"k80": 10.0, "v100": 40.0}
    table = {model: {"('ResNet-18', 1)": {"null": rate}} for model, rate in measured.items()}
    profile = write(tmp_path / "throughputs.json", json.dumps(table))
    trace = write(tmp_path / "g.trace", "ResNet-18\tcmd\t--n\t1\t4000\t0\t1")
    alone = refused(gpu_flows("simulate", "--trace", str(trace), "--cluster", "1x1"))
    assert "--profile FILE (or --format gavel:throughputs=FILE)" in alone
    for model, seconds in (("V100", 100), ("K80", 400)):
        words = ["--trace", str(trace), "--profile", str(profile), "--cluster", f"1x1:{model}", "--json"]
        [told] = gpu_flows("simulate", *words).json
        assert told["makespan_s"] == seconds


def test_elastic_jobs_run_faster_on_more_devices(tmp_path: Path) -> None:
    trace = write(
        tmp_path / "t.csv", "job_id,submit_time,num_gpus,duration,min_gpus,max_gpus", "a,0,1,100,1,2"
    )
    [told] = simulate(trace, "--policy", "ffdl", "--json").json
    assert told["makespan_s"] == 50


def test_shares_of_a_gpu_are_shares_whatever_memory_the_cluster_has(tmp_path: Path) -> None:
    columns = "job_id,user,num_cpu,num_gpu,submit_time,duration,num_inst"
    halves = write(tmp_path / "pai.csv", columns, *(f"{name},ann,1,0.5,0,100,1" for name in "abcd"))
    unit = "The trace tells shares of a GPU: each device has 1000 units, whatever its memory."
    for cluster in ("1x1", "1x1:V100:16", "1x1:T4:0.5"):
        words = ["simulate", "--trace", str(halves), "--cluster", cluster, "--json"]
        [shared] = gpu_flows(*words, "--sharing", "shared").json
        [whole] = gpu_flows(*words).json
        assert (shared["makespan_s"], whole["makespan_s"]) == (200, 400)
        assert unit in shared["caveats"]
        assert unit in whole["caveats"]
        about_whole = "A share of a GPU takes a whole one; see --sharing shared."
        assert [about_whole in each["caveats"] for each in (shared, whole)] == [False, True]


def test_a_part_of_a_trace(trace: Path) -> None:
    def counted(*words: str) -> tuple[int, dict[str, int]]:
        [told] = simulate(trace, "--json", *words).json
        return told["jobs"], told["skipped"]

    assert counted("--since", "10", "--until", "30") == (2, {"outside since and until": 2})
    assert counted("--limit", "1") == (1, {"over the limit": 3})
    assert counted("--sample", "0.5")[0] == 2
    [heavier] = simulate(trace, "--scale-load", "2", "--json").json
    assert heavier["makespan_s"] == 140  # small waits until 110; late comes at 100 and runs beside it


# Wrong usage


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--policy", "fif"], "There is no policy 'fif'. There are: "),
        (["--policy", "fifo,fifo"], "asked for twice"),
        (["--policy", "fifo", "--policy", "fifo"], "asked for twice"),
        (["--policy", ""], "--policy names no policy"),
        (["--policy", "fifo", "--policy", " ,"], "--policy names no policy"),
        (["--policy", "fifo:skip"], "NAME=VALUE"),
        (["--policy", "fifo:nope=1"], "Its options: "),
        (["--placement", "nope"], "no placement 'nope'"),
        (["--estimates", "psychic"], "oracle, stated, learned"),
        (["--format", "nope"], "no trace format 'nope'"),
        (["--tier-slowdown", "2"], "two numbers"),
        (["--tier-slowdown", "0.5,1"], "two numbers"),
        (["--profile", "nope.json"], "nope.json"),
        (["--jobs-out", "jobs.xlsx"], ".csv or .json"),
        (["--jobs-out", "jobs.csv/jobs.csv"], "jobs.csv/jobs.csv cannot be written"),
        (["--workload", "poisson"], "--trace FILE or --workload SPEC"),
        (["--scale-load", "0"], "scale_load"),
        (["--node-mtbf-hours", "-1"], "--node-mtbf-hours"),
    ],
)
def test_wrong_usage_is_told_with_exit_code_2(trace: Path, words: list[str], says: str) -> None:
    assert says in refused(simulate(trace, *words))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--cluster", "3"], "NODESxGPUS"),
        (["--cluster", "nope.yaml"], "nope.yaml"),
        (["--cluster", "1x1", "--workload", "poissson"], "There is no workload 'poissson'"),
        (["--cluster", "1x1", "--workload", "poisson", "--limit", "5"], "--limit is for traces"),
        (["--cluster", "1x1"], "Which jobs?"),
    ],
)
def test_wrong_clusters_and_workloads_too(words: list[str], says: str) -> None:
    extra = [] if "--workload" in words or says == "Which jobs?" else ["--workload", "poisson:jobs=5"]
    assert says in refused(gpu_flows("simulate", *words, *extra))


def test_a_bad_row_is_named_by_its_line(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.csv", "job_id,submit_time,num_gpus,duration", "a,0,1,10", "b,1,two,10")
    said = refused(simulate(trace))
    assert "line 3" in said
    assert "num_gpus" in said
    assert "'two'" in said
    assert "cannot be read" in refused(simulate(tmp_path / "missing.csv"))


def test_policies_are_told_apart_by_commas_that_are_not_within_one() -> None:
    assert _specs("a, b:x=1,y=[2,3] ,c:z={},srtf") == ["a", "b:x=1,y=[2,3]", "c:z={}", "srtf"]


# compare


def test_compare_sets_policies_against_the_first_and_the_bound(trace: Path) -> None:
    told = simulate(trace, "--policies", "fifo,srtf", "--json", command="compare").json
    assert (told["baseline"], told["best"]) == ("fifo", None)
    fifo, srtf = told["policies"]
    assert list(fifo)[: len(KEYS)] == KEYS
    assert set(fifo["change"].values()) == {0.0}
    assert srtf["change"]["avg_turnaround_s"] == pytest.approx(50 / 85 - 1)
    assert srtf["above_bound"]["makespan_s"] == pytest.approx(0, abs=1e-6)
    assert srtf["above_bound"]["avg_turnaround_s"] >= 0


def test_compare_names_the_best(trace: Path) -> None:
    words = ["--policies", "fifo,srtf", "--best", "avg_turnaround_s"]
    told = simulate(trace, *words, "--json", command="compare").json
    assert told["best"] == "srtf"
    assert [each["policy"] for each in told["policies"]] == ["srtf", "fifo"]
    drawn = simulate(trace, *words, command="compare").out
    assert "srtf has the best turnaround: 50.0." in drawn
    assert "50.0  -41.2%" in drawn
    assert "There is no metric 'speed'" in refused(simulate(trace, "--best", "speed", command="compare"))


def test_compare_tries_every_policy_that_applies(trace: Path) -> None:
    told = simulate(trace, "--json", command="compare").json
    names = [each["policy"] for each in told["policies"]]
    assert names[0] == "fifo"
    assert {"fifo", "sjf", "srtf", "round_robin"} <= set(names)
    left_out = told["left_out"]
    assert left_out["edf"] == "no job has a deadline"
    assert left_out["ffdl"] == "no job can run on more or fewer devices"
    assert {"edf", "afs_l", "ffdl"} == set(left_out)
    assert not set(left_out) & set(names)
    [line] = [line for line in simulate(trace, command="compare").out.splitlines() if "Left out" in line]
    assert "edf (no job has a deadline)" in line
    assert "afs_l, ffdl (no job can run" in line
    few = simulate(trace, "--policies", "fifo", "--json", command="compare").json
    assert few["left_out"] == {}
    assert "Left out: " in simulate(trace, "--policy", "all").out


def test_compare_shows_who_finished_and_p90_if_there_is_room(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown() -> list[str]:
        return header(simulate(trace, "--policies", "fifo", command="compare"))

    assert shown()[:6] == ["policy", "finished", "makespan", "turnaround", "p50", "p90"]
    monkeypatch.setattr(parts, "console", lambda: Console(width=130))
    assert shown()[:5] == ["policy", "makespan", "turnaround", "p50", "p99"]
    monkeypatch.setattr(parts, "console", lambda: Console(width=80))
    assert shown() == ["policy", "fifo"]


def test_help_tells_the_default_and_how_options_are_written() -> None:
    said = " ".join(gpu_flows("compare", "--help").out.split())
    assert "by default under all that apply" in said
    assert "fifo:skip=true,placement=best_fit,sjf" in said


# The best there is


def test_the_optimum_stands_beside_the_results_of_a_few_jobs(trace: Path) -> None:
    [fifo] = simulate(trace, "--policy", "fifo", "--optimum", "--json").json
    # Not preempting, the best is to let the short one and the small one go before the long one.
    assert fifo["optimum_proven"] is True
    assert fifo["lower_bound_turnaround_s"] <= fifo["optimum_turnaround_s"] < fifo["avg_turnaround_s"]
    assert fifo["optimum_makespan_s"] == fifo["makespan_s"] == 220
    assert "optimum (no preemption)" in simulate(trace, "--policy", "fifo", "--optimum").out
    assert "Best possible without preemption" in simulate(trace, "--optimum", command="compare").out
    [plain] = simulate(trace, "--policy", "fifo", "--json").json
    assert plain["optimum_makespan_s"] is None


def test_the_optimum_is_refused_where_it_cannot_be_found(trace: Path) -> None:
    assert "leave those options out" in refused(simulate(trace, "--optimum", "--restart-seconds", "5"))
    many = ("--workload", "poisson:jobs=16", "--cluster", "1x8", "--optimum")
    said = refused(gpu_flows("simulate", *many, "--jobs-out", "out.csv"))
    assert "up to 15 jobs" in said
    assert "leave out --optimum" in said
    assert not Path("out.csv").exists()


def test_what_the_optimum_does_not_model_is_told_by_its_columns(tmp_path: Path) -> None:
    elastic = write(tmp_path / "e.csv", "job_id,submit_time,num_gpus,duration,max_gpus", "a,0,1,100,2")
    said = refused(simulate(elastic, "--optimum"))
    assert "leave out --optimum, or the columns gpu_memory_gb, min_gpus and max_gpus" in said


def test_a_schedule_that_meets_the_lower_bound_needs_no_other_proof(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsure(*arguments: Any) -> Optimum:
        return replace(real_optimum(*arguments), proven=False)

    monkeypatch.setattr(inputs, "optimum", unsure)
    one = write(tmp_path / "one.csv", "job_id,submit_time,num_gpus,duration", "a,0,2,100")
    assert "optimum (no preemption)" in simulate(one, "--optimum").out
    assert "best found (no preemption)" in simulate(trace, "--optimum").out
