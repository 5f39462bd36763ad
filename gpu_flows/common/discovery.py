"""Finds the classes that the modules of a package define, so that a new module needs no registration."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from inspect import isabstract
from typing import TypeVar, cast

C = TypeVar("C")


def classes_in(package: str, base: Callable[..., C]) -> Iterator[type[C]]:
    """Yield every subclass of `base` that is defined in a module of the package and is not abstract.
    `base` is typed as a callable because type checkers reject an abstract class as a `type`."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        loaded = importlib.import_module(f"{package}.{module.name}")
        for value in vars(loaded).values():
            if not isinstance(value, type) or value.__module__ != loaded.__name__:
                continue  # not a class, or a class that the module only imports
            if issubclass(value, cast(type, base)) and not isabstract(value):
                yield cast(type[C], value)


def summary(documented: type) -> str:
    """Return the first line of a class's docstring."""
    return (documented.__doc__ or "").strip().split("\n")[0]
