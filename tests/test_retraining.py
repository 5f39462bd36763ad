"""Retraining: what is learned from the warehouse, and that only better predictors replace current ones."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from analytics_history import History, T
from command_line.run import gpu_flows
from learning_history import PARAMETERS, record_jobs

from gpu_flows.prediction import retraining
from gpu_flows.prediction.memory_profile import default_jobs
from gpu_flows.prediction.predictor_store import Predictors, PredictorStore
from gpu_flows.prediction.retraining import Verdict, retrain, retrain_and_store
from gpu_flows.prediction.warehouse_rows import EndedJob, read_ended_jobs
from gpu_flows.schedulers.prediction.durations import DurationPredictor
from gpu_flows.schedulers.prediction.estimate import JobFeatures
from gpu_flows.schedulers.prediction.memory_history import MemoryHistory
from gpu_flows.worker import prediction_setup

pytest_plugins = ["command_line.fixtures"]

JOB = JobFeatures("train", parameters={"model": "a", "batch_size": 8})


def ended(number: int, peak: float | None = 1000.0, seconds: float = 60.0, **changes: Any) -> EndedJob:
    values: dict[str, Any] = {
        "job_id": str(number),
        "features": JOB,
        "gpu_model": "V100",
        "gpus": 1,
        "is_complete": True,
        "seconds": seconds,
        "peak_mib": peak,
        "ended": T + number,
    }
    return EndedJob(**{**values, **changes})


def judge(
    jobs: list[EndedJob], current: Predictors | None = None
) -> tuple[Predictors | None, dict[str, Verdict]]:
    done = retrain(jobs, current, "20260101T000000Z", T, say=lambda _: None)
    return done.predictors, {verdict.part: verdict for verdict in done.verdicts}


def knows(peak: float, seconds: float, until: float) -> Predictors:
    """Predictors that learned one kind of job."""
    history, durations = MemoryHistory(), DurationPredictor()
    for _ in range(20):
        history.learn(JOB, "V100", peak)
        durations.learn(JOB, "V100", 1, seconds)
    both = dict.fromkeys(("memory_history", "durations"), until)
    return Predictors("20250101T000000Z", T, T, both, None, history, durations)


# --- judging ---


def test_too_little_history_changes_nothing() -> None:
    predictors, verdicts = judge([ended(number) for number in range(20)])
    assert predictors is None
    assert verdicts["memory_history"].reason.startswith("too little history: 20 jobs")
    assert verdicts["memory_features"].reason.startswith("too little history: 0 jobs")


def test_the_first_predictors_need_no_predecessor() -> None:
    predictors, verdicts = judge([ended(number, 1000 + number % 3, 60 + number % 5) for number in range(60)])
    assert predictors is not None
    assert predictors.memory_features is None
    assert predictors.memory_history is not None
    assert predictors.memory_history.learned == 60  # the judged jobs too, once it has won
    found = verdicts["memory_history"].new
    assert found is not None
    assert (found.jobs, found.answered, found.broken) == (12, 12, 0)
    assert predictors.figures["durations"]["replaced"]
    assert predictors.learned_from == T
    assert predictors.learned_until == {"memory_history": T + 59, "durations": T + 59}


def test_a_worse_predictor_does_not_replace_the_current_one() -> None:
    """The latest jobs are as the current predictors know them; the ones before were not."""
    jobs = [ended(number, *((5000, 500) if number < 60 else (1000, 60))) for number in range(75)]
    predictors, verdicts = judge(jobs, knows(1000, 60, until=T))
    assert predictors is None
    for part in ("memory_history", "durations"):
        assert not verdicts[part].replaced
        assert "of the current one" in verdicts[part].reason


def test_a_better_predictor_replaces_the_current_one() -> None:
    predictors, verdicts = judge([ended(number) for number in range(60)], knows(5000, 900, until=T))
    assert predictors is not None
    assert predictors.version == "20260101T000000Z"
    assert "before" in verdicts["durations"].reason


def test_a_predictor_whose_bound_does_not_hold_is_refused() -> None:
    jobs = [ended(number, 1000 if number < 48 else 2000, 60 if number < 48 else 600) for number in range(60)]
    predictors, verdicts = judge(jobs)
    assert predictors is None
    assert verdicts["memory_history"].reason == "not replaced: 12 of 12 upper bounds were exceeded"


def test_jobs_that_the_current_predictors_learned_do_not_judge_them() -> None:
    predictors, verdicts = judge([ended(number) for number in range(60)], knows(1000, 60, until=T + 50))
    assert predictors is None
    assert "60 jobs, 9 of them new" in verdicts["durations"].reason


def test_a_part_that_is_not_replaced_still_learns_its_jobs_when_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are enough durations, but only 15 peaks."""
    jobs = [ended(number, 1000.0 if number < 15 else None) for number in range(60)]
    predictors, _ = judge(jobs)
    assert predictors is not None
    assert predictors.learned_until == {"durations": T + 59}
    store = PredictorStore(tmp_path)
    store.save(predictors)
    monkeypatch.setattr(prediction_setup, "read_ended_jobs", lambda _: jobs)
    monkeypatch.setattr(prediction_setup, "read_runs", lambda _: [])
    loaded = prediction_setup.load_predictors(store, tmp_path)
    assert (loaded.history.learned, loaded.durations.learned) == (15, 60)


def test_without_scikit_learn_the_other_parts_are_retrained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.exceptions", None)
    features = JobFeatures("f", parameters={"params": "20M", "batch": 8, "family": "own"})
    predictors, verdicts = judge([ended(number, features=features) for number in range(60)])
    assert "pip install 'gpu-flows[predict]'" in verdicts["memory_features"].reason
    assert predictors is not None
    assert predictors.memory_features is None
    assert verdicts["memory_history"].replaced
    assert verdicts["durations"].replaced


def test_declared_features_are_learned_beside_the_profile_of_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The package's model does not know that these jobs need three times as much."""
    monkeypatch.setattr(retraining, "default_jobs", lambda: default_jobs()[:40])  # to be quick
    jobs = []
    for number in range(60):
        millions, batch = 20 + 10 * (number % 6), 8 * (1 + number % 4)
        features = JobFeatures(
            "f",
            parameters={"params": f"{millions}M", "batch": batch, "family": f"own{number % 3}", "n": number},
        )
        jobs.append(ended(number, 3 * (1000 + 20 * millions + 40 * batch), features=features))
    predictors, verdicts = judge(jobs)
    assert verdicts["memory_features"].replaced, verdicts["memory_features"]
    assert predictors is not None
    new, old = verdicts["memory_features"].new, verdicts["memory_features"].old
    assert new is not None
    assert old is not None
    assert new.score < 0.5 * old.score


# --- from the warehouse ---


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learning")
    history = History(folder)
    record_jobs(history, 60)
    history.job("waiting", 1)
    history.run("simulated", 0, 1, 2, "d0", experiment="x")
    history.query("select 1")
    return folder / "warehouse.duckdb"


def test_ended_jobs_are_read_in_the_order_of_their_ends(warehouse: Path) -> None:
    jobs = read_ended_jobs(warehouse)
    assert [job.job_id for job in jobs] == [f"j{number}" for number in range(60)]
    first = jobs[0]
    assert first.features == JobFeatures("f", "d", "ann", 1, PARAMETERS)
    assert (first.gpu_model, first.gpus, first.seconds, first.peak_mib) == ("GTX", 1, 6.0, 1000.0)
    assert first.is_complete
    assert first.device_mib == 11_000
    assert first.ended == pytest.approx(T + 7)


def test_retrained_predictors_are_stored(warehouse: Path, tmp_path: Path) -> None:
    store = PredictorStore(tmp_path / "predictors")
    retrain_and_store(warehouse, store, T, say=lambda _: None)
    first = store.load_current()
    assert first is not None
    assert first.memory_history is not None
    found = first.memory_history.estimate(JobFeatures("f", "d", "ann", 1, PARAMETERS), "GTX")
    assert found is not None
    assert found.value == 1002
    retrain_and_store(warehouse, store, T + 1, say=lambda _: None)
    assert store.versions() == [first.version], "nothing new was recorded"


# --- the command line ---


@pytest.mark.usefixtures("own_home")
def test_predict_train_and_evaluate(warehouse: Path, tmp_path: Path) -> None:
    trained = gpu_flows("predict", "train", "--database", str(warehouse), "--json")
    assert trained.code == 0, trained.err
    assert trained.json["replaced"]
    assert (tmp_path / "home" / "predictors" / f"{trained.json['version']}.json").exists()
    again = gpu_flows("predict", "train", "--database", str(warehouse))
    assert "too little history: 60 jobs, 0 of them new" in again.out
    verdicts = [line for line in (again.out + again.err).splitlines() if "too little history" in line]
    assert len(verdicts) == len(trained.json["parts"]), "each verdict once"
    assert f"Current predictors: {trained.json['version']}." in again.out
    evaluated = gpu_flows("predict", "evaluate", "--database", str(warehouse), "--charts", "charts", "--json")
    found = evaluated.json
    assert "Wrote charts/" in evaluated.err
    memory = next(each for each in found if each["quantity"] == "memory_mb")
    assert (memory["how"], memory["kind"], memory["jobs"]) == ("features", "all", 60)
    assert memory["median_error"] == pytest.approx(1100 / 1001 - 1)
    assert memory["covered"] == pytest.approx(2 / 3)
    seconds = next(each for each in found if each["quantity"] == "seconds")
    assert seconds["worst_under"] == pytest.approx(0.5)
    assert seconds["covered"] == 1
    page = (tmp_path / "charts" / "calibration.html").read_text()
    assert "Memory per device" in page
    assert "Time on devices" in page
    table = gpu_flows("predict", "evaluate", "--database", str(warehouse), "--kinds").out
    assert "66.7%" in table
    assert "kind" in table.splitlines()[2]


@pytest.mark.usefixtures("own_home")
def test_predict_says_what_is_missing(tmp_path: Path) -> None:
    for command in ("train", "evaluate"):
        found = gpu_flows("predict", command)
        assert found.code == 1
        assert "There is no warehouse at" in found.err
    history = History(tmp_path)
    history.query("select 1")
    found = gpu_flows("predict", "evaluate", "--database", str(tmp_path / "warehouse.duckdb"))
    assert found.err == "No job with a prediction has completed yet.\n"
    found = gpu_flows("predict", "train", "--database", str(tmp_path / "warehouse.duckdb"))
    assert "too little history: 0 jobs" in found.out
    assert "those of the package" in found.out
