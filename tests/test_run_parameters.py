"""The parameters of a run as predictors read them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_flows.schedulers.prediction.run_parameters import flatten, shorten


@pytest.mark.parametrize(
    ("parameters", "flat"),
    [
        ({"config": {"optimizer": {"lr": 0.1}, "batch": 8}}, {"batch": 8, "lr": 0.1}),
        ({"batch": 8, "config": {"batch": 4}}, {"batch": 8, "config.batch": 4}),
        ({"b": {"width": 1}, "a": {"width": 2}}, {"width": 2, "b.width": 1}),
        ({"layers": [{"width": 2}, {"width": 3}]}, {"width": 2, "layers.1.width": 3}),
        ({"sizes": [2, 3]}, {"sizes": [2, 3]}),
        (
            {"command": "torchrun --multi-gpu train.py --batch-size=8 model=vit --note 'a b' --fp16"},
            {
                "command": "torchrun --multi-gpu train.py --fp16",
                "batch_size": 8,
                "model": "vit",
                "note": "a b",
            },
        ),
        ({"command": "python -m evaluate --epochs 3"}, {"command": "python -m evaluate", "epochs": 3}),
    ],
)
def test_parameters_are_found_by_name_wherever_they_are(
    parameters: dict[str, Any], flat: dict[str, Any]
) -> None:
    assert flatten(parameters) == flat
    assert flatten(flat) == flat


@pytest.mark.parametrize(
    "parameters",
    [
        {"hf_token": "hidden"},
        {"config": {"wandbApiKey": "hidden", "DB_PASSWORD": "hidden"}},
        {"credentials": {"user": "hidden"}},
        {"callbacks": [{"secret": "hidden"}]},
        {"command": "HF_TOKEN=hidden train --api-key hidden --password='hidden hidden'"},
        {"command": f"train {'--a b ' * 400} --token hidden"},
    ],
)
def test_secrets_are_left_out(parameters: dict[str, Any]) -> None:
    assert "hidden" not in json.dumps(shorten(parameters | {"max_tokens": 5}))
    assert shorten(parameters | {"max_tokens": 5})["max_tokens"] == 5


def test_many_and_long_parameters_are_limited_and_stay_different() -> None:
    def make(end: str) -> dict[str, Any]:
        return {"long": "x" * 100_000 + end} | {f"p{number}": end for number in range(10_000)}

    short = shorten(make("a"))
    assert len(json.dumps(short)) < 25_000
    assert short == shorten(make("a")) == flatten(short)
    assert all(short[name] != shorten(make("b"))[name] for name in ("long", "others"))
