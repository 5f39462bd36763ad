"""The decisions of the learning environment: how they are numbered, and what each of them may be.

At a moment at which jobs wait, the environment asks for one decision after the other:

    start job k on devices of placement p   if it does not fit on idle devices, running jobs make room:
        stop running job r                  until it fits, or
        wait                                which gives up, and nothing is stopped
    wait                                    for the next event, if no waiting job fits on idle devices

Numbers: `k * placements + p` for a start, then one for each running job, and the last is to wait.
"""

from __future__ import annotations

from typing import NamedTuple


class Start(NamedTuple):
    """Start the waiting job in this slot with this placement."""

    slot: int
    placement: int


class Stop(NamedTuple):
    """Stop the running job in this slot, for the job that is to start."""

    slot: int


class Decisions(NamedTuple):
    """How decisions are numbered, for windows of so many waiting and running jobs."""

    waiting: int
    running: int
    placements: int

    @property
    def total(self) -> int:
        return self.waiting * self.placements + self.running + 1

    @property
    def first_stop(self) -> int:
        return self.waiting * self.placements

    @property
    def wait(self) -> int:
        return self.total - 1

    def decode(self, number: int) -> Start | Stop | None:
        """Return the decision of this number; None is to wait."""
        if number < self.first_stop:
            return Start(*divmod(number, self.placements))
        return Stop(number - self.first_stop) if number < self.wait else None
