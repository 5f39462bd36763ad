"""Formats pydantic's validation errors as one readable line."""

from __future__ import annotations

from pydantic import ValidationError


def explain(error: ValidationError, whole: str = "", depth: int | None = None) -> str:
    """Return every error as `field: message`, joined by semicolons. `whole` is used in place of the field
    when an error concerns the whole model; `depth` cuts the path to a nested field."""
    return "; ".join(
        ": ".join(filter(None, [".".join(map(str, item["loc"][:depth])) or whole, item["msg"]]))
        for item in error.errors()
    )
