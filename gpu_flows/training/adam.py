"""The Adam optimizer, without torch.optim.

The first use of any torch.optim optimizer imports torch's compiler: about as long again as importing
torch, in every job, for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


class Adam:
    """Kingma and Ba, 2015: steps scaled by running means of each gradient and of its square."""

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
        """Where torch's gradient scaler looks for the gradients."""
        return [{"params": self.parameters}]

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        self.steps += 1
        mean_decay, square_decay = self.decay
        # Both means start at zero; dividing by these takes that bias out again.
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
        for mine, stored in ((self.means, state["means"]), (self.squares, state["squares"])):
            for tensor, value in zip(mine, stored, strict=True):
                tensor.copy_(value)
