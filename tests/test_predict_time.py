"""`gpu-flows predict time`: the time of a job from the warehouse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from analytics_history import History
from command_line.run import CommandResult, gpu_flows

from gpu_flows.analytics.facts import FeaturesSeen

pytest_plugins = ["command_line.fixtures"]
pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """A warehouse with jobs of flow `f` that took ten seconds for each epoch."""
    history = History(tmp_path)
    history.device("gpu-0")
    for number, epochs in enumerate((2, 4, 8, 16)):
        job_id, begin = f"job{number}", 1000.0 * number
        parameters = {"config": {"model": "cnn", "epochs": epochs, "seed": number}}
        history.record(FeaturesSeen(job_id, "f", json.dumps(parameters), "[]"))
        history.run(job_id, begin, begin, begin + 10 * epochs, "gpu-0")
    history.query("select 1")
    return tmp_path / "warehouse.duckdb"


def predict(warehouse: Path, *arguments: str) -> CommandResult:
    return gpu_flows("predict", "time", *arguments, "--database", str(warehouse))


def test_an_amount_of_work_that_never_ran(warehouse: Path) -> None:
    found = predict(warehouse, "f", "--set", "epochs=32", "--gpu", "GTX", "--json").json
    assert found["p50_s"] == pytest.approx(320, rel=0.1)
    assert found["p90_s"] >= found["p50_s"]
    assert found["how"] == "features"
    assert found["parameters"]["model"] == "cnn", "what is not given is as in the last job"


def test_what_is_shown(warehouse: Path) -> None:
    result = predict(warehouse, "f", "--set", "epochs=8", "--set", "seed=2")
    assert result.code == 0
    assert "half of such jobs" in result.out
    assert "1m 20s" in result.out


def test_what_is_assumed_is_said(warehouse: Path) -> None:
    result = predict(warehouse, "f", "--set", "config.epochs=32")
    assert "model=cnn, seed=3 (as in the last run)" in " ".join(result.out.split())
    found = predict(warehouse, "f", "--set", "config.epochs=32", "--json").json
    assert found["p50_s"] == pytest.approx(320, rel=0.1), "named as in `gpu-flows submit`"
    assert found["assumed"] == ["model", "seed"]


def test_a_parameter_that_no_run_had_is_refused(warehouse: Path) -> None:
    result = predict(warehouse, "f", "--set", "epochz=4", "--set", "epochs=4")
    assert result.code == 2
    assert "No completed run of flow 'f' had a parameter epochz. They had: epochs, model, seed." in result.err


def test_a_gpu_model_of_which_nothing_is_known_is_refused(warehouse: Path) -> None:
    result = predict(warehouse, "f", "--gpu", "Foo")
    assert result.code == 2
    assert "GPU model 'Foo' is not known, and no job has run on one. Jobs ran on: GTX." in result.err
    assert predict(warehouse, "f", "--gpu", "A100").code == 0


def test_an_unknown_flow_is_named_with_the_known_ones(warehouse: Path) -> None:
    result = predict(warehouse, "g")
    assert result.code == 2
    assert "No job of flow 'g' has completed yet. There are: f." in result.err


def test_without_history(tmp_path: Path) -> None:
    result = predict(tmp_path / "warehouse.duckdb", "f")
    assert result.code == 1
    assert "There is no warehouse" in result.err
