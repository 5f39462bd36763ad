"""`gpu-flows simulate`: figures, unfinished jobs, options and errors."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest
from command_line.run import CommandResult, expect_error, gpu_flows, gpu_flows_process
from command_line.simulation import simulate, write

from gpu_flows.cli.simulation import running
from gpu_flows.cli.simulation.policy_choices import split_policies
from gpu_flows.schedulers import policy as registry
from gpu_flows.schedulers.model import Plan
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.simulation.simulator import simulate as real_simulation

pytest_plugins = ["command_line.fixtures"]
pytestmark = pytest.mark.usefixtures("own_home")

KEYS = [
    *("policy", "jobs", "finished", "makespan_s", "avg_turnaround_s"),
    *("p50_turnaround_s", "p90_turnaround_s", "p99_turnaround_s", "avg_queueing_s", "utilization_percent"),
    *("preemptions", "lower_bound_makespan_s", "events", "wall_s"),
]


# Figures


def test_json_of_one_policy_has_the_documented_keys_first(trace: Path) -> None:
    [figures] = simulate(trace, "--policy", "fifo", "--json").json
    assert list(figures)[: len(KEYS)] == KEYS
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
        "utilization_percent": 100 * (200 * 0.5 + 20 + 30 + 20 * 0.8) / 440,
        "allocation_percent": 100 * (200 + 20 + 30 + 20) / 440,
        "preemptions": 0,
        "lower_bound_makespan_s": pytest.approx(220),
        "events": 12,
        "impossible": 0,
        "unfinished": 0,
        "policy_error": "",
    }
    assert {key: figures[key] for key in expected} == expected


def test_policies_are_reported_in_the_given_order_with_their_options(trace: Path) -> None:
    figures = simulate(trace, "--policy", "srtf:by=service,placement=any,fifo, srtf", "--json").json
    assert [each["policy"] for each in figures] == ["srtf:by=service,placement=any", "fifo", "srtf"]
    assert [each["placement"] for each in figures] == ["any", "first_fit", "first_fit"]
    assert [each["preemptions"] for each in figures] == [1, 0, 1]
    assert figures[2]["avg_turnaround_s"] == (140 + 10 + 30 + 20) / 4


def test_table_shows_policies_lower_bound_and_caveats(trace: Path) -> None:
    result = simulate(trace, "--policy", "fifo,srtf")
    assert result.code == 0
    assert result.err == ""
    lines = result.out.splitlines()
    assert lines[0].endswith("jobs.csv (native): 4 jobs on 1x2 (2 devices), times in seconds.")
    assert lines[2].split()[:4] == ["policy", "finished", "makespan", "turnaround"]
    assert lines[3].split()[:4] == ["fifo", "4", "220.0", "85.0"]
    assert lines[4].split()[:4] == ["srtf", "4", "220.0", "50.0"]
    assert lines[5].split()[:3] == ["lower", "bound", "220.0"]
    assert "What this does not show" in lines
    assert "- srtf: Stopping and moving jobs costs nothing; see --restart-seconds" in result.out


def test_policy_option_may_be_repeated(trace: Path) -> None:
    words = ["--policy", "fifo", "--policies", "sjf,srtf", "--policy", "fifo:skip=true,placement=best_fit"]
    figures = simulate(trace, *words, "--json").json
    assert [each["policy"] for each in figures] == [
        "fifo",
        "sjf",
        "srtf",
        "fifo:skip=true,placement=best_fit",
    ]


def test_default_policy_is_fifo(trace: Path) -> None:
    assert [each["policy"] for each in simulate(trace, "--json").json] == ["fifo"]


def test_caveats_depend_on_the_options(trace: Path) -> None:
    [plain] = simulate(trace, "--policy", "srtf", "--json").json
    [careful] = simulate(
        trace, "--policy", "srtf", "--json", "--estimates", "learned", "--restart-seconds", "5"
    ).json
    assert any("true duration" in each for each in plain["caveats"])
    assert any("costs nothing" in each for each in plain["caveats"])
    assert not any("true duration" in each or "costs nothing" in each for each in careful["caveats"])
    assert any("the median that earlier jobs" in each for each in careful["caveats"])
    assert careful["avg_turnaround_s"] > plain["avg_turnaround_s"]


def test_parallel_processes_give_the_same_results(trace: Path) -> None:
    words = ["--policy", "fifo,srtf,sjf", "--json", "--jobs-out", "jobs.json", "--charts", "charts"]
    alone = simulate(trace, *words, "--processes", "1")
    rows = Path("jobs.json").read_text()
    asked = ["simulate", "--trace", str(trace), "--cluster", "1x2", *words, "--processes", "2"]
    both = gpu_flows_process(*asked, env={**os.environ})
    assert both.err == ""
    assert without_times(both) == without_times(alone)
    assert Path("jobs.json").read_text() == rows


def without_times(result: CommandResult) -> list[dict[str, Any]]:
    """The figures without the time that the simulation took."""
    return [{k: v for k, v in each.items() if k not in ("wall_s", "cpu_s")} for each in result.json]


def test_same_seed_gives_the_same_result() -> None:
    words = ["simulate", "--workload", "poisson:jobs=200", "--cluster", "2x4", "--policy", "srtf,tiresias"]
    words += ["--json", "--estimates", "noisy:0.5", "--node-mtbf-hours", "20", "--sharing", "exclusive"]
    first, again, other = (without_times(gpu_flows(*words, "--seed", seed)) for seed in ("1", "1", "2"))
    assert first == again
    assert first[0]["avg_turnaround_s"] != other[0]["avg_turnaround_s"]
    assert first[0]["losses"] > 0


# Jobs that do not finish


def test_impossible_jobs_are_listed_with_their_reason(tmp_path: Path) -> None:
    trace = write(
        tmp_path / "wide.csv",
        "job_id,submit_time,num_gpus,duration",
        *(f"wide-{number},0,3,10" for number in range(7)),
        "fits,0,1,10",
    )
    result = simulate(trace, "--policy", "fifo,srtf", "--jobs-out", "out.csv")
    assert result.code == 0
    assert "Not finished under fifo, srtf: 7 of 8 jobs" in result.out
    assert "wide-0  It needs 3 GPUs, and the whole pool has 2 of them." in result.out
    assert "--jobs-out FILE has them all" in result.out
    rows = list(csv.DictReader(Path("out.csv").read_text().splitlines()))
    assert [row["outcome"] for row in rows].count("impossible") == 14
    assert all(row["reason"] for row in rows if row["outcome"] == "impossible")
    [figures] = simulate(trace, "--json").json
    assert (figures["jobs"], figures["finished"], figures["impossible"], figures["unfinished"]) == (
        8,
        1,
        7,
        0,
    )
    assert len(figures["troubles"]) == 7


def test_lost_job_is_reported_as_a_bug(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(*arguments: Any) -> Any:
        found = real_simulation(*arguments)
        found.jobs[0].ended = None
        return found

    monkeypatch.setattr(running, "simulate", forgetful)
    result = simulate(trace)
    assert result.code == 70
    assert "1 of 4 jobs have no outcome: long" in result.err
    assert result.out == ""


def test_failed_policy_is_reported_and_marked(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Policy):
        """It fails."""

        name = "broken"

        def plan(self, state: State) -> Plan:
            raise RuntimeError("oh no")

    monkeypatch.setitem(registry._built_in(), "broken", Broken)
    result = simulate(trace, "--policy", "fifo,broken", "--json")
    assert result.code == 1
    assert "Policy broken failed: RuntimeError: oh no" in result.err
    fine, broken = result.json
    assert broken["policy_error"].startswith("RuntimeError: oh no")
    assert broken["avg_turnaround_s"] == fine["avg_turnaround_s"]
    assert "these figures are not the policy's own" in broken["caveats"][0]

    words = ["--policy", "srtf,broken"]
    drawn = simulate(trace, *words, command="compare").out.splitlines()
    row = next(line for line in drawn if line.startswith("broken (failed)"))
    assert row.count("%") == 1  # its utilization
    compared = simulate(trace, *words, "--json", command="compare").json["policies"][1]
    assert {*compared["change"].values(), *compared["above_bound"].values()} == {None}
    alone = simulate(trace, "--policy", "broken", "--best", "makespan_s", "--json", command="compare").json
    assert alone["best"] is None


# Options of the workload, the cluster and the assumptions


def test_jobs_span_nodes_only_if_necessary_or_requested(tmp_path: Path) -> None:
    trace = write(
        tmp_path / "t.csv",
        "job_id,submit_time,num_gpus,duration",
        *("a,0,1,100", "b,0,1,100", "c,1,2,50", "d,300,3,10"),
    )

    def ends(*words: str) -> list[float | None]:
        result = gpu_flows(
            *("simulate", "--trace", str(trace), "--cluster", "2x2", "--jobs-out", "o.json", *words)
        )
        assert result.code == 0
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
    [figures] = gpu_flows("simulate", *wide).json
    assert figures["devices"] == 3
    assert figures["avg_turnaround_s"] > 140  # the long job spans racks


def test_profile_sets_the_speed_of_kinds_on_models(tmp_path: Path) -> None:
    jobs = ["job_id,submit_time,num_gpus,duration,model", "a,0,1,100,resnet", "b,0,1,100,other"]
    trace = write(tmp_path / "t.csv", *jobs)
    table = {"reference": "v100", "throughput": {"resnet": {"V100": {"1": 10}, "a100": {"1": 40}}}}
    profile = write(tmp_path / "p.json", json.dumps(table))
    words = ["--cluster", "1x2:A100:80", "--profile", str(profile), "--json"]
    [figures] = gpu_flows("simulate", "--trace", str(trace), *words).json
    assert figures["avg_turnaround_s"] == (25 + 100) / 2
    mixed = ["--cluster", "1x2:H100+1x2:V100", "--profile", str(profile), "--json"]
    [figures] = gpu_flows("simulate", "--trace", str(trace), *mixed).json
    assert "The profile has no speeds for H100: jobs run there as on V100." in figures["caveats"]
    write(profile, json.dumps({**table, "reference": "H100"}))
    assert "'h100'" in expect_error(gpu_flows("simulate", "--trace", str(trace), *words))


def test_profile_sets_the_slowdown_of_kinds_across_nodes(tmp_path: Path) -> None:
    rows = ["job_id,submit_time,num_gpus,duration,model", "a,0,2,100,resnet", "b,400,2,100,other"]
    trace = write(tmp_path / "t.csv", *rows)
    table = {"reference": "GPU", "throughput": {"": {"GPU": {"1": 1, "2": 2}}}}
    profile = write(tmp_path / "p.json", json.dumps({**table, "slowdown": {"resnet": [3, 4]}}))
    words = ["--cluster", "2x1", "--profile", str(profile), "--tier-slowdown", "1.5,2", "--json"]
    [figures] = gpu_flows("simulate", "--trace", str(trace), *words).json
    assert figures["avg_turnaround_s"] == (300 + 150) / 2
    write(profile, json.dumps({**table, "slowdown": {"resnet": 3}}))
    assert "slowdowns" in expect_error(gpu_flows("simulate", "--trace", str(trace), *words))


def test_gavel_table_sets_durations_and_speeds(tmp_path: Path) -> None:
    measured = {"k80": 10.0, "v100": 40.0}
    table = {model: {"('ResNet-18', 1)": {"null": rate}} for model, rate in measured.items()}
    profile = write(tmp_path / "throughputs.json", json.dumps(table))
    trace = write(tmp_path / "g.trace", "ResNet-18\tcmd\t--n\t1\t4000\t0\t1")
    alone = expect_error(gpu_flows("simulate", "--trace", str(trace), "--cluster", "1x1"))
    assert "--profile FILE (or --format gavel:throughputs=FILE)" in alone
    for model, seconds in (("V100", 100), ("K80", 400)):
        words = ["--trace", str(trace), "--profile", str(profile), "--cluster", f"1x1:{model}", "--json"]
        [figures] = gpu_flows("simulate", *words).json
        assert figures["makespan_s"] == seconds


def test_elastic_jobs_run_faster_on_more_devices(tmp_path: Path) -> None:
    trace = write(
        tmp_path / "t.csv", "job_id,submit_time,num_gpus,duration,min_gpus,max_gpus", "a,0,1,100,1,2"
    )
    [figures] = simulate(trace, "--policy", "ffdl", "--json").json
    assert figures["makespan_s"] == 50


def test_shares_of_a_gpu_do_not_depend_on_its_memory(tmp_path: Path) -> None:
    columns = "job_id,user,num_cpu,num_gpu,submit_time,duration,num_inst"
    halves = write(tmp_path / "pai.csv", columns, *(f"{name},ann,1,0.5,0,100,1" for name in "abcd"))
    unit = "The trace states shares of a GPU: each device has 1000 units, whatever its memory."
    for cluster in ("1x1", "1x1:V100:16", "1x1:T4:0.5"):
        words = ["simulate", "--trace", str(halves), "--cluster", cluster, "--json"]
        [shared] = gpu_flows(*words, "--sharing", "shared").json
        [whole] = gpu_flows(*words).json
        assert (shared["makespan_s"], whole["makespan_s"]) == (200, 400)
        assert unit in shared["caveats"]
        assert unit in whole["caveats"]
        about_whole = "A share of a GPU takes a whole one; see --sharing shared."
        assert [about_whole in each["caveats"] for each in (shared, whole)] == [False, True]


def test_part_of_a_trace(trace: Path) -> None:
    def counted(*words: str) -> tuple[int, dict[str, int]]:
        [figures] = simulate(trace, "--json", *words).json
        return figures["jobs"], figures["skipped"]

    assert counted("--since", "10", "--until", "30") == (2, {"outside since and until": 2})
    assert counted("--limit", "1") == (1, {"over the limit": 3})
    assert counted("--sample", "0.5")[0] == 2
    [heavier] = simulate(trace, "--scale-load", "2", "--json").json
    assert heavier["makespan_s"] == 140  # small waits until 110; late comes at 100 and runs beside it


# Wrong usage


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--policy", "fif"], "There is no policy 'fif'. Did you mean 'fifo'? There are: "),
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
def test_wrong_usage_has_exit_code_2(trace: Path, words: list[str], expected: str) -> None:
    assert expected in expect_error(simulate(trace, *words))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--cluster", "3"], "NODESxGPUS"),
        (["--cluster", "nope.yaml"], "nope.yaml"),
        (["--cluster", "1x1", "--workload", "poissson"], "There is no workload 'poissson'"),
        (["--cluster", "1x1", "--workload", "poisson", "--limit", "5"], "--limit is for traces"),
        (["--cluster", "1x1"], "There are no jobs"),
    ],
)
def test_wrong_cluster_or_workload_has_exit_code_2(words: list[str], expected: str) -> None:
    extra = (
        [] if "--workload" in words or expected == "There are no jobs" else ["--workload", "poisson:jobs=5"]
    )
    assert expected in expect_error(gpu_flows("simulate", *words, *extra))


def test_error_names_the_line_of_a_bad_row(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.csv", "job_id,submit_time,num_gpus,duration", "a,0,1,10", "b,1,two,10")
    error = expect_error(simulate(trace))
    assert "line 3" in error
    assert "num_gpus" in error
    assert "'two'" in error
    assert "cannot be read" in expect_error(simulate(tmp_path / "missing.csv"))


def test_policies_are_split_at_commas_outside_of_brackets() -> None:
    assert split_policies("a, b:x=1,y=[2,3] ,c:z={},srtf") == ["a", "b:x=1,y=[2,3]", "c:z={}", "srtf"]
