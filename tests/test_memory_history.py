"""Memory of jobs that ran before: which earlier runs count, and how wide the bound is."""

from __future__ import annotations

import json

import pytest

from gpu_flows.schedulers.prediction.estimate import Estimate, JobFeatures
from gpu_flows.schedulers.prediction.memory_history import MOST_KEYS, RECENT, MemoryHistory


def job(flow: str = "train", gpus: int = 1, **parameters: object) -> JobFeatures:
    return JobFeatures(flow=flow, gpus=gpus, parameters={"config": parameters})


def learn(*peaks: float, features: JobFeatures | None = None, gpu: str = "V100") -> MemoryHistory:
    history = MemoryHistory()
    for peak in peaks:
        history.learn(features or job(model="a", batch_size=8, seed=1), gpu, peak)
    return history


def expect(history: MemoryHistory, features: JobFeatures, gpu: str = "V100") -> Estimate:
    found = history.estimate(features, gpu)
    assert found is not None
    assert found.how == "history"
    return found


def test_the_same_job_gets_a_high_quantile_of_its_peaks() -> None:
    found = expect(learn(1000, 1100, 1050), job(model="a", batch_size=8, seed=1))
    assert found.value == 1100
    assert 1100 < found.upper < 1400
    assert found.detail == "3 runs with the same parameters"


@pytest.mark.parametrize(
    "change",
    [{"seed": 2}, {"learning_rate": 0.1}, {"lr": 1.0}, {"run_name": "x"}, {"epochs": 9}, {"logDir": "/x"}],
)
def test_what_does_not_change_memory_is_ignored(change: dict[str, object]) -> None:
    history = learn(1000, features=job(model="a", batch_size=8, seed=1, width=3, flag=True))
    features = {"model": "a", "batch_size": 8, "seed": 1, "width": 3, "flag": True, **change}
    found = expect(history, job(**features))
    assert "but for seeds" in found.detail


@pytest.mark.parametrize(
    "change",
    [{"batch_size": 9}, {"model": "b"}, {"model_name": "b"}, {"accumulation_steps": 4, "dtype": "bf16"}],
)
def test_what_changes_memory_is_another_job(change: dict[str, object]) -> None:
    history = learn(1000)
    assert history.estimate(job(**{"model": "a", "batch_size": 8, **change}), "V100") is None


def test_the_same_model_and_batch_serve_with_a_wider_bound() -> None:
    history = learn(1000, features=job(model="a", batch_size=8, flag=True))
    same, similar = (expect(history, job(model="a", batch_size=8, flag=flag)) for flag in (True, False))
    assert similar.detail == "1 run with the same model and batch"
    assert similar.upper > same.upper


def test_another_flow_or_size_is_another_job() -> None:
    history = learn(1000)
    assert history.estimate(job("other", model="a", batch_size=8, seed=1), "V100") is None
    assert history.estimate(job(gpus=2, model="a", batch_size=8, seed=1), "V100") is None


def command(text: str) -> JobFeatures:
    return JobFeatures("container", parameters={"image": "pytorch", "command": text})


def test_commands_are_compared_by_their_program_and_its_options() -> None:
    history = learn(900, features=command("python eval.py --batch 64 --seed 1"))
    assert "but for seeds" in expect(history, command("python eval.py --batch 64 --seed 2")).detail
    assert "model and batch" in expect(history, command("python eval.py --batch 64 --plots no")).detail
    for other in ("eval.py --batch 65", "finetune.py --batch 64", "finetune.py", "eval.py --fp16 --batch 64"):
        assert history.estimate(command(f"python {other}")) is None


def test_another_gpu_model_serves_with_a_wider_bound_until_there_is_a_peak_on_it() -> None:
    features = job(model="a", batch_size=8, seed=1)
    history = learn(1000)
    other, any_gpu = expect(history, features, "A100"), expect(history, features, "")
    assert other.upper > expect(history, features).upper == any_gpu.upper
    assert "other GPU models" in other.detail
    history.learn(features, "A100", 1300)
    assert expect(history, features, "A100").value == 1300
    assert expect(history, features, "V100").value == 1000


def test_the_bound_narrows_with_observations_and_widens_with_their_spread() -> None:
    features = job(model="a", batch_size=8, seed=1)
    once, often, spread = (expect(learn(*peaks), features) for peaks in ([1000], [1000] * 9, [600, 1000] * 5))
    assert 1000 < often.upper < once.upper < spread.upper


def test_a_job_that_ran_out_of_memory_needs_more_than_it_got() -> None:
    features = job(model="a", batch_size=8, seed=1)
    history = learn(1000)
    history.learn(features, "V100", 2000, is_least=True)
    raised = expect(history, features)
    assert raised.value == 2000
    assert raised.upper >= 3000
    history.learn(features, "V100", 2400)
    assert expect(history, features).value == 2400


def test_the_smallest_device_on_which_like_jobs_completed_is_enough() -> None:
    features, history = job(model="a", batch_size=8, seed=1), MemoryHistory()
    history.learn(features, "A100", 20_000, device_mb=40_960)
    assert history.find_enough(features) == 40_960
    history.learn(features, "T4", 15_600, device_mb=16_384)
    again = MemoryHistory.from_json(json.loads(json.dumps(history.to_json())))
    assert again.find_enough(features) == 16_384
    loose = job(model="a", batch_size=8, flag=True)
    assert again.find_enough(loose) == 40_960, "one of the like jobs needed more than the smaller device"
    again.learn(features, "T4", 16_000, is_least=True, device_mb=16_384)
    assert again.find_enough(features) == 40_960, "it ran out of memory on the smaller device"
    assert again.find_enough(job(model="b")) == 0


def test_a_history_without_sizes_of_devices_is_read() -> None:
    history = learn(1000)
    stored = json.loads(json.dumps(history.to_json()))
    for by_gpu in stored["peaks"].values():
        by_gpu["V100"] = [peak[:2] for peak in by_gpu["V100"]]
    again, features = MemoryHistory.from_json(stored), job(model="a", batch_size=8, seed=1)
    assert again.estimate(features, "V100") == history.estimate(features, "V100")
    assert again.find_enough(features) == 0


def test_old_peaks_are_forgotten() -> None:
    features = job(model="a", batch_size=8, seed=1)
    assert expect(learn(5000, *[1000] * RECENT), features).upper < 1100


def test_keys_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_flows.schedulers.prediction.memory_history.MOST_KEYS", 30)
    history = MemoryHistory()
    for number in range(100):
        history.learn(job(model=str(number)), "V100", 1000)
    assert MOST_KEYS > 30
    assert history.estimate(job(model="0"), "V100") is None
    assert history.estimate(job(model="99"), "V100") is not None


@pytest.mark.parametrize("peak", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_peaks_are_not_learned(peak: float) -> None:
    assert learn(peak).estimate(job(model="a", batch_size=8, seed=1)) is None


def test_json_gives_the_same_history() -> None:
    history = learn(1000, 1200)
    history.learn(job(model="b"), "A100", 50, is_least=True)
    again = MemoryHistory.from_json(json.loads(json.dumps(history.to_json())))
    for features in (job(model="a", batch_size=8, seed=1), job(model="b")):
        assert again.estimate(features, "V100") == history.estimate(features, "V100")
    assert again.learned == 3
