"""Memory from declared features: the model of the package, what less knowledge changes, and fitting."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from command_line.run import gpu_flows

from gpu_flows.prediction import memory_profile
from gpu_flows.prediction.declared import DeclaredFeatures, find_features, predict_from_features
from gpu_flows.prediction.memory_fitting import MeasuredJob, fit
from gpu_flows.schedulers.prediction.estimate import JobFeatures
from gpu_flows.schedulers.prediction.gpu_models import UnknownGpuModel
from gpu_flows.schedulers.prediction.memory_features import GpuTraits, MemoryFeatures, MemoryModel

pytest_plugins = ["command_line.fixtures"]

MODEL = memory_profile.default_model()
RESNET50 = MemoryFeatures(
    97.5, 3742.7, 32, 18.4, family="ResNet-50", gpu=GpuTraits("RTX 3090", 936, 10496, 82)
)


def bound_ratio(features: MemoryFeatures) -> float:
    found = MODEL.predict(features)
    return found.upper / found.value


# --- the model of the package ---


def test_default_model_knows_the_jobs_it_was_fitted_on() -> None:
    jobs = memory_profile.default_jobs()
    found = [MODEL.predict(job.features) for job in jobs]
    errors = [abs(each.value / job.peak_mib - 1) for each, job in zip(found, jobs, strict=True)]
    broken = [job.peak_mib > each.upper for each, job in zip(found, jobs, strict=True)]
    assert len(jobs) == 240
    assert np.mean(errors) < 0.04
    assert sum(broken) <= 0.02 * len(jobs)


def test_model_is_evaluated_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    memory_profile.default_model.cache_clear()
    assert memory_profile.default_model().predict(RESNET50) == MODEL.predict(RESNET50)


def test_json_gives_the_same_model() -> None:
    again = MemoryModel.from_json(json.loads(json.dumps(MODEL.to_json())))
    assert again == replace(MODEL, gpus=again.gpus)
    assert again.predict(RESNET50) == MODEL.predict(RESNET50)


def test_a_prediction_takes_under_50_ms() -> None:
    start = time.perf_counter()
    for _ in range(10):
        MODEL.predict(replace(RESNET50, gpu=None))
    assert (time.perf_counter() - start) / 10 < 0.05


# --- what is declared ---


@pytest.mark.parametrize(
    "hidden",
    [{"family": ""}, {"activations_mib": None}, {"family": "", "activations_mib": None}],
)
def test_less_knowledge_widens_the_bound(hidden: dict[str, object]) -> None:
    assert bound_ratio(replace(RESNET50, **hidden)) > bound_ratio(RESNET50)  # type: ignore[arg-type]


def test_a_gpu_model_that_was_not_measured_widens_the_bound() -> None:
    assert bound_ratio(replace(RESNET50, gpu=GpuTraits("A100", 1555, 6912, 108))) > bound_ratio(RESNET50)


def test_without_a_gpu_model_the_bound_covers_every_measured_one() -> None:
    bounds = [MODEL.predict(replace(RESNET50, gpu=gpu)).upper for gpu, _ in MODEL.gpus]
    assert MODEL.predict(replace(RESNET50, gpu=None)).upper == max(bounds)


def test_an_optimizer_adds_its_state() -> None:
    needs = [
        MODEL.predict(replace(RESNET50, optimizer=name)).value
        for name in ("SGD", "RMSprop", "AdamW", "unknown")
    ]
    assert needs[0] < needs[1] < needs[2] == needs[3]
    assert needs[2] - needs[0] == pytest.approx(2 * RESNET50.parameters_mib, rel=0.2)


def test_a_larger_batch_needs_more_where_activations_are_not_declared() -> None:
    sizes = [MODEL.predict(MemoryFeatures(97.5, batch=batch)).value for batch in (1, 8, 64, 512, 4096)]
    assert all(less < more for less, more in pairwise(sizes))


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_sizes_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="parameters_mib must be above 0"):
        MemoryFeatures(value, batch=1)


def test_neither_activations_nor_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="activations, or at least the batch"):
        predict_from_features(parameters=1e6)


def test_a_gpu_is_found_by_a_part_of_its_name() -> None:
    full = predict_from_features(parameters=25.6e6, batch=32, family="resnet", gpu="NVIDIA GeForce RTX 3090")
    assert full == predict_from_features(parameters=25.6e6, batch=32, family="resnet", gpu="3090")
    with pytest.raises(UnknownGpuModel, match="Voodoo"):
        predict_from_features(parameters=25.6e6, batch=32, gpu="Voodoo")


# --- the parameters of a run ---


def test_features_are_found_in_parameters_by_their_usual_names() -> None:
    found = find_features(
        {"config": {"numParams": "125M", "batch_size": 8, "optimizer": "AdamW"}}, "V100-32GB"
    )
    assert found is not None
    assert found.parameters_mib == pytest.approx(125e6 * 4 / 2**20)
    assert (found.batch, found.optimizer) == (8, "AdamW")
    assert found.gpu is not None
    assert found.gpu.name == "V100"


@pytest.mark.parametrize(
    "parameters",
    [{}, {"batch_size": 8}, {"params": 1e6}, {"params": True, "batch": 8}, {"params": "many", "batch": 1}],
)
def test_too_little_in_the_parameters_gives_no_prediction(parameters: dict[str, object]) -> None:
    assert DeclaredFeatures().estimate(JobFeatures(parameters=parameters)) is None


# --- the command line ---


@pytest.mark.usefixtures("own_home")
def test_predict_memory_from_declared_features() -> None:
    words = ["--parameters", "25.6M", "--batch", "32", "--family", "resnet50", "--activations", "3742MB"]
    found = gpu_flows("predict", "memory", *words, "--input-size", "18", "--gpu", "3090", "--json").json
    expected = predict_from_features(
        parameters=25.6e6, batch=32, family="resnet", activations_mib=3742, input_mib=18, gpu="RTX 3090"
    )
    assert (found["memory_mib"], found["upper_mib"]) == (expected.value, expected.upper)
    assert (found["how"], found["fits"]) == ("features", True)
    table = gpu_flows("predict", "memory", *words, "--gpu", "3070").out
    assert "RTX 3070 with 7,982 MiB: it fits" in table
    remark = gpu_flows("predict", "memory", *words, "--gpu", "A100").err
    assert "A100 is taken as A100 40GB. There is also: A100 80GB." in remark
    large = gpu_flows(
        "predict", "memory", "--parameters", "7B", *words[2:], "--gpu", "A40", "--optimizer", "Foo"
    )
    assert "it does not fit" in large.out
    assert "Optimizer 'Foo' is not known: its state is counted as that of Adam." in large.err


@pytest.mark.usefixtures("own_home")
@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "Nothing to predict from."),
        (["--parameters", "1M"], "needs the activations, or at least the batch size"),
        (["--parameters", "many"], "is no number above 0"),
        (["--parameters", "1M", "--batch", "1", "--gpu", "Voodoo"], "Voodoo"),
        (["module:step", "--parameters", "1M"], "A step is traced"),
        (["--parameters", "1M", "--batch", "1", "--precision", "bf16"], "--precision and --set are not used"),
        (["--parameters", "1M", "--batch", "1", "--set", "width=3"], "--precision and --set are not used"),
    ],
)
def test_predict_memory_says_what_is_wrong(words: list[str], error: str) -> None:
    found = gpu_flows("predict", "memory", *words)
    assert found.code == 2
    assert error in found.err


# --- fitting ---


def make_jobs(networks: int, factor: float = 1.0) -> list[MeasuredJob]:
    """Jobs whose peaks follow the sum of parts exactly."""
    gpus = [GpuTraits("small", 300, 2000, 20), GpuTraits("large", 900, 6000, 80)]
    jobs = []
    for number in range(networks):
        for batch in (4, 16, 64):
            for gpu, context in zip(gpus, (300.0, 700.0), strict=True):
                parameters, activations = 50.0 + 40 * number, batch * (20.0 + 7 * number % 13)
                peak = factor * (context + 3 * parameters + 1.1 * activations)
                features = MemoryFeatures(parameters, activations, batch, 0.5 * batch, "SGD", "net", gpu)
                jobs.append(MeasuredJob(features, f"net{number}", peak))
    return jobs


def test_a_fit_finds_the_parts_of_the_sum() -> None:
    *seen, unseen = make_jobs(8)
    model = fit(seen)
    assert model.parameters == pytest.approx(3, rel=0.05)
    assert {gpu.name: context for gpu, context in model.gpus}["large"] == pytest.approx(700, rel=0.1)
    assert model.predict(unseen.features).value == pytest.approx(unseen.peak_mib, rel=0.03)


def test_few_measured_jobs_give_a_wide_bound_or_none() -> None:
    jobs = make_jobs(2)
    found = fit(jobs).predict(jobs[0].features)
    assert found.upper >= 2 * found.value * 0.999
    with pytest.raises(ValueError, match="needs 8 measured jobs; there are 3"):
        fit(jobs[:3])
