"""The FfDL optimizer: the highest throughput of the cluster as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.policy_support.elastic import Division, ElasticOptions, Shares, by_gain
from gpu_flows.schedulers.policy_support.resizing import run_elastic


class FfDL(Policy[ElasticOptions]):
    """The oldest jobs that fit run, on the numbers of devices that make the sum of their speedups largest.

    Saxena et al., Effective Elastic Scaling of Deep Learning Workloads (MASCOTS 2020). The numbers are
    computed anew at every arrival and end; running jobs are resized. The oldest jobs get at least
    the fewest devices they can run on, so no job starves, and no device is idle that would speed one up.
    """

    name = "ffdl"
    preempts = moves_running = True
    needs = ("speed on more or fewer devices",)
    optimizes = "throughput of the whole cluster"
    promises = ("no starvation",)

    def plan(self, state: State) -> None:
        # Without preemption, a later job that starts first would keep an older one waiting.
        run_elastic(state, self.options, largest_sum, strict=not state.can_preempt)


def largest_sum(division: Division, jobs: Sequence[Job]) -> Shares:
    """Return the shares, each at least the job's least, with the largest sum of speedups.

    Among jobs that gain less by every further device it is optimal to give each device to the one
    that gains most by it: these need no table. The others go through the paper's dynamic program, a
    knapsack over jobs and devices; then the best split between the two kinds is looked up.
    """
    if sum(job.least for job in jobs) == division.devices:
        return {job.id: job.least for job in jobs}
    steady = {job.id for job in jobs if _is_steady(division.speedups(job)[job.least :])}
    easy = [job for job in jobs if job.id in steady]
    hard = [job for job in jobs if job.id not in steady]
    shares = _knapsack(division, hard, easy) if hard else {}
    shares |= by_gain(division, easy, division.devices - sum(shares.values()))
    return {job.id: shares[job.id] for job in jobs}


def _gains(division: Division, job: Job) -> list[float]:
    """Return what each device beyond its least adds to the job's speedup."""
    return [after - before for before, after in pairwise(division.speedups(job)[job.least :])]


@lru_cache(1024)
def _is_steady(speedups: tuple[float, ...]) -> bool:
    """Return whether every further device adds no more than the one before."""
    gains = [after - before for before, after in pairwise(speedups)]
    return all(after <= before + 1e-9 for before, after in pairwise(gains))


def _knapsack(division: Division, hard: Sequence[Job], easy: Sequence[Job]) -> Shares:
    """Return the shares of the hard jobs, when the easy ones make the best use of the rest."""
    import numpy as np  # imported here because most clusters never see a hard job

    room = division.devices - sum(job.least for job in easy)
    best = np.zeros(room + 1)  # [n]: the largest sum of the jobs so far, on n devices
    choices = []
    for job in hard:
        speedups = division.speedups(job)[: room + 1]
        sums = np.full((len(speedups), room + 1), -np.inf)  # [k, n]: the same, if k of them are this job's
        for count in range(job.least, len(speedups)):
            sums[count, count:] = best[: room + 1 - count] + speedups[count]
        choices.append(sums.argmax(axis=0))  # among equals the fewest, so that older jobs get the rest
        best = sums.max(axis=0)

    gains = sorted((gain for job in easy for gain in _gains(division, job)), reverse=True)[:room]
    rest = np.zeros(room + 1)  # [n]: what the easy ones gain by n devices beyond their least
    rest[1 : len(gains) + 1] = gains
    left = int((best + rest.cumsum()[::-1]).argmax())
    shares: Shares = {}
    for job, choice in zip(reversed(hard), reversed(choices), strict=True):
        shares[job.id] = int(choice[left])
        left -= shares[job.id]
    return shares
