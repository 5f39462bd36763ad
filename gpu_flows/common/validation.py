"""Formats pydantic's validation errors as one readable line."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from pydantic import ValidationError

from gpu_flows.common.suggestions import did_you_mean

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


def explain(
    error: ValidationError, whole: str = "", depth: int | None = None, known: Collection[str] = ()
) -> str:
    """Return every error as `field: message`, joined by semicolons. `whole` is used in place of the field
    when an error concerns the whole model; `depth` cuts the path to a nested field. `known` are the names
    that someone who misspelled one may have meant."""
    return "; ".join(
        ": ".join(filter(None, [".".join(map(str, item["loc"][:depth])) or whole, _describe(item, known)]))
        for item in error.errors()
    )


def _describe(item: ErrorDetails, known: Collection[str]) -> str:
    if item["type"] != "extra_forbidden":
        return item["msg"]
    return f"there is no such name. {did_you_mean(str(item['loc'][-1]), known)}".rstrip(". ")
