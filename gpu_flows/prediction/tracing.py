"""Tracing: what a training's first steps ask of a GPU's memory, without a GPU.

The steps run with fake tensors, which have a shape and a place but no contents, so nothing is computed and
nothing is allocated. Every new storage on the fake GPU is booked, and so is its end.

What only the CUDA code of an operation does cannot be seen from its inputs and outputs. Some of it matters
for memory and is booked here: contiguous copies of inputs, and the use of cuBLAS. Workspaces of cuDNN are
not booked: its choice of algorithms is not public, and on measured runs to assume none fits best
(benchmarks/memory_xmem.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
import torch._prims_common
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from gpu_flows.prediction.fake_gpu import FAKE_GPU, FakeGpu
from gpu_flows.prediction.step import TrainingStep
from gpu_flows.prediction.trace_process import STEPS
from gpu_flows.schedulers.prediction.memory_trace import Allocate, Free, MatrixProduct, MemoryTrace

aten = torch.ops.aten

# Up to this size, tensors on the host are real.
FEW_NUMBERS = 1024


def trace_training(make: Callable[[], TrainingStep], steps: int = STEPS) -> MemoryTrace:
    """Make a training and run its first steps on a fake GPU."""
    gpu = FakeGpu()
    booking = Booking(gpu)
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake_mode.allow_meta = True
    with gpu, fake_mode, booking:
        training = make()
        booking.note_step(training)
        for _ in range(steps):
            training.run()
            booking.note_step(training)
        # What is freed when the training ends is not part of it.
        return MemoryTrace(list(booking.trace.events), booking.trace.holds)


class Booking(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Books every storage on the fake GPU while it is active."""

    def __init__(self, gpu: FakeGpu) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._gpu = gpu
        self.trace = MemoryTrace()
        self._numbers = count()
        # Address of a storage -> its number, and the reference that tells its end.
        self._live: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._sum: _Sum | None = None  # the latest sum of two gradients

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return args[0].fake_device
        outer, self._gpu.is_torch_asking = self._gpu.is_torch_asking, True
        try:
            return self._run(func, args, kwargs or {})
        finally:
            self._gpu.is_torch_asking = outer

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if _can_run(func, args, kwargs):
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if func is aten._local_scalar_dense.default:
            return _stand_in(args[0].dtype)
        self._finish_sum()
        name = func._schema.name
        if name.startswith("aten::_foreach_"):
            return self._run_foreach(name, func, args, kwargs)
        copies = [self._book_size(size) for size in _find_copies(name, args)]
        if (out := _run_quickly(name, args, kwargs)) is None:
            out = func(*args, **kwargs)
        if name == "aten::add" and len(args) > 1 and self._begin_sum(args[0], args[1], out):
            return out
        if name in _MATRIX_PRODUCTS and any(map(_is_on_gpu, _find_tensors((out,)))):
            self.trace.events.append(MatrixProduct(_in_backward(), name == "aten::addmm"))
        for made in _find_tensors((out,)):
            self._book(made)
        self.trace.events.extend(Free(number) for number in copies)
        return out

    def _run_foreach(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation over many tensors. Those that optimizers use keep the shapes of their first list,
        and to run them one by one would take most of a trace's time."""
        if name.endswith("_"):
            return None
        if name == "aten::_foreach_norm":
            out = func(*args, **kwargs)
        else:
            out = [_make_alike(tensor, {}) for tensor in args[0]]
        for tensor in out:
            self._book(tensor)
        return out

    # -- sums of gradients ------------------------------------------------------------------------

    def _begin_sum(self, first: Any, second: Any, out: Any) -> bool:
        """Whether the operation may add a gradient to another one in place.

        Where a tensor was used twice, torch adds its gradients, in place if nothing else refers to the first
        one. With fake tensors it never does it in place. The difference shows right after the operation: if
        the first gradient is gone by then, its memory goes on as the sum's.
        """
        if not (_in_backward() and isinstance(second, Tensor) and first.shape == second.shape == out.shape):
            return False
        storage = first.untyped_storage()
        found = self._live.get(storage._cdata)
        if found is None or storage.nbytes() != out.untyped_storage().nbytes() or first.dtype != out.dtype:
            return False
        self._sum = _Sum(found[0], out.untyped_storage())
        return True

    def _finish_sum(self) -> None:
        """Book the latest sum as what it turned out to be."""
        if (found := self._sum) is None:
            return
        self._sum = None
        if found.first_is_gone:
            self._follow(found.storage, found.number)
        else:
            self._follow(found.storage, self._book_size(found.storage.nbytes()))

    def note_step(self, training: TrainingStep) -> None:
        """Note what the storages hold that are there between two steps."""
        self._finish_sum()
        for holds, tensors in training.find_tensors().items():
            for tensor in tensors:
                if (number := self._find_number(tensor)) is not None:
                    self.trace.holds.setdefault(number, holds)

    # -- booking ----------------------------------------------------------------------------------

    def _book(self, tensor: Tensor) -> None:
        """Book the tensor's storage if it is new."""
        if not _is_on_gpu(tensor):
            return
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        if not size or storage._cdata in self._live:
            return
        self._follow(storage, self._book_size(size))

    def _follow(self, storage: torch.UntypedStorage, number: int) -> None:
        """Book the end of this storage when it comes."""
        address = storage._cdata

        def end(_: Any) -> None:
            del self._live[address]
            if self._sum is not None and self._sum.number == number:
                self._sum.first_is_gone = True
            else:
                self.trace.events.append(Free(number))

        self._live[address] = number, weakref.ref(storage, end)

    def _book_size(self, size: int) -> int:
        number = next(self._numbers)
        self.trace.events.append(Allocate(number, size))
        return number

    def _find_number(self, tensor: Tensor) -> int | None:
        found = self._live.get(tensor.untyped_storage()._cdata)
        return found[0] if found else None


@dataclass(slots=True)
class _Sum:
    number: int  # of the first gradient's storage
    storage: torch.UntypedStorage  # of the sum
    first_is_gone: bool = False


def _is_on_gpu(value: Any) -> bool:
    return isinstance(value, FakeTensor) and value.fake_device == FAKE_GPU


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


_MATRIX_PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}

# Operations whose CUDA code works on contiguous inputs, and the positions of these inputs.
_NEED_CONTIGUOUS = {
    "aten::native_layer_norm": (0,),
    "aten::native_layer_norm_backward": (0, 1),
    "aten::native_group_norm": (0,),
    "aten::native_group_norm_backward": (0, 1),
    "aten::_softmax": (0,),
    "aten::_log_softmax": (0,),
    "aten::_softmax_backward_data": (0, 1),
    "aten::_log_softmax_backward_data": (0, 1),
    "aten::embedding_dense_backward": (0,),
}
# The same for operations that take the layout "channels last" too, if their first tensor has it.
_NEED_SAME_LAYOUT = {
    "aten::convolution": (0, 1),
    "aten::convolution_backward": (1, 0, 2),
    "aten::native_batch_norm": (0,),
    "aten::native_batch_norm_backward": (1, 0),
    "aten::max_pool2d_with_indices": (0,),
    "aten::max_pool2d_with_indices_backward": (1, 0),
}


def _find_copies(name: str, args: Any) -> Iterator[int]:
    """Yield the sizes of the contiguous copies that the CUDA code of this operation makes."""
    if positions := _NEED_CONTIGUOUS.get(name):
        layout = torch.contiguous_format
    elif positions := _NEED_SAME_LAYOUT.get(name):
        layout = torch.channels_last if _is_channels_last(args[positions[0]]) else torch.contiguous_format
    else:
        return
    for position in positions:
        tensor = args[position]
        if _is_on_gpu(tensor) and not tensor.is_contiguous(memory_format=_for_rank(layout, tensor)):
            yield tensor.numel() * tensor.element_size()


def _for_rank(layout: torch.memory_format, tensor: Tensor) -> torch.memory_format:
    return layout if tensor.dim() == 4 else torch.contiguous_format


def _run_quickly(name: str, args: Any, kwargs: Any) -> Any:
    """Return the result of some operations that models have by the hundred and for which torch computes the
    shapes slowly; None for all others."""
    match name, args:
        case (("aten::_to_copy" | "aten::zeros_like" | "aten::empty_like"), (tensor,)):
            if kwargs.get("memory_format") in (None, torch.preserve_format):
                return _make_alike(tensor, kwargs)
        case "aten::native_batch_norm", (inputs, Tensor() as weight, _, _, _, True, *_):
            return _make_alike(inputs, {}), _make_alike(weight, {}), _make_alike(weight, {})
        case "aten::native_batch_norm_backward", (_, inputs, Tensor() as weight, *_, (True, True, True)):
            return _make_alike(inputs, {}), _make_alike(weight, {}), _make_alike(weight, {})
    return None


def _make_alike(tensor: Tensor, settings: Any) -> Any:
    """Make a tensor of the same shape, possibly of another type or on another device."""
    is_dense = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    strides = tensor.stride() if is_dense else torch._prims_common.make_contiguous_strides_for(tensor.shape)
    return aten.empty_strided.default(
        tensor.shape,
        strides,
        dtype=settings.get("dtype") or tensor.dtype,
        device=settings.get("device") or tensor.device,
    )


def _is_channels_last(tensor: Tensor) -> bool:
    return (
        tensor.dim() == 4
        and tensor.is_contiguous(memory_format=torch.channels_last)
        and not tensor.is_contiguous()
    )


def _can_run(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operation is one on few numbers on the host, which can run for real: sizes that a network
    computes, an optimizer's step count, a random number. The program may then ask for their values."""
    device = kwargs.get("device")
    if device is not None and device.type != "cpu":
        return False
    tensors = list(_find_tensors((args, tuple(kwargs.values()))))
    if not tensors:  # it makes a tensor from nothing: a fake one tells the size
        tensors = [
            tensor for tensor in _find_tensors((func(*args, **kwargs),)) if tensor.device.type == "cpu"
        ]
        return bool(tensors) and all(tensor.numel() <= FEW_NUMBERS for tensor in tensors)
    return all(not isinstance(tensor, FakeTensor) and tensor.numel() <= FEW_NUMBERS for tensor in tensors)


def _stand_in(dtype: torch.dtype) -> float | bool:
    """The value of a single number that was not computed, such as a loss that the program wants to log."""
    return True if dtype == torch.bool else 1.0 if dtype.is_floating_point else 1


def _find_tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _find_tensors(value)
