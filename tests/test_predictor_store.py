"""Stored predictors: versions, the current one, and files that cannot be used."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_flows.prediction.memory_profile import default_model
from gpu_flows.prediction.predictor_store import KEPT, Predictors, PredictorStore, StoreError
from gpu_flows.schedulers.prediction.durations import DurationPredictor
from gpu_flows.schedulers.prediction.estimate import JobFeatures
from gpu_flows.schedulers.prediction.memory_history import MemoryHistory

JOB = JobFeatures("train", parameters={"model": "a"})
T = 1_700_000_000.0
UNTIL = {"memory_features": T, "memory_history": T - 5, "durations": T - 9}


def make_predictors(version: str) -> Predictors:
    history, durations = MemoryHistory(), DurationPredictor()
    history.learn(JOB, "V100", 1000)
    durations.learn(JOB, "V100", 1, 60)
    return Predictors(
        version, T, T - 60, UNTIL, default_model(), history, durations, {"durations": {"jobs": 1}}
    )


def make_store(folder: Path, versions: int = 1) -> PredictorStore:
    store = PredictorStore(folder / "predictors")
    for number in range(versions):
        store.save(make_predictors(store.new_version(T + number)))
    return store


def test_an_empty_store_has_no_predictors(tmp_path: Path) -> None:
    assert PredictorStore(tmp_path).load_current() is None


def test_saved_predictors_answer_as_before(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    loaded, saved = store.load_current(), make_predictors("20231114T221320Z")
    assert loaded is not None
    assert loaded.memory_history is not None
    assert loaded.durations is not None
    assert saved.memory_history is not None
    assert loaded.memory_history.estimate(JOB, "V100") == saved.memory_history.estimate(JOB, "V100")
    took = loaded.durations.estimate(JOB, "V100", 1)
    assert took is not None
    assert took.value == pytest.approx(60, rel=1e-3)
    plain = {"memory_features": None, "memory_history": None, "durations": None}
    assert replace(loaded, **plain) == replace(saved, **plain)
    assert json.dumps(loaded.memory_features and loaded.memory_features.to_json()) == json.dumps(
        default_model().to_json()
    )


def test_a_file_with_one_date_for_all_parts_is_read(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    path = store.folder / f"{store.current_version()}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "learned_until": T, "memory_features": None}))
    loaded = store.load_current()
    assert loaded is not None
    assert loaded.learned_until == {"memory_history": T, "durations": T}


def test_the_latest_saved_is_current_and_old_ones_are_removed(tmp_path: Path) -> None:
    store = make_store(tmp_path, KEPT + 3)
    assert len(store.versions()) == KEPT
    assert store.current_version() == store.versions()[-1]


def test_two_versions_of_one_second_have_two_names(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    again = store.new_version(T)
    assert again not in store.versions()
    store.save(make_predictors(again))
    assert store.versions() == ["20231114T221320Z", "20231114T221320Z-2"]


def test_a_file_of_another_schema_is_refused(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    path = store.folder / f"{store.current_version()}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 99}))
    with pytest.raises(StoreError, match=r"has schema 99; this gpu-flows reads 1.*predict train --fresh"):
        store.load_current()


@pytest.mark.parametrize("content", ["", "[]", '{"schema": 1}', '{"schema": 1, "memory_features": 3}'])
def test_a_damaged_file_is_refused(tmp_path: Path, content: str) -> None:
    store = make_store(tmp_path)
    (store.folder / f"{store.current_version()}.json").write_text(content)
    with pytest.raises(StoreError, match="predict train --fresh"):
        store.load_current()


@pytest.mark.parametrize("content", ["", "{}", '{"version": "../../etc/passwd"}'])
def test_a_damaged_pointer_is_refused(tmp_path: Path, content: str) -> None:
    store = make_store(tmp_path)
    (store.folder / "current.json").write_text(content)
    with pytest.raises(StoreError, match=r"current\.json"):
        store.load_current()
