"""The predictor of durations: groups, work, GPU models, recency and storage."""

from __future__ import annotations

import json
import math
import random
import time

import pytest

from gpu_flows.schedulers.prediction import gpu_speeds
from gpu_flows.schedulers.prediction.durations import DurationPredictor
from gpu_flows.schedulers.prediction.estimate import Estimate, JobFeatures
from gpu_flows.schedulers.prediction.gpu_speeds import SpeedRatios
from gpu_flows.schedulers.prediction.weighted_quantiles import FadingHistogram, find_quantiles
from gpu_flows.schedulers.prediction.work_amount import Work, find_work


def features(flow: str = "train", user: str = "ana", **parameters: object) -> JobFeatures:
    return JobFeatures(flow=flow, user=user, parameters=parameters)


def ask(predictor: DurationPredictor, job: JobFeatures, model: str = "A100", gpus: int = 1) -> Estimate:
    found = predictor.estimate(job, model, gpus)
    assert found is not None
    return found


def test_nothing_is_known_before_the_first_job() -> None:
    assert DurationPredictor().estimate(features(), "A100", 1) is None


def test_a_repeated_job_is_answered_exactly() -> None:
    predictor, job = DurationPredictor(), features(model="bert", epochs=3)
    for other in range(20):
        predictor.learn(features("other", "bo", size=other), "A100", 1, 10_000.0 + other)
    for _ in range(6):
        predictor.learn(job, "A100", 1, 600.0)
    found = ask(predictor, job)
    assert found.value == pytest.approx(600, rel=0.01)
    assert found.upper < 1000
    assert found.how == "history"
    assert "same parameters" in found.detail


def test_the_upper_value_is_the_ninth_decile() -> None:
    predictor, noise = DurationPredictor(), random.Random(1)
    drawn = [noise.lognormvariate(6.0, 1.0) for _ in range(400)]
    for seconds in drawn:
        predictor.learn(JobFeatures(), "", 1, seconds)
    found = ask(predictor, JobFeatures(), "")
    assert found.value == pytest.approx(math.exp(6.0), rel=0.2)
    assert sum(seconds <= found.upper for seconds in drawn) / len(drawn) == pytest.approx(0.9, abs=0.03)


def test_one_job_does_not_show_how_much_like_jobs_differ() -> None:
    predictor, job, widths = DurationPredictor(), features(epochs=3), list[float]()
    for _ in range(20):
        predictor.learn(job, "A100", 1, 71.0)
        found = ask(predictor, job)
        assert found.value == pytest.approx(71)
        widths.append(found.upper / found.value)
    assert widths[0] > 1.5
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 1.05


def test_few_jobs_of_a_user_borrow_from_all_jobs() -> None:
    predictor = DurationPredictor()
    for number in range(50):
        predictor.learn(features(user=f"user{number}"), "", 1, 100.0)
    predictor.learn(features(user="ana"), "", 1, 1.0)
    once = ask(predictor, features(user="ana", seed=1), "")
    for _ in range(20):
        predictor.learn(features(user="ana"), "", 1, 1.0)
    often = ask(predictor, features(user="ana", seed=1), "")
    assert once.upper == pytest.approx(100, rel=0.05), "one short job does not make all others short"
    assert often.upper == pytest.approx(1, rel=0.05)


def test_newer_jobs_weigh_more() -> None:
    predictor = DurationPredictor()
    for seconds in [100.0] * 60 + [1000.0] * 30:
        predictor.learn(features(), "", 1, seconds)
    assert ask(predictor, features(), "").value == pytest.approx(1000, rel=0.05)


@pytest.mark.parametrize("epochs", [1, 40])
def test_an_amount_of_work_never_seen_follows_from_others(epochs: int) -> None:
    predictor = DurationPredictor()
    for seen in (2, 5, 10, 20):
        predictor.learn(features(model="vit", epochs=seen), "A100", 1, 30.0 + 60.0 * seen)
    found = ask(predictor, features(model="vit", epochs=epochs, seed=3))
    assert found.value == pytest.approx(30 + 60 * epochs, rel=0.25)
    assert found.how == "features"


@pytest.mark.parametrize(
    ("parameters", "work"),
    [
        ({"epochs": 3}, Work("epochs", 3)),
        ({"num_train_epochs": 2, "samples": 100, "batch_size": 4}, Work("num_train_epochs*samples", 200)),
        ({"max_steps": 10, "batch_size": 32}, Work("max_steps*batch_size", 320)),
        ({"seconds": 40, "epochs": 9}, Work("seconds", 40)),
        ({"epochs": True, "steps": "many"}, None),
        ({"lr": 0.1}, None),
        ({"steps": 1e-320}, None),
    ],
)
def test_the_work_that_parameters_ask_for(parameters: dict[str, object], work: Work | None) -> None:
    assert find_work(parameters) == work


def test_another_gpu_model_is_judged_by_the_measured_ratio_and_then_by_what_is_seen() -> None:
    predictor, job = DurationPredictor(), features(model="resnet-50", size=1)
    for _ in range(10):
        predictor.learn(job, "Tesla K80", 1, 5470.0)
    unseen = ask(predictor, job, "Tesla V100-SXM2-16GB")
    assert unseen.value == pytest.approx(1000, rel=0.05), "Gavel measured 5.47 times the speed"
    for size in range(2, 12):  # this kind gains only twice the speed
        other = features(model="resnet-50", size=size)
        predictor.learn(other, "Tesla K80", 1, 1000.0 * size)
        predictor.learn(other, "Tesla V100-SXM2-16GB", 1, 500.0 * size)
    assert ask(predictor, job, "Tesla V100-SXM2-16GB").value == pytest.approx(2735, rel=0.25)


def test_a_stored_predictor_answers_the_same() -> None:
    predictor, noise = DurationPredictor(), random.Random(2)
    jobs = [features(user=noise.choice("abc"), model=noise.choice("xy"), epochs=e) for e in range(1, 40)]
    for job in jobs:
        predictor.learn(job, noise.choice(("A100", "V100")), noise.choice((1, 2)), noise.uniform(10, 1000))
    loaded = DurationPredictor.from_json(json.loads(json.dumps(predictor.to_json())))
    assert loaded.learned == 39
    for job in jobs:
        before, after = ask(predictor, job), ask(loaded, job)
        assert after.value == pytest.approx(before.value, rel=1e-3)
        assert after.upper == pytest.approx(before.upper, rel=1e-3)


def test_a_stored_predictor_discloses_no_parameters() -> None:
    predictor = DurationPredictor()
    predictor.learn(features(prompt="private", epochs=1), "A100", 1, 5.0)
    assert "private" not in str(predictor.to_json())


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
def test_a_duration_that_is_none_is_not_learned(seconds: float) -> None:
    predictor = DurationPredictor()
    predictor.learn(features(), "A100", 1, seconds)
    assert predictor.learned == 0


def test_quantiles_of_weighted_values() -> None:
    assert find_quantiles([(3.0, 1.0)], (0.5, 0.9)) == [3.0, 3.0]
    assert find_quantiles([(2.0, 1.0), (1.0, 1.0), (3.0, 2.0)], (0.2, 0.5, 0.9)) == [1.0, 2.0, 3.0]


def test_a_histogram_forgets_and_keeps_its_count_bounded() -> None:
    histogram = FadingHistogram(half_life=5)
    for _ in range(2000):
        histogram.add(1.0)
    assert histogram.count == pytest.approx(1 / (1 - 2 ** (-1 / 5)), rel=1e-6)
    for _ in range(100):
        histogram.add(9.0)
    assert find_quantiles(list(histogram.points(1.0)), (0.1,)) == pytest.approx([9.0], abs=0.1)


def test_an_estimate_takes_well_under_a_millisecond() -> None:
    predictor, noise = DurationPredictor(), random.Random(3)
    for number in range(3000):
        job = features(user=str(number % 7), model=str(number % 3), epochs=noise.randint(1, 50))
        predictor.learn(job, ("A100", "V100")[number % 2], 1, noise.lognormvariate(6, 2))
    began = time.process_time()
    for number in range(200):
        predictor.estimate(features(user="1", model="1", epochs=number + 1), "A100", 1)
    assert (time.process_time() - began) / 200 < 0.002


def test_ratios_of_kinds_not_seen_for_long_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_speeds, "MOST_KINDS", 4)  # two kinds, each with both directions
    ratios = SpeedRatios(lambda family, source, target: 0.0)
    for kind in ("old", "kept", "new", "kept"):
        ratios.learn(kind, "T4", "A100", -1.0)
    everyone = ratios.change("", "", "T4", "A100")
    assert everyone < -0.5
    assert ratios.change("old", "", "T4", "A100") == everyone
    assert ratios.change("kept", "", "T4", "A100") < everyone
    stored = SpeedRatios.from_json(ratios.to_json())
    assert stored.to_json() == ratios.to_json()
