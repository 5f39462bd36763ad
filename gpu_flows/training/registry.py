"""What can be trained, by name: a model with its data is one decorated function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import getdoc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Recipe:
    """A network, the examples it learns from, and what counts as wrong (the mean over a batch)."""

    network: nn.Module
    inputs: Tensor
    targets: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]


Builder = Callable[[int, int], Recipe]  # (size, samples) -> Recipe

_builders: dict[str, Builder] = {}


def register(name: str) -> Callable[[Builder], Builder]:
    """Offer a model under this name. The function's docstring is what users read about it.

    The function is called with a size (width of the network) and a number of samples, after torch
    was seeded: it may draw from torch's default generator. It imports torch itself, in its body.
    """

    def remember(builder: Builder) -> Builder:
        if not getdoc(builder):
            raise ValueError(f"model {name!r} has no docstring, and users read it. Say what it learns.")
        if name in _builders:
            raise ValueError(f"model {name!r} is registered twice. Give one of them another name.")
        _builders[name] = builder
        return builder

    return remember


def names() -> list[str]:
    """Every registered name, in the order of registration."""
    return list(_builders)


def builder(name: str) -> Builder:
    """The function behind a name; a ValueError that lists the names when there is none."""
    if name not in _builders:
        raise ValueError(f"no model is called {name!r}. Choose one of: {', '.join(names())}.")
    return _builders[name]


def describe(name: str) -> str:
    """What a model learns, in one line."""
    return (getdoc(builder(name)) or "").splitlines()[0]
