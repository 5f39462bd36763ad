"""What all facts have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar, dataclass_transform


@dataclass(frozen=True, slots=True)
class Fact:
    """One row of a table."""

    table: ClassVar[str]


F = TypeVar("F", bound=Fact)
FACTS: list[type[Fact]] = []
"""Every class of this module that has a table."""


@dataclass_transform(frozen_default=True)
def in_table(name: str) -> Callable[[type[F]], type[F]]:
    """Make the class a frozen dataclass whose instances are rows of the table."""

    def add(fields: type[F]) -> type[F]:
        fact = dataclass(frozen=True, slots=True)(fields)
        fact.table = name
        FACTS.append(fact)
        return fact

    return add


@dataclass(frozen=True, slots=True)
class AttemptFact(Fact):
    """A fact about one launch of a job."""

    job_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class PoolFact(Fact):
    """A fact about a pool at a moment."""

    time: float
    pool: str
