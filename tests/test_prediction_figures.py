"""Figures that must not change unnoticed: traced memory of small networks, and what packing by memory gains.

The benchmarks measure the same at length (benchmarks/memory_xmem.py, benchmarks/schedtune.py). If a change is
meant to move a figure here, run them, and update docs/prediction.md and docs/schedtune.md too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from gpu_flows.prediction.step import make_step  # noqa: E402
from gpu_flows.prediction.tracing import trace_training  # noqa: E402
from gpu_flows.schedulers.prediction.gpu_models import find_gpu_model  # noqa: E402
from gpu_flows.schedulers.prediction.memory_trace import estimate_memory, replay  # noqa: E402

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def convolutions() -> Any:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 100))
    images = torch.randn(64, 3, 96, 96, device="cuda")
    labels = torch.zeros(64, dtype=torch.long, device="cuda")
    return model, lambda: nn.functional.cross_entropy(model(images), labels)


def attention() -> Any:
    layer = nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.Embedding(8000, 256), nn.TransformerEncoder(layer, 4), nn.Linear(256, 8000))
    words = torch.zeros(16, 128, dtype=torch.long, device="cuda")
    return model, lambda: model(words).float().logsumexp(dim=-1).mean()


def perceptron() -> Any:
    sizes = (1024, 4096, 4096, 10)
    layers = [nn.Sequential(nn.Linear(a, b), nn.GELU()) for a, b in pairwise(sizes)]
    model = nn.Sequential(*layers)
    return model, lambda: model(torch.randn(2048, 1024, device="cuda")).square().mean()


@pytest.mark.parametrize(
    ("network", "optimizer", "precision", "value_mib", "upper_mib"),
    [
        (convolutions, "SGD", "fp32", 1069, 1219.8),
        (attention, "AdamW", "bf16", 923, 1053.4),
        (perceptron, "Adam", "fp32", 987, 1126.3),
    ],
)
def test_the_traced_memory_of_small_networks(
    network: Callable[[], Any], optimizer: str, precision: str, value_mib: float, upper_mib: float
) -> None:
    options = {"optimizer": optimizer, "precision": precision}
    need = replay(trace_training(lambda: make_step(network, options, ())), find_gpu_model("A100"))
    found = estimate_memory(need)
    assert (found.value, found.upper) == (pytest.approx(value_mib, abs=2), pytest.approx(upper_mib, abs=3))


def test_packing_by_predicted_memory_gains_and_nothing_runs_out_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    study, workloads = import_module("schedtune"), import_module("schedtune_workloads")
    defaults = argparse.Namespace(error=(0.02, 0.06), worst=0.149, margin=0.1, most_slowdown=2.5)
    jobs = workloads.generate(Random(100), load=2.0, jobs=600)
    whole, packed, naive = (
        study.run(jobs, scheduler, 100, defaults)
        for scheduler in (study.KUBERNETES, study.PREDICTED, study.NAIVE)
    )
    assert packed.makespan_s == pytest.approx(0.858 * whole.makespan_s, rel=0.03)
    assert packed.memory_use == pytest.approx(1.87 * whole.memory_use, rel=0.05)
    assert packed.ooms == 0 < naive.ooms
    assert packed.unfinished == packed.impossible == 0
