"""The arithmetic of Gavel: who should have how much time on which devices, and who is behind on it.

    maximize   z
    such that  sum_f gain[j, f] * share[j, f] >= z        every job j gains at least that much
               sum_f share[j, f]              <= 1        a job is in one place at a time
               sum_j width[j] * share[j, f]   <= room[f]  a fleet f has so many devices
               share                          >= 0

Where a job's gain is its throughput over what an equal share of everything would give it, this is
max-min fairness; where it is throughput over what is left to do, 1 / z is the shortest makespan.

Such a program has many best answers. This one is in the middle of all of them: jobs that are alike
get the same, whatever their order, and none is kept off devices by the whim of a solver. An
interior-point method ends there by nature. It gives every constraint a slack and a price and drives
the products of the two to zero, all at one pace; and since jobs meet only in z and in the prices of
the fleets, each step is a tiny system for every job, all solved in one batch.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

PRECISION = 1e-5  # how far from the best z we may stop, as a part of it
SHRINK = 0.1  # what a step leaves of the products, if it can go all the way
SETTLING = 2  # steps to the middle at the end, without getting any closer to the best z
MOST_STEPS = 60  # a dozen is usual
NEARLY = 0.98  # how much of the way to the nearest constraint a step may go


def fairest_shares(gain: Numbers, width: Numbers, room: Numbers) -> Numbers:
    """The share of its time that each job (row) should spend on each fleet (column).

    A gain of zero says that the job cannot use the fleet; every job must be able to use some.
    """
    rows = np.column_stack((gain, width))
    alike, which, count = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    program = _Program(alike[:, :-1], alike[:, -1], count.astype(float), room)
    return _four_figures(program.middle())[which.reshape(-1)]


def _four_figures(values: Numbers) -> Numbers:
    """What lies beyond is the solver's noise: it must not decide who comes first."""
    unit = 10.0 ** (np.floor(np.log10(values, where=values > 0, out=np.zeros_like(values))) - 3)
    return np.round(values / unit) * unit


class _Program:
    """One row for all jobs that are alike. Slacks and prices of all constraints stand in one vector:
    those of the shares (which must not be negative), of gains, of jobs' time, of fleets' room."""

    def __init__(self, gain: Numbers, width: Numbers, count: Numbers, room: Numbers) -> None:
        rows, fleets = gain.shape
        self.gain = gain / gain.max(axis=1).min()
        self.usable = (gain > 0).astype(float)
        self.weight = width * count
        share = self.usable * np.minimum(0.5 / fleets, 0.5 * room / self.weight.sum())
        gained = (self.gain * share).sum(axis=1)
        self.z = gained.min() / 2
        self.slack = np.concatenate(
            (
                (share + 1 - self.usable).ravel(),  # what cannot be used is out of everybody's way
                gained - self.z,
                1 - share.sum(axis=1),
                room - self.weight @ share,
            )
        )
        self.count = np.concatenate((np.repeat(count, fleets), count, count, np.ones(fleets)))
        self.price = self.count / self.slack
        self.price /= self._parts(self.price)[1].sum()

        # A row's own system: unknown are the changes of its shares, the price of its gain and the
        # price of its time. The right-hand sides: what is known, one for z, one for each fleet's price.
        each = np.arange(fleets)
        self._system = np.zeros((rows, fleets + 2, fleets + 2))
        self._system[:, each, -2] = -self.gain
        self._system[:, each, -1] = self.usable
        self._system[:, -2, each] = self.gain
        self._system[:, -1, each] = -self.usable
        self._sides = np.zeros((rows, fleets + 2, fleets + 2))
        self._sides[:, -2, 1] = 1
        self._sides[:, each, each + 2] = -self.weight[:, None] * self.usable

    def middle(self) -> Numbers:
        for _ in range(MOST_STEPS):
            gap = self.slack @ self.price
            if gap < PRECISION * self.z:
                break
            self._step(SHRINK * gap / self.count.sum())
        for _ in range(SETTLING):
            self._step(self.slack @ self.price / self.count.sum())
        share: Numbers = self._parts(self.slack)[0] * self.usable
        return share

    def _step(self, product: float) -> None:
        """Newton's step to where slack times price is the same product for all."""
        fleets = self.gain.shape[1]
        each = np.arange(fleets)
        target = product * self.count
        share_ratio, gain_ratio, time_ratio, room_ratio = self._parts(self.slack / self.price)
        _, gain_goal, time_goal, room_goal = self._parts(target / self.price)
        self._system[:, each, each] = 1 / share_ratio
        self._system[:, -2, -2] = gain_ratio
        self._system[:, -1, -1] = time_ratio
        self._sides[:, :-2, 0] = self._parts(target / self.slack)[0] * self.usable
        self._sides[:, -2, 0] = gain_goal
        self._sides[:, -1, 0] = time_goal
        answers = np.linalg.solve(self._system, self._sides)

        # What all rows share: prices of gains come to 1, and a fleet's price fits what it has left.
        common = np.vstack((answers[:, -2].sum(axis=0), -np.tensordot(self.weight, answers[:, :-2], 1)))
        known = np.concatenate(([1.0], room_goal)) - common[:, 0]
        common[each + 1, each + 2] += room_ratio
        z_and_prices = np.linalg.solve(common[:, 1:], known)

        share = answers[:, :-2] @ np.concatenate(([1.0], z_and_prices))
        z = z_and_prices[0]
        slack = np.concatenate(
            (share.ravel(), (self.gain * share).sum(axis=1) - z, -share.sum(axis=1), -self.weight @ share)
        )
        price = (target - self.price * slack) / self.slack - self.price
        stride = _stride(self.slack, slack)
        self.z += stride * z
        self.slack += stride * slack
        self.price += _stride(self.price, price) * price

    def _parts(self, vector: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        rows, fleets = self.gain.shape
        shares = rows * fleets
        return (
            vector[:shares].reshape(rows, fleets),
            vector[shares : shares + rows],
            vector[shares + rows : shares + 2 * rows],
            vector[shares + 2 * rows :],
        )


def _stride(values: Numbers, change: Numbers) -> float:
    """How much of the change keeps all values positive."""
    steepest = float((-change / values).max())
    return min(1.0, NEARLY / steepest) if steepest > 0 else 1.0


class Ledger:
    """The shares that hold for now, and the time on each fleet that jobs had since these were made."""

    def __init__(self, lines: Mapping[str, int], share: Numbers, head_start: float) -> None:
        self.rows = {job_id: row for row, job_id in enumerate(lines)}
        self.ids = tuple(lines)  # by row
        self.share = share
        self._lines = np.array(list(lines.values()))
        self._head_start = head_start  # a job that had nothing yet counts as if it had had that much
        self._had = np.full(share.shape, head_start)
        self._owed = np.zeros(share.shape)  # from earlier shares
        self._orders: dict[int, list[str]] = {}

    def note(self, job_id: str, fleet: int, seconds: float) -> None:
        """The job has had so much more time on the fleet."""
        if job_id in self.rows:
            self._had[self.rows[job_id], fleet] += seconds
            self._orders.clear()

    def carry_over(self, before: Ledger, seconds: float) -> None:
        """What the earlier shares, which held for so long, still owe."""
        owed = before._owed + before.share * seconds - (before._had - before._head_start)
        was = np.array([before.rows.get(job_id, -1) for job_id in self.ids], dtype=int)
        self._owed[was >= 0] = owed[was[was >= 0]]

    def in_order(self, fleet: int) -> list[str]:
        """The jobs that may use the fleet, the one that had the least of its share of it first; where all
        is equal, the one that is owed more from before, that has the larger share, that came first."""
        if fleet not in self._orders:
            share = self.share[:, fleet]
            order = np.lexsort((-share, -self._owed[:, fleet], -share / self._had[:, fleet], self._lines))
            self._orders[fleet] = [self.ids[row] for row in order[share[order] > 0].tolist()]
        return self._orders[fleet]
