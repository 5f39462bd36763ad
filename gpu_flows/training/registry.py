"""The models and datasets that can be trained, by name. Each is one decorated function.

Another package adds its own through an entry point of the group `gpu_flows.training` that names the module
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
    """A network, the samples it learns from, and its loss function (the mean over a batch)."""

    network: nn.Module
    inputs: Tensor
    targets: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]


# A model function gets the size (width of the network) and the number of samples. A dataset function gets the
# number of samples and returns (inputs, targets), one row each. Both may draw from torch's default generator,
# which is seeded before the call, and import torch in their bodies.
ModelFunction = Callable[[int, int], Recipe]
DatasetFunction = Callable[[int], "tuple[Tensor, Tensor]"]

F = TypeVar("F", bound=Callable[..., Any])


class Registry(Generic[F]):
    """The functions of one kind (models or datasets), by name."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._functions: dict[str, F] = {}

    def register(self, name: str) -> Callable[[F], F]:
        """Register the decorated function under this name. Its docstring is the description users read."""

        def add(function: F) -> F:
            if not getdoc(function):
                raise ValueError(
                    f"{self.kind} {name!r} has no docstring, which users read. Describe it in one line."
                )
            if name in self._functions:
                raise ValueError(f"{self.kind} {name!r} is registered twice. Give one of them another name.")
            self._functions[name] = function
            return function

        return add

    def unregister(self, name: str) -> None:
        del self._functions[name]

    def names(self) -> list[str]:
        """Return all registered names, in the order of registration."""
        return list(self._functions)

    def get(self, name: str) -> F:
        """Return the function of this name. Raises a ValueError that lists all names if there is none."""
        if name not in self._functions:
            raise ValueError(f"no {self.kind} is called {name!r}. Choose one of: {', '.join(self.names())}.")
        return self._functions[name]

    def describe(self, name: str) -> str:
        """Return the first line of the function's docstring."""
        return (getdoc(self.get(name)) or "").splitlines()[0]

    def source(self, name: str) -> str:
        """Return the file that another process must import to register this name; empty if importing
        gpu_flows.training is enough."""
        function = self.get(name)
        return "" if function.__module__ in _imported_modules else getsourcefile(function) or ""


models = Registry[ModelFunction]("model")
datasets = Registry[DatasetFunction]("dataset")

register = models.register
register_dataset = datasets.register
names = models.names

# The modules that every import of gpu_flows.training imports.
_imported_modules = {"gpu_flows.training.models", "gpu_flows.training.datasets"}


def load_plugins() -> None:
    """Import the models of other packages. A package that cannot be imported is skipped with a warning."""
    for plugin in entry_points(group="gpu_flows.training"):
        try:
            plugin.load()
            _imported_modules.add(plugin.module)
        except Exception as error:
            log.warning("the models of %s cannot be used: %s: %s", plugin.value, type(error).__name__, error)
