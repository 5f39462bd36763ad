"""What a training asks of a GPU's memory, in order, and what it needs on a GPU model.

A trace is recorded once (`gpu_flows.prediction.tracing`) and can be replayed for any GPU model: the sizes of
tensors do not depend on the GPU, but those of library workspaces, of the CUDA context and of the device do.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_flows.schedulers.prediction.caching_allocator import MIB, Block, CachingAllocator, OutOfMemory
from gpu_flows.schedulers.prediction.estimate import Estimate
from gpu_flows.schedulers.prediction.gpu_models import GpuModel

# Code of kernels that the driver loads on their first use, beside the context (measured: 30 to 36 MiB).
LOADED_KERNELS_MIB = 34
# What torch gives cuBLAS for a product with a bias, for as long as it runs.
LINEAR_WORKSPACE = MIB
PARTS = ("weights", "gradients", "optimizer", "activations", "workspace", "fragmentation", "context")


class Allocate(NamedTuple):
    storage: int
    size: int


class Free(NamedTuple):
    storage: int


class MatrixProduct(NamedTuple):
    """A product of matrices. torch keeps a workspace for cuBLAS in each of its threads, and backward passes
    have their own thread."""

    backward: bool
    with_bias: bool


Event = Allocate | Free | MatrixProduct


@dataclass(slots=True)
class MemoryTrace:
    """The requests of a training's first steps."""

    events: list[Event] = field(default_factory=list)
    # What a storage holds: weights, gradients or optimizer (its state). All others are activations: outputs
    # of layers, batches, and temporaries.
    holds: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """The peak of a training on one GPU model."""

    parts_mib: dict[str, float]  # of PARTS, at the moment when the most memory is in use
    fits: bool  # on the device that was asked about

    @property
    def total_mib(self) -> float:
        """What the device's driver shows for the process."""
        return sum(self.parts_mib.values())

    @property
    def torch_mib(self) -> float:
        """What torch's allocator reserves, which is what `torch.cuda.max_memory_reserved` shows."""
        return self.total_mib - self.parts_mib["context"]


# How much more than the value a training may need, as a share of torch's memory: what at most one of a
# hundred measured runs exceeded (benchmarks/memory_xmem.py). cuDNN chooses some algorithms by rules that
# are not public, and batches whose sizes vary leave more gaps than equal ones.
MARGIN = 0.14
# How much larger than typical a context may be: drivers differ by some 50 MiB.
CONTEXT_MARGIN_MIB = 64


def estimate_memory(need: MemoryNeed) -> Estimate:
    """Return the need as an estimate with its upper bound, in MiB on the device."""
    largest = ", ".join(
        f"{part} {mib:,.0f}"
        for part, mib in sorted(need.parts_mib.items(), key=lambda item: -item[1])
        if mib >= 1
    )
    margin = MARGIN * need.torch_mib + CONTEXT_MARGIN_MIB
    return Estimate(need.total_mib, need.total_mib + margin, "traced", f"MiB: {largest}")


def replay(trace: MemoryTrace, gpu: GpuModel, available_mib: float | None = None) -> MemoryNeed:
    """Return what the training needs on this GPU model.

    torch gives cached memory back when the device is full, so a training can need less on a smaller device.
    If it does not fit at all, the answer is what it would need on a large one.
    """
    outside = gpu.context_mib + LOADED_KERNELS_MIB
    available = gpu.memory_mib if available_mib is None else available_mib
    roomy = _Replay(trace, gpu, CachingAllocator())
    if roomy.need.total_mib <= available:
        return roomy.need
    try:
        return _Replay(trace, gpu, CachingAllocator(capacity=(available - outside) * MIB)).need
    except OutOfMemory:
        return MemoryNeed(roomy.need.parts_mib, fits=False)


class _Replay:
    """One run of a trace's requests through the allocator."""

    def __init__(self, trace: MemoryTrace, gpu: GpuModel, allocator: CachingAllocator) -> None:
        self.trace = trace
        self.gpu = gpu
        self.allocator = allocator
        self.blocks: dict[int, Block] = {}
        self.used: Counter[str] = Counter()  # bytes by part, without rests of blocks
        self.at_peak: Counter[str] = Counter()
        self.threads_with_workspace: set[bool] = set()
        for event in trace.events:
            self._apply(event)
        context = gpu.context_mib + LOADED_KERNELS_MIB
        # What is reserved and not in use at that moment: the gaps that cached blocks leave.
        self.at_peak["fragmentation"] = allocator.peak_reserved - allocator.peak_allocated
        parts = {part: self.at_peak[part] / MIB for part in PARTS} | {"context": context}
        self.need = MemoryNeed(parts, fits=True)

    def _apply(self, event: Event) -> None:
        match event:
            case Allocate(storage, size):
                self.blocks[storage] = self._allocate(size, self.trace.holds.get(storage, "activations"))
            case Free(storage):
                self._free(self.blocks.pop(storage), self.trace.holds.get(storage, "activations"))
            case MatrixProduct(backward, with_bias):
                if backward not in self.threads_with_workspace:
                    self.threads_with_workspace.add(backward)
                    self._allocate(self.gpu.cublas_workspace_bytes, "workspace")
                if with_bias:
                    self._free(self._allocate(LINEAR_WORKSPACE, "workspace"), "workspace")

    def _allocate(self, size: int, part: str) -> Block:
        peak = self.allocator.peak_allocated
        block = self.allocator.allocate(size)
        self.used[part] += block.size
        if self.allocator.peak_allocated > peak:
            self.at_peak = self.used.copy()
        return block

    def _free(self, block: Block, part: str) -> None:
        self.used[part] -= block.size
        self.allocator.free(block)
