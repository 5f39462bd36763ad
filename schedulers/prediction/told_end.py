"""When a new estimate of a running job's end is told: not often, and only if it has moved noticeably.

The worker tells its dispatcher by this rule, and a replay finds by it which recorded reports were told.
"""

from __future__ import annotations

import math

TELL_EVERY_S = 3.0  # about one job
NOTICEABLE = 0.05  # of the remaining time


class ToldEnd:
    """The end of one attempt that was told last."""

    def __init__(self) -> None:
        self._at = self._end = -math.inf  # the first estimate is told

    def update(self, now: float, remaining_s: float) -> bool:
        """Return whether this is to be told; then it counts as told."""
        end = now + remaining_s
        is_news = now - self._at >= TELL_EVERY_S and abs(end - self._end) > NOTICEABLE * max(remaining_s, 1.0)
        if is_news:
            self._at, self._end = now, end
        return is_news
