"""The right to act for a pool, as the dispatcher sees it. `PoolLease` implements it; the tests use a fake."""

from __future__ import annotations

from typing import Protocol


class Lease(Protocol):
    """Only one worker has a valid lease on a pool at a time. Whatever changes something for the pool asks
    `is_valid` at the moment at which it acts."""

    @property
    def token(self) -> str:
        """Names this lease. It changes when the lease was another worker's in between."""
        ...

    def is_valid(self) -> bool:
        """Whether the lease certainly is this worker's now. Asks the clock only."""
        ...

    def ends_at(self) -> float:
        """The wall-clock time until which the lease is valid if it is not renewed."""
        ...


class Unlimited:
    """A lease that nobody else wants."""

    token = "0"

    def is_valid(self) -> bool:
        return True

    def ends_at(self) -> float:
        return 0.0
