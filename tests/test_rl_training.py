"""Training and evaluation of the policy `rl`, by function and by command."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from gpu_flows.learning.curriculum import LOADS, Curriculum
from gpu_flows.schedulers.learning.weights import load
from gpu_flows.schedulers.model import all_devices

pytest.importorskip("sb3_contrib")
from gpu_flows.learning import judging, training
from gpu_flows.learning.scoring_policy import Scorer
from gpu_flows.schedulers.learning.curve import LearningPoint
from gpu_flows.schedulers.learning.features import LIMIT, NAMES
from gpu_flows.schedulers.learning.network import make_network


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates after few decisions, and few workloads to judge by."""
    monkeypatch.setattr(training, "STEPS_EACH", 32)
    monkeypatch.setattr(training, "ENVIRONMENTS", 2)
    monkeypatch.setattr(judging, "EPISODES", 2)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_weights_in_one_process_or_several(tmp_path: Path, short: None) -> None:
    points: list[tuple[int, LearningPoint]] = []
    files = [tmp_path / "first.npz", tmp_path / "second.npz"]
    for file, processes in zip(files, (1, 2), strict=True):
        done = training.train(
            output=file,
            steps=128,
            seeds=[7],
            processes=processes,
            command="gpu-flows rl train",
            progress=lambda *each: points.append(each),
        )
        assert done.ratio <= done.ratio_before
        assert done.weights.header.low != (-LIMIT,) * len(NAMES), "it knows the range of each feature"
    assert files[0].read_bytes() == files[1].read_bytes()
    assert [(seed, point.step) for seed, point in points] == [(7, 64), (7, 128)] * 2
    curve = [str(replace(point, seconds=0.0)) for _, point in points]  # as texts, because NaN equals nothing
    assert curve[:2] == curve[2:], "the training itself was the same, not only what was chosen of it"
    assert all(math.isfinite(point.entropy) and math.isfinite(point.value_loss) for _, point in points)
    assert load(files[0]).header.command == "gpu-flows rl train"


def test_torch_and_numpy_agree_about_the_network() -> None:
    import numpy as np
    import torch

    network = make_network(2, seed=3)
    network = network._replace(w3=np.random.default_rng(0).normal(size=network.w3.shape).astype(np.float32))
    rows = np.random.default_rng(1).normal(size=(9, len(NAMES))).astype(np.float32)
    scorer = Scorer(network)
    assert np.allclose(scorer(torch.from_numpy(rows)).detach().numpy(), network.evaluate(rows), atol=1e-5)
    assert all(np.array_equal(a, b) for a, b in zip(scorer.export(), network, strict=True))


def test_a_curriculum_draws_heavy_loads_on_small_clusters_and_longer_episodes_later() -> None:
    curriculum, random = Curriculum(), Random(0)
    first = curriculum(random)
    assert len(first.arrivals) <= 34
    for _ in range(20):
        episode = curriculum(random)
        devices = len(all_devices(episode.nodes))
        work = sum(each.duration_s * each.job.gpus for each in episode.arrivals)
        lasts = max(each.job.submitted for each in episode.arrivals)
        if lasts:
            assert LOADS[0] * 0.99 <= work / devices / lasts <= LOADS[1] * 1.01
        assert max(each.job.gpus for each in episode.arrivals) <= devices


def test_windows_of_a_trace_join_the_curriculum(tmp_path: Path) -> None:
    rows = "\n".join(f"{number},{60 * number},{1 + number % 2},{100 + number}" for number in range(200))
    trace = tmp_path / "jobs.csv"
    trace.write_text(f"job_id,submit_time,num_gpus,duration\n{rows}\n")
    episode = Curriculum((), ("1x4",), (trace,))(Random(1))
    assert episode.name == "jobs"
    assert min(each.job.submitted for each in episode.arrivals) == 0.0


def test_train_and_evaluate_as_commands(
    tmp_path: Path, short: None, capsys: pytest.CaptureFixture[str], run_command: Callable[..., str]
) -> None:
    file = tmp_path / "weights.npz"
    found = json.loads(run_command("rl", "train", "--steps", "64", "--output", str(file), "--json"))
    assert found["file"] == str(file)
    assert [point["step"] for point in found["curves"]["1"]] == [64]
    told = json.loads(run_command("rl", "evaluate", "--weights", str(file), "--episodes", "2", "--json"))
    assert len(told["workloads"]) == 2
    assert set(told["workloads"][0]["turnaround_s"]) >= {"fifo", "tiresias", "rl"}
    table = run_command("rl", "evaluate", "--episodes", "1", "--cluster", "1x4")
    assert "lowest turnaround" in table


@pytest.fixture
def run_command(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command line in this process and return its output."""
    from gpu_flows.cli import app

    def run(*arguments: str) -> str:
        app(list(arguments), standalone_mode=False)
        return capsys.readouterr().out

    return run


def test_mistakes_on_the_command_line_are_explained(run_command: Callable[..., str]) -> None:
    from gpu_flows.cli.errors import BadInput

    with pytest.raises(BadInput, match="There is no reward 'speed'"):
        run_command("rl", "train", "--reward", "speed")
    with pytest.raises(BadInput, match="There is no workload 'nothing'"):
        run_command("rl", "evaluate", "--workload", "nothing")
    with pytest.raises(BadInput, match="not a list of whole numbers"):
        run_command("rl", "train", "--seeds", "one")


def test_episodes_have_jobs_that_fit(tmp_path: Path) -> None:
    """Also those of a trace with wide jobs and with wishes that no device of the training fulfils."""
    trace = tmp_path / "wide.csv"
    rows = [f"{number},{60 * number},8,600,H200" for number in range(50)]
    trace.write_text("\n".join(["job_id,submit_time,num_gpus,duration,gpu_model", *rows]))
    curriculum = Curriculum(workloads=(), clusters=("1x4", "2x4"), traces=(trace,))
    for seed in range(5):
        episode = curriculum(Random(seed))
        assert len(all_devices(episode.nodes)) == 8
        assert all(not each.job.models for each in episode.arrivals)
    with pytest.raises(ValueError, match="has the 8 GPUs that each job of wide needs"):
        Curriculum(workloads=(), clusters=("1x4",), traces=(trace,))(Random(0))
    trace = tmp_path / "short.csv"
    trace.write_text("job_id,submit_time,num_gpus,duration\n1,0,1,0.5\n")
    with pytest.raises(ValueError, match=r"No job of short\.csv"):
        Curriculum(workloads=(), traces=(trace,))(Random(0))
