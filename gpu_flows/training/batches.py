"""The batches of a training: which samples each step learns from.

The order depends only on the seed and the epoch, and the position in it is counted in samples. So a training
that resumes with another number of processes sees the same samples in the same order.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


class Batches:
    """All samples once per epoch, in a new order each time."""

    def __init__(self, samples: int, epochs: int, seed: int) -> None:
        self.samples = samples
        self.epochs = epochs
        self.seed = seed
        self.epoch = 1  # of the latest batch
        self.taken = 0  # samples of this epoch
        self._order = self._shuffle()

    def next(self, size: int) -> Tensor:
        """Return the indices of the next samples. The last batch of an epoch may be smaller than `size`."""
        if self.taken >= self.samples:
            self.epoch, self.taken = self.epoch + 1, 0
            self._order = self._shuffle()
        batch = self._order[self.taken : self.taken + size]
        self.taken += len(batch)
        return batch

    def count_remaining(self, size: int) -> int:
        """Return how many batches of this size remain, over all epochs."""
        whole_epochs = (self.epochs - self.epoch) * math.ceil(self.samples / size)
        return whole_epochs + math.ceil((self.samples - self.taken) / size)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "taken": self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.taken = state["epoch"], state["taken"]
        self._order = self._shuffle()

    def _shuffle(self) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        return torch.randperm(self.samples, generator=generator)
