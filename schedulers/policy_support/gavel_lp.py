"""The linear program of Gavel: which share of its time each job should spend on which devices.

    maximize   z
    such that  sum_f gain[j, f] * share[j, f] >= z        every job j gains at least z
               sum_f share[j, f]              <= 1        a job runs in one fleet at a time
               sum_j width[j] * share[j, f]   <= room[f]  a fleet f has room[f] devices
               share                          >= 0

If a job's gain is its throughput relative to what an equal share of everything would give it, this is
max-min fairness; if it is throughput relative to the work left, 1 / z is the shortest makespan.

Such a program has many optimal solutions. This solver returns the one in the middle of all of them: equal
jobs get equal shares, independent of their order, and no job is excluded from devices by chance. An
interior-point method ends there. It gives every constraint a slack and a price and drives the products of
the two to zero at the same pace; and since jobs are coupled only by z and by the prices of the fleets,
each step is a small system for every job, all solved in one batch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

PRECISION = 1e-5  # the accepted distance from the optimal z, relative to it
SHRINK = 0.1  # the part of the products that a full step leaves
CENTERING = 2  # steps to the middle at the end, without getting closer to the optimal z
MOST_STEPS = 60  # a dozen is usual
NEARLY = 0.98  # the part of the way to the nearest constraint that a step may go


def fairest_shares(gain: Numbers, width: Numbers, room: Numbers) -> Numbers:
    """Return the share of its time that each job (row) should spend on each fleet (column).

    A gain of zero means that the job cannot use the fleet; every job must be able to use one.
    """
    rows = np.column_stack((gain, width))
    alike, which, count = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    program = _Program(alike[:, :-1], alike[:, -1], count.astype(float), room)
    return _round_to_four_figures(program.middle())[which.reshape(-1)]


def _round_to_four_figures(values: Numbers) -> Numbers:
    """Round off the solver's noise, which must not decide the order of jobs."""
    unit = 10.0 ** (np.floor(np.log10(values, where=values > 0, out=np.zeros_like(values))) - 3)
    return np.round(values / unit) * unit


class _Program:
    """The program with one row for all equal jobs. Slacks and prices of all constraints are one vector: those
    of the shares (which must not be negative), of gains, of jobs' time, of fleets' room."""

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
                (share + 1 - self.usable).ravel(),  # a fleet that the job cannot use is no constraint
                gained - self.z,
                1 - share.sum(axis=1),
                room - self.weight @ share,
            )
        )
        self.count = np.concatenate((np.repeat(count, fleets), count, count, np.ones(fleets)))
        self.price = self.count / self.slack
        self.price /= self._parts(self.price)[1].sum()

        # The system of a row: unknown are the changes of its shares, the price of its gain and the price
        # of its time. The right-hand sides: the constants, one for z, one for each fleet's price.
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
        """Return the shares in the middle of all optimal solutions."""
        for _ in range(MOST_STEPS):
            gap = self.slack @ self.price
            if gap < PRECISION * self.z:
                break
            self._step(SHRINK * gap / self.count.sum())
        for _ in range(CENTERING):
            self._step(self.slack @ self.price / self.count.sum())
        share: Numbers = self._parts(self.slack)[0] * self.usable
        return share

    def _step(self, product: float) -> None:
        """Take Newton's step towards the point where slack times price is the same product for all."""
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

        # The coupling of the rows: prices of gains add up to 1, and a fleet's price fits its free room.
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
        """Split a vector into those of shares, gains, times and rooms."""
        rows, fleets = self.gain.shape
        shares = rows * fleets
        return (
            vector[:shares].reshape(rows, fleets),
            vector[shares : shares + rows],
            vector[shares + rows : shares + 2 * rows],
            vector[shares + 2 * rows :],
        )


def _stride(values: Numbers, change: Numbers) -> float:
    """Return the part of the change that keeps all values positive."""
    steepest = float((-change / values).max())
    return min(1.0, NEARLY / steepest) if steepest > 0 else 1.0
