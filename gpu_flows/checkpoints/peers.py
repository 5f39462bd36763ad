"""The processes that train together, as torch.distributed knows them. Often it is only this one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class Peers:
    """Answers that all processes of a training have in common.

    Each method must be called by all of them, at the same place of their loops.
    """

    def __init__(self) -> None:
        import torch.distributed as distributed

        together = distributed.is_available() and distributed.is_initialized()
        self.rank = distributed.get_rank() if together else 0
        self.size = distributed.get_world_size() if together else 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sums(self, *numbers: float) -> list[float]:
        """Each number, added up over all processes."""
        if self.size == 1:
            return list(numbers)
        import torch
        import torch.distributed as distributed

        added = torch.tensor(numbers, dtype=torch.float64, device=self._device())
        distributed.all_reduce(added)
        return [float(number) for number in added.tolist()]

    def any_of(self, *wishes: bool) -> list[bool]:
        """Each wish, granted to all when one process has it."""
        return [total > 0 for total in self.sums(*map(float, wishes))]

    def from_first(self, content: bytes) -> bytes:
        """What the first process has, in all of them."""
        (length,) = self.sums(float(len(content)) if self.is_first else 0.0)
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

    def to_first(self, mine: Any) -> list[Any]:
        """What each process has, by rank; empty in all but the first."""
        if self.size == 1:
            return [mine]
        import torch.distributed as distributed

        theirs: list[Any] | None = [None] * self.size if self.is_first else None
        distributed.gather_object(mine, theirs, dst=0)
        return theirs or []

    @staticmethod
    def _device() -> torch.device:
        """NCCL carries nothing but what lies on a GPU."""
        import torch
        import torch.distributed as distributed

        return torch.device("cuda" if distributed.get_backend() == "nccl" else "cpu")


def processes_started() -> int:
    """How many processes torchrun (or a launcher like it) says there are, whether or not they have met."""
    size = os.environ.get("WORLD_SIZE", "")
    return int(size) if size.isdigit() else 1
