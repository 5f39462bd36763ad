"""The training step of the `train` flow, for predictions of its memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpu_flows.checkpoints.process_group import ProcessGroup
from gpu_flows.training.config import TrainConfig
from gpu_flows.training.hardware import Hardware
from gpu_flows.training.loop import Training


def make_step(
    batch: int | None = None, precision: str | None = None, **parameters: Any
) -> Callable[[], None]:
    """Return one step of a training with these parameters (those of TrainConfig), on one device.

    `batch` and `precision` are accepted in the short form of `gpu-flows predict memory` too.
    """
    if batch is not None:
        parameters["batch_size"] = batch
    if precision is not None:
        parameters["precision"] = _PRECISIONS.get(precision, precision)
    known = {name: value for name, value in parameters.items() if name in TrainConfig.model_fields}
    training = Training(TrainConfig(**known), Hardware(torch.device("cuda"), ProcessGroup(), "traced"))
    training.start(0.0)
    return lambda: training.step(lambda: 0.0, lambda seconds: None)


_PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
