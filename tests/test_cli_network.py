"""`gpu-flows simulate --network`: tables, congestion, what results and caveats say."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from command_line.run import CommandResult, expect_error, gpu_flows
from command_line.simulation import write

pytest_plugins = ["command_line.fixtures"]
pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """A job that fits on a node, and one that needs two."""
    rows = ("near,0,2,100,bert", "far,200,4,100,bert", "odd,1000,4,100,something")
    return write(tmp_path / "jobs.csv", "job_id,submit_time,num_gpus,duration,model", *rows)


def run(jobs: Path, *words: str, cluster: str = "2x2@1", command: str = "simulate") -> CommandResult:
    return gpu_flows(command, "--trace", str(jobs), "--cluster", cluster, "--policy", "fifo", *words)


def test_result_names_the_network_and_what_it_costs(jobs: Path) -> None:
    [calm] = run(jobs, "--network", "realistic", "--json", "--jobs-out", "out.csv").json
    assert (calm["network"], calm["congestion"]) == ("realistic", 1)
    tiers = ("attempts_in_node", "attempts_in_rack", "attempts_across_racks")
    assert [calm[tier] for tier in tiers] == [1, 0, 2]
    assert calm["avg_comm_s"] > 0
    assert calm["comm_percent"] == pytest.approx(100 * calm["avg_comm_s"] / (100 + calm["avg_comm_s"]))
    near, far, odd = csv.DictReader(Path("out.csv").read_text().splitlines())
    assert float(near["communication"]) == 0
    assert float(far["communication"]) == pytest.approx(float(far["turnaround"]) - 100)
    assert float(far["communication"]) > float(odd["communication"]) > 0
    [busy] = run(jobs, "--network", "realistic", "--congestion", "3", "--json").json
    assert busy["avg_comm_s"] > 2 * calm["avg_comm_s"]
    [one_rack] = run(jobs, "--network", "realistic", "--json", cluster="2x2").json
    assert [one_rack[tier] for tier in tiers] == [1, 2, 0]
    racks = write(Path("racks.yaml"), "racks:", "  - {nodes: 1, gpus: 2}", "  - {nodes: 1, gpus: 2}")
    [same] = run(jobs, "--network", "realistic", "--json", cluster=str(racks)).json
    assert same["avg_comm_s"] == calm["avg_comm_s"]
    [without] = run(jobs, "--json").json
    assert (without["network"], without["avg_comm_s"]) == (None, 0)


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_tables_name_the_network(jobs: Path, command: str) -> None:
    shown = run(jobs, "--network", "dally", "--congestion", "2", command=command).out
    assert "Network: dally, congestion 2." in shown
    assert "communication" in shown
    assert "Network" not in run(jobs, command=command).out


def test_caveats_say_what_the_network_leaves_out(jobs: Path) -> None:
    [realistic] = run(jobs, "--network", "realistic", "--json").json
    assert (
        "1 of 2 jobs that may span nodes are of no kind in network table realistic: "
        "they communicate like resnet50." in realistic["caveats"]
    )
    [dally] = run(jobs, "--network", "dally", "--json").json
    assert any("latency decides" in caveat for caveat in dally["caveats"])
    [without] = run(jobs, "--json").json
    assert any("see --network and --tier-slowdown" in caveat for caveat in without["caveats"])


def test_own_table(jobs: Path) -> None:
    links = (f"  {tier}: {{gbytes_per_s: 1, latency_us: 0}}" for tier in ("node", "rack", "cluster"))
    path = write(Path("ours.yaml"), "name: our rack", "tiers:", *links)
    [figures] = run(jobs, "--network", str(path), "--json").json
    assert figures["network"] == "our rack"
    write(path, "tiers: {}")
    assert "ours.yaml: tiers.node: Field required" in expect_error(run(jobs, "--network", str(path)))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--network", "dalli"], "There is no network table 'dalli'. Did you mean 'dally'?"),
        (["--network", "nowhere.yaml"], "nowhere.yaml cannot be read"),
        (["--congestion", "2"], "name one with --network"),
        (["--network", "dally", "--congestion", "0.5"], "--congestion"),
        (["--network", "dally", "--tier-slowdown", "1,2"], "leave out --tier-slowdown"),
    ],
)
def test_wrong_usage(jobs: Path, words: list[str], expected: str) -> None:
    assert expected in expect_error(run(jobs, *words))
