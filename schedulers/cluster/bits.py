"""Sets of small numbers as integers with one bit per number."""

from __future__ import annotations

from collections.abc import Iterator


def lowest_bits(bits: int, count: int) -> int:
    """Return the first `count` members of the set, or all if it has fewer."""
    chosen = 0
    while bits and count > 0:
        bit = bits & -bits
        chosen |= bit
        bits ^= bit
        count -= 1
    return chosen


def bit_positions(bits: int) -> Iterator[int]:
    while bits:
        bit = bits & -bits
        yield bit.bit_length() - 1
        bits ^= bit
