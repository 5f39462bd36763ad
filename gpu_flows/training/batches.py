"""Which samples a step learns from.

The order depends on the seed and the epoch alone, and the place in it is counted in samples. So a training
that goes on with another number of processes sees the samples it would have seen.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


class Batches:
    """All samples once per epoch, in an order that is new each time."""

    def __init__(self, samples: int, epochs: int, seed: int) -> None:
        self.samples = samples
        self.epochs = epochs
        self.seed = seed
        self.epoch = 1  # of the latest batch
        self.taken = 0  # of this epoch
        self._order = self._shuffled()

    def next(self, size: int) -> Tensor:
        """The numbers of the next samples; fewer than asked for at the end of an epoch."""
        if self.taken >= self.samples:
            self.epoch, self.taken = self.epoch + 1, 0
            self._order = self._shuffled()
        batch = self._order[self.taken : self.taken + size]
        self.taken += len(batch)
        return batch

    def left(self, size: int) -> int:
        """How many batches of this size are left, over all epochs."""
        whole_epochs = (self.epochs - self.epoch) * math.ceil(self.samples / size)
        return whole_epochs + math.ceil((self.samples - self.taken) / size)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "taken": self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.taken = state["epoch"], state["taken"]
        self._order = self._shuffled()

    def _shuffled(self) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        return torch.randperm(self.samples, generator=generator)
