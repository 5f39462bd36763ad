"""The Adam optimizer, without torch.optim.

The first use of any torch.optim optimizer imports torch's compiler, which a training in one process does not
need otherwise. `benchmarks/adam.py` compares both (torch 2.13, one CPU thread, default sizes, medians of CPU
time, variants alternating):

- Start of a process up to the first optimizer step: 1.30 s and 238 MiB with this class, 2.47 to 2.57 s and
  302 to 303 MiB with torch's for-loop, foreach and fused variants and fused AdamW.
- A training step with torch's fused variant takes 0.92 (mlp) to 1.00 (cnn, lstm) of the time it takes with
  this class; with the other two variants of Adam 1.02 to 1.24.
- A training with fused Adam makes up for its start after 7,000 steps (transformer) to 44,000 steps (mlp),
  or never (cnn, lstm). At the default 160 steps a whole training costs 0.53 to 0.74 of the CPU time with
  this class.
- All of them resume bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


class Adam:
    """Kingma and Ba (2015): steps are scaled by running means of each gradient and of its square."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        learning_rate: float,
        decay: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        self.parameters = list(parameters)
        self.learning_rate = learning_rate
        self.decay = decay
        self.epsilon = epsilon
        self.steps = 0
        self.means = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in self.parameters]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameters, in the form in which torch's gradient scaler expects them."""
        return [{"params": self.parameters}]

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        self.steps += 1
        mean_decay, square_decay = self.decay
        # Both means start at zero. Dividing by these weights removes that bias.
        mean_weight = 1 - mean_decay**self.steps
        square_weight = 1 - square_decay**self.steps
        with torch.no_grad():
            for parameter, mean, square in zip(self.parameters, self.means, self.squares, strict=True):
                if parameter.grad is None:
                    continue
                mean.lerp_(parameter.grad, 1 - mean_decay)
                square.lerp_(parameter.grad.square(), 1 - square_decay)
                scale = (square / square_weight).sqrt_().add_(self.epsilon)
                parameter.addcdiv_(mean, scale, value=-self.learning_rate / mean_weight)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "means": self.means, "squares": self.squares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        for current, stored in ((self.means, state["means"]), (self.squares, state["squares"])):
            for tensor, value in zip(current, stored, strict=True):
                tensor.copy_(value)
