"""The states of the random number generators, as plain values and tensors that load safely."""

from __future__ import annotations

import random
import sys
from typing import Any


def get_random_state() -> dict[str, Any]:
    """Return the state of Python's and torch's generators, and of numpy's and CUDA's if they are in use."""
    import torch

    version, numbers, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": {"version": version, "numbers": torch.tensor(numbers), "gauss": gauss},
        "torch": torch.get_rng_state(),
    }
    if numpy := sys.modules.get("numpy"):
        kind, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = {
            "kind": kind,
            "keys": torch.from_numpy(keys.astype("int64")),
            "rest": [int(position), int(has_gauss), float(cached)],
        }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore_random_state(states: list[dict[str, Any]], rank: int) -> None:
    """Restore the state of the process with this rank. A process that did not exist before takes the first
    one's state and derives its own seed from it."""
    _set_random_state(states[rank] if rank < len(states) else states[0])
    if rank >= len(states):
        _reseed(rank)


def _set_random_state(state: dict[str, Any]) -> None:
    import torch

    python = state["python"]
    random.setstate((python["version"], tuple(python["numbers"].tolist()), python["gauss"]))
    torch.set_rng_state(state["torch"])
    if "numpy" in state and (numpy := sys.modules.get("numpy")):
        stored = state["numpy"]
        numpy.random.set_state((stored["kind"], stored["keys"].numpy().astype("uint32"), *stored["rest"]))
    if torch.cuda.is_available():
        for device, generator in enumerate(state.get("cuda", [])[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(generator, device)


def _reseed(rank: int) -> None:
    import torch

    seed = int(torch.randint(2**31, ())) + rank
    random.seed(seed)
    torch.manual_seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
