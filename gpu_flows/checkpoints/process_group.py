"""The processes of one training, as torch.distributed knows them. Most trainings have only one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class ProcessGroup:
    """Collective operations that also work in a training of one process.

    All processes must call each method, at the same place of their loops.
    """

    def __init__(self) -> None:
        import torch.distributed as distributed

        initialized = distributed.is_available() and distributed.is_initialized()
        self.rank = distributed.get_rank() if initialized else 0
        self.size = distributed.get_world_size() if initialized else 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, *numbers: float) -> list[float]:
        """Return each number, summed over all processes."""
        if self.size == 1:
            return list(numbers)
        import torch
        import torch.distributed as distributed

        totals = torch.tensor(numbers, dtype=torch.float64, device=self._device())
        distributed.all_reduce(totals)
        return [float(total) for total in totals.tolist()]

    def any(self, *flags: bool) -> list[bool]:
        """Return, for each flag, whether it is set in at least one process."""
        return [total > 0 for total in self.sum(*map(float, flags))]

    def broadcast(self, content: bytes) -> bytes:
        """Return the content of the first process in all of them."""
        (length,) = self.sum(float(len(content)) if self.is_first else 0.0)
        if self.size == 1 or not length:
            return content if self.is_first else b""
        import torch
        import torch.distributed as distributed

        if self.is_first:
            shared = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(self._device())
        else:
            shared = torch.empty(int(length), dtype=torch.uint8, device=self._device())
        distributed.broadcast(shared, src=0)
        return shared.cpu().numpy().tobytes()

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes by rank in the first process, an empty list in the others."""
        if self.size == 1:
            return [value]
        import torch.distributed as distributed

        values: list[Any] | None = [None] * self.size if self.is_first else None
        distributed.gather_object(value, values, dst=0)
        return values or []

    @staticmethod
    def _device() -> torch.device:
        """Return where tensors must be for the backend: NCCL transfers only tensors on a GPU."""
        import torch
        import torch.distributed as distributed

        return torch.device("cuda" if distributed.get_backend() == "nccl" else "cpu")


def count_launched_processes() -> int:
    """Return how many processes torchrun has launched, whether or not their group is initialized."""
    size = os.environ.get("WORLD_SIZE", "")
    return int(size) if size.isdigit() else 1
