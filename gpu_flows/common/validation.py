"""Pydantic's validation errors in one readable line."""

from __future__ import annotations

from pydantic import ValidationError


def explain(error: ValidationError, whole: str = "", depth: int | None = None) -> str:
    """Every error as `field: message`, joined by semicolons. `whole` names the model where an error is
    about all of it; `depth` cuts the path to a nested field."""
    return "; ".join(
        ": ".join(filter(None, [".".join(map(str, each["loc"][:depth])) or whole, each["msg"]]))
        for each in error.errors()
    )
