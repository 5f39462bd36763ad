"""A GPU without memory and arithmetic, for tracing: programs see CUDA, and CUDA's choices are made.

Tensors on the fake GPU have the device "meta", since torch without CUDA cannot run a backward pass on tensors
that claim to be on "cuda". Here is what makes up for the difference:

- Programs that ask for "cuda" get "meta", and tensors there say they are on "cuda".
- Dropout, attention and mixed precision do what they do on CUDA, which decides what is kept for backward.
- The functions of `torch.cuda` that training programs call answer for one device.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

FAKE_GPU = torch.device("meta")
CUDA = torch.device("cuda", 0)
aten = torch.ops.aten


class FakeGpu(TorchFunctionMode):
    """While it is active, "cuda" is the fake GPU."""

    def __init__(self) -> None:
        super().__init__()
        self._patches = ExitStack()
        self._cast_weights: dict[int, tuple[Tensor, Tensor]] = {}  # of the current autocast region
        self.is_torch_asking = False  # torch itself must see where tensors really are

    def __enter__(self) -> FakeGpu:
        moved: dict[tuple[int, int], tuple[Any, nn.Parameter, nn.Parameter]] = {}
        optimizers = import_module("torch.optim.optimizer")
        read_device: Any = vars(FakeTensor)["device"].fget

        def say_device(tensor: FakeTensor) -> torch.device:
            device: torch.device = read_device(tensor)
            return CUDA if device == FAKE_GPU and not self.is_torch_asking else device

        replacements: list[tuple[Any, str, Any]] = [
            (FakeTensor, "device", property(say_device)),
            # On CUDA, optimizers work on all tensors at once by default.
            (optimizers, "_foreach_supported_types", [Tensor, nn.Parameter, FakeTensor]),
            (nn.Module, "_apply", lambda module, move, recurse=True: _move(module, move, recurse, moved)),
            (torch, "clear_autocast_cache", self._cast_weights.clear),
            # A loss scale only multiplies; which steps it skips depends on values that are not computed.
            (torch.amp.GradScaler, "_maybe_opt_step", lambda *args, **kwargs: args[1].step()),
            *((nn.init, name, _keep) for name in dir(nn.init) if name.endswith("_") and name[0] != "_"),
            # Functions in Python would be called with this mode switched off; those they call must be seen.
            *((nn.functional, name, _never) for name in vars(nn.functional) if name.startswith("has_torch_")),
            *((torch.cuda, name, function) for name, function in _CUDA_FUNCTIONS.items()),
        ]
        for owner, name, replacement in replacements:
            self._patches.enter_context(patch.object(owner, name, replacement))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._patches.close()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__" and func.__self__.__name__ in ("is_cuda", "is_meta"):
            return (args[0].device.type == "cuda") == (func.__self__.__name__ == "is_cuda")
        if "autocast" in name or func is torch.device:  # the word "cuda" itself is meant
            return func(*args, **kwargs)
        args = tuple(map(_replace_device, args))
        if "device" in kwargs:
            kwargs = {**kwargs, "device": _replace_device(kwargs["device"])}
        if name in ("tensor", "as_tensor", "from_numpy") and kwargs.get("device") == FAKE_GPU:
            return func(*args, **{**kwargs, "device": None}).to(FAKE_GPU)
        if torch.is_autocast_enabled("cuda"):
            args, kwargs = self._cast(name, args, kwargs)
        if name in _CHOICES:
            return _CHOICES[name](func, *args, **kwargs)
        return func(*args, **kwargs)

    def _cast(self, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Do what autocast does: cast the inputs of some operations."""
        if name in _LOWERED:
            dtype = torch.get_autocast_dtype("cuda")
        elif name in _RAISED:
            dtype = torch.float32
        else:
            return args, kwargs
        cast = [self._cast_tensor(value, dtype) for value in args]
        return tuple(cast), {key: self._cast_tensor(value, dtype) for key, value in kwargs.items()}

    def _cast_tensor(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(self._cast_tensor(member, dtype) for member in value)
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dtype == dtype:
            return value
        if not (value.is_leaf and value.requires_grad):
            return value.to(dtype)
        if id(value) not in self._cast_weights:  # weights are cast once in a region
            self._cast_weights[id(value)] = value, value.to(dtype)
        return self._cast_weights[id(value)][1]


def _replace_device(value: Any) -> Any:
    if isinstance(value, torch.device):
        return FAKE_GPU if value.type == "cuda" else value
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return FAKE_GPU
    return value


def _move(module: nn.Module, move: Callable[[Tensor], Tensor], recurse: bool, moved: Any) -> nn.Module:
    """`Module._apply` for fake parameters, which torch refuses to swap. Shared parameters stay shared."""
    if recurse:
        for child in module.children():
            child._apply(move)  # type: ignore[no-untyped-call]
    for name, parameter in module._parameters.items():
        if parameter is None:
            continue
        key = id(move), id(parameter)  # `model.cuda()` passes the same function to all modules
        if key not in moved:
            with torch.no_grad():
                there = move(parameter)
            same = there is parameter
            made = parameter if same else nn.Parameter(there, parameter.requires_grad)
            moved[key] = move, parameter, made  # kept, so that no other object gets their ids
        module._parameters[name] = moved[key][2]
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = move(buffer)
    return module


def _keep(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
    return tensor


def _never(*_: Any) -> bool:
    return False


# -- what CUDA does otherwise than "meta" ---------------------------------------------------------


def _dropout(func: Any, input: Tensor, p: float = 0.5, train: bool = True) -> Tensor:
    if not train or not 0 < p < 1:
        return func(input, p, train)  # type: ignore[no-any-return]
    return torch.native_dropout(input, p, True)[0]  # it keeps a mask of one byte per number


def _attention(
    func: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    half = query.dtype in (torch.float16, torch.bfloat16)
    if query.dim() != 4 or query.shape[-1] % (8 if half else 4) or query.shape[-1] != value.shape[-1]:
        return func(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)  # type: ignore[no-any-return]
    if half and attn_mask is None and query.shape[-1] <= 256:
        out = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)
        return out[0]  # type: ignore[no-any-return]
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(attn_mask, float("-inf"))
        attn_mask = attn_mask.expand(*query.shape[:3], key.shape[2])
    train = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    out = aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, train, dropout_p, is_causal, scale=scale
    )
    return out[0]  # type: ignore[no-any-return]


_CHOICES: dict[str, Callable[..., Any]] = {
    "dropout": _dropout,
    "scaled_dot_product_attention": _attention,
    "cuda": lambda func, tensor, *_, **__: tensor.to(FAKE_GPU),
    "pin_memory": lambda func, tensor, *_, **__: tensor,
}

# The operations that autocast runs in 16 bits, and those it runs in 32 bits.
_LOWERED = {
    *(
        "linear",
        "matmul",
        "__matmul__",
        "__rmatmul__",
        "mm",
        "bmm",
        "mv",
        "addmm",
        "addmv",
        "addbmm",
        "baddbmm",
    ),
    *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "prelu"),
    *("scaled_dot_product_attention", "einsum", "chain_matmul", "lstm", "gru", "rnn_tanh", "rnn_relu"),
}
_RAISED = {
    *("softmax", "log_softmax", "layer_norm", "group_norm", "norm", "cdist", "cosine_similarity"),
    *("cross_entropy_loss", "nll_loss", "nll_loss_nd", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
    *("binary_cross_entropy_with_logits", "kl_div", "soft_margin_loss", "triplet_margin_loss"),
    *("exp", "expm1", "log", "log2", "log10", "log1p", "pow", "__pow__", "rsqrt", "reciprocal", "softplus"),
    *("sum", "prod", "cumsum", "cumprod", "renorm", "acos", "asin", "cosh", "sinh", "tan", "erfinv"),
}


def _answer(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


_CUDA_FUNCTIONS: dict[str, Any] = {
    "is_available": _answer(True),
    "is_bf16_supported": _answer(True),
    "is_initialized": _answer(True),
    "device_count": _answer(1),
    "current_device": _answer(0),
    "get_device_name": _answer("fake GPU"),
    "get_device_capability": _answer((8, 0)),
    "set_device": _answer(None),
    "synchronize": _answer(None),
    "empty_cache": _answer(None),
    "manual_seed": _answer(None),
    "manual_seed_all": _answer(None),
    "reset_peak_memory_stats": _answer(None),
    "memory_allocated": _answer(0),
    "memory_reserved": _answer(0),
    "max_memory_allocated": _answer(0),
    "max_memory_reserved": _answer(0),
}
