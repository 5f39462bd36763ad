"""`gpu-flows whatif`: its tables, its JSON and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from analytics_history import copy_empty_warehouse
from command_line.run import HOSTILE_TEXT, CommandResult, expect_error, gpu_flows
from test_whatif import NODES, find_pool, recorded_policies, write

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.simulation.simulator import simulate
from gpu_flows.schedulers.workload import Arrival

pytest_plugins = ["command_line.fixtures"]
pytestmark = pytest.mark.usefixtures("own_home")


def whatif(*words: str) -> CommandResult:
    database = Path(recorded_policies().name, "warehouse.duckdb")
    return gpu_flows("whatif", "--database", str(database), "--pool", find_pool(database, "fifo"), *words)


def test_reality_comes_first_and_changes_are_against_its_replay() -> None:
    shown = whatif("--policy", "srtf,fifo:skip=true", "--gpus", "+4")
    assert (shown.code, shown.err) == (0, "")
    heads = [line.split("  ")[0] for line in shown.out.splitlines()]
    rows = ["as recorded", "fifo (replayed)", "fifo", "srtf", "fifo:skip=true"]
    start = heads.index("as recorded")
    assert heads[start : start + 5] == rows
    lines = shown.out.splitlines()
    assert [lines[start + row].count("%") for row in range(2)] == [1, 1]  # the allocation; no changes
    assert "The rows below the second are with 1 node of 4 GPUs more like node-3 (A100)." in shown.out
    for title in ("Mean turnaround of each user's jobs", "Known", "Assumed"):
        assert title in lines
    found = whatif("--policy", "srtf,fifo:skip=true", "--json").json
    assert found["recorded"]["figures"] == found["replayed"]["figures"]
    assert [each["label"] for each in found["alternatives"]] == ["srtf", "fifo:skip=true"]
    assert found["alternatives"][0]["change"]["avg_turnaround_s"] < 0
    assert {user["user"] for user in found["alternatives"][0]["users"]} == {"ann", "bob"}
    assert found["known"] != []


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--policy", "best"], "There is no policy 'best'."),
        (["--policy", "srtf:speed=3"], "does not take these options"),
        (["--policy", "srtf,srtf"], "Policy 'srtf' is asked for twice."),
        (["--gpus", "many"], "--gpus 'many' is no number of devices."),
        (["--gpus", "100000000"], "--gpus 100000000 is too many; add at most 100,000 devices."),
        (["--gpus", "-8"], "The pool has 8 GPUs; taking 8 away leaves none."),
        (["--since", "soon"], "--since: 'soon' is no duration"),
        (["--since", "1h", "--until", "2h"], "--since 1h is later than --until 2h."),
        (["--cluster", "big"], "--cluster: "),
    ],
)
def test_bad_input_is_explained(words: list[str], error: str) -> None:
    assert error in expect_error(whatif(*words))


def test_a_period_without_jobs_is_no_bad_input() -> None:
    error = expect_error(whatif("--since", "1h"), code=1)
    assert "has no job that was submitted in this time" in error


def test_hostile_names_are_shown_as_text(tmp_path: Path) -> None:
    jobs = [Arrival(Job(name, user=user, gpus=size), 5.0) for name, user, size in _hostile()]
    database = copy_empty_warehouse(tmp_path)
    write(database, fifo=simulate(jobs, NODES, make_policy("fifo")))
    shown = gpu_flows("whatif", "--database", str(database), "--policy", "srtf", "--gpus", "-5")
    assert shown.code == 0
    assert "\x1b" not in shown.out
    assert "\\x1b[2J[red]" in shown.out


def _hostile() -> list[tuple[str, str, int]]:
    return [("a", HOSTILE_TEXT, 1), (HOSTILE_TEXT, "ann", 4), ("b", "ann", 1)]
