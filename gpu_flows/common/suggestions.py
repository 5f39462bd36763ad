"""Suggests the names that a user probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def find_similar(wrong: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Return the known names that contain the wrong one or resemble it, the most similar first."""
    names = list(known)
    close = get_close_matches(wrong, names, n=most, cutoff=0.6)
    containing = [name for name in names if wrong and wrong.lower() in name.lower() and name not in close]
    return [*close, *containing][:most]


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """Return `Did you mean 'gpus'?`, or an empty text if no known name is similar."""
    similar = find_similar(wrong, known)
    return f"Did you mean {' or '.join(map(repr, similar))}?" if similar else ""
