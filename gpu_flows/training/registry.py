"""What can be trained, and on what, by name: a model with its data, or a dataset, is one decorated function.

A package makes its own known with an entry point of the group `gpu_flows.training` that names the module
they are in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from inspect import getdoc, getsourcefile
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from torch import Tensor, nn

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A network, the examples it learns from, and what counts as wrong (the mean over a batch)."""

    network: nn.Module
    inputs: Tensor
    targets: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]


Builder = Callable[[int, int], Recipe]  # (size, samples) -> Recipe
Maker = Callable[[int], "tuple[Tensor, Tensor]"]  # samples -> (inputs, targets)

F = TypeVar("F", bound=Callable[..., Any])


class Shelf(Generic[F]):
    """Functions of one kind, by name."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._functions: dict[str, F] = {}

    def register(self, name: str) -> Callable[[F], F]:
        """Offer the decorated function under this name. Its docstring is what users read about it."""

        def remember(function: F) -> F:
            if not getdoc(function):
                raise ValueError(
                    f"{self.kind} {name!r} has no docstring, and users read it. Say what it is in a line."
                )
            if name in self._functions:
                raise ValueError(f"{self.kind} {name!r} is registered twice. Give one of them another name.")
            self._functions[name] = function
            return function

        return remember

    def forget(self, name: str) -> None:
        del self._functions[name]

    def names(self) -> list[str]:
        """Every registered name, in the order of registration."""
        return list(self._functions)

    def get(self, name: str) -> F:
        """The function behind a name; a ValueError that lists the names when there is none."""
        if name not in self._functions:
            raise ValueError(f"no {self.kind} is called {name!r}. Choose one of: {', '.join(self.names())}.")
        return self._functions[name]

    def describe(self, name: str) -> str:
        """What it is, in one line."""
        return (getdoc(self.get(name)) or "").splitlines()[0]

    def source(self, name: str) -> str:
        """The file that another process must run to know this name; empty if importing us is enough."""
        function = self.get(name)
        return "" if function.__module__ in _come_along else getsourcefile(function) or ""


# A model's function is called with a size (width of the network) and a number of samples, after torch was
# seeded: it may draw from torch's default generator. A dataset's is called with the number of samples and
# answers with (inputs, targets), a row for each. Both import torch themselves, in their bodies.
models = Shelf[Builder]("model")
datasets = Shelf[Maker]("dataset")

register = models.register
register_dataset = datasets.register
names = models.names


_come_along = {"gpu_flows.training.models", "gpu_flows.training.datasets"}  # modules


def load_plugins() -> None:
    """Import what other packages offer. One that is broken is left out, and the rest can be trained."""
    for plugin in entry_points(group="gpu_flows.training"):
        try:
            plugin.load()
            _come_along.add(plugin.module)
        except Exception as error:
            log.warning("the models of %s are left out: %s: %s", plugin.value, type(error).__name__, error)
