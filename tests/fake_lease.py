"""A lease that the test grants and takes away."""

from __future__ import annotations


class FakeLease:
    def __init__(self, token: str = "1", valid: bool = True) -> None:
        self.token, self.valid = token, valid
        self.end = 0.0

    def is_valid(self) -> bool:
        return self.valid

    def ends_at(self) -> float:
        return self.end
