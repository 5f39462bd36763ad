"""The shares of time that Gavel computed, and how much of them each job has received."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpu_flows.schedulers.policy_support.gavel_lp import Numbers


class TimeShares:
    """The shares that are in force, and the time that jobs have had on each fleet since then."""

    def __init__(self, queue_priorities: Mapping[str, int], share: Numbers, head_start: float) -> None:
        self.rows = {job_id: row for row, job_id in enumerate(queue_priorities)}
        self.ids = tuple(queue_priorities)  # by row
        self.share = share
        self._queue_priorities = np.array(list(queue_priorities.values()))
        self._head_start = head_start  # a job that has had no time yet counts as if it had this much
        self._received = np.full(share.shape, head_start)
        self._owed = np.zeros(share.shape)  # from earlier shares
        self._orders: dict[int, list[str]] = {}

    def add_time(self, job_id: str, fleet: int, seconds: float) -> None:
        """Record that the job has had this much more time on the fleet."""
        if job_id in self.rows:
            self._received[self.rows[job_id], fleet] += seconds
            self._orders.clear()

    def carry_over(self, before: TimeShares, seconds: float) -> None:
        """Add what the earlier shares, which were in force this long, still owe."""
        owed = before._owed + before.share * seconds - (before._received - before._head_start)
        was = np.array([before.rows.get(job_id, -1) for job_id in self.ids], dtype=int)
        self._owed[was >= 0] = owed[was[was >= 0]]

    def in_order(self, fleet: int) -> list[str]:
        """Return the jobs that may use the fleet, the one that has received the least of its share first;
        among equals, the one that is owed more, that has the larger share, that arrived first."""
        if fleet not in self._orders:
            share = self.share[:, fleet]
            received = -share / self._received[:, fleet]
            order = np.lexsort((-share, -self._owed[:, fleet], received, self._queue_priorities))
            self._orders[fleet] = [self.ids[row] for row in order[share[order] > 0].tolist()]
        return self._orders[fleet]
