"""AFS-L: short jobs first, and more devices for efficient ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import merge

from gpu_flows.schedulers.model import Job, Progress
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.policy_support.durations import remaining_duration
from gpu_flows.schedulers.policy_support.elastic import Division, ElasticOptions, Shares
from gpu_flows.schedulers.policy_support.resizing import resize
from gpu_flows.schedulers.policy_support.starting import start_in_order
from gpu_flows.schedulers.waiting_queue import Rank


class AfsL(Policy[ElasticOptions]):
    """One by one, each device goes where it serves all jobs best, weighing short jobs against efficient ones.

    Hwang et al., Elastic Resource Sharing for Distributed Deep Learning (NSDI 2021), for jobs whose
    length is known. A device given to the job that ends sooner is worth more, because it is free again
    sooner, unless a longer job gains much more by it. The shares are computed anew at every arrival
    and end; running jobs are resized. A long job may starve while shorter ones keep arriving.
    """

    name = "afs_l"
    preempts = moves_running = True
    needs = ("expected duration", "speed on more or fewer devices")
    optimizes = "mean turnaround of jobs that can be resized"
    promises = ("work conserving",)

    def rank(self, job: Job, progress: Progress) -> float:
        return max(0.0, remaining_duration(job, progress.work_s))

    def group(self, job: Job) -> object:
        return (job.request, job.kind)  # these scale alike: the one with the least time left is the shortest

    def plan(self, state: State) -> None:
        if self.options.sharing == "shared":  # shared devices are not divided
            start_in_order(state, self.options)
        else:
            division = Division(state)
            resize(division, self.options, one_by_one(division, _by_length(division)))


def _by_length(division: Division) -> Iterator[tuple[Job, float]]:
    """Iterate over every job and how long it would still take on a single device, the shortest first."""
    now, queue = division.state.now, division.state.queue

    def entry(job: Job, rank: Rank) -> tuple[Rank, Job]:
        queue_priority, left, *rest = rank
        return (queue_priority, left / division.speed_on_one(job), *rest), job

    running = division.running.values()
    runs = sorted(entry(each.job, queue.rank_as_waiting(each.job, each.progress(now))) for each in running)
    waits = [(entry(job, rank) for rank, _, job in group.in_order()) for group in queue.groups()]
    return ((job, rank[1]) for rank, job in merge(runs, *waits))


def one_by_one(division: Division, by_length: Iterator[tuple[Job, float]]) -> Shares:
    """Hand out the devices, each to the winner of a walk that compares two jobs at a time.

    Three jobs can beat each other in a circle, so the order of the walk matters. The walk goes over
    the jobs that have devices, in the order in which they first got one, and then over those that
    have none. Most of the walk is saved without changing its outcome: a job that has devices compares
    equally with all that have none, and among these the shortest wins. So only the shortest is looked
    at, and no walk is needed while no job that has devices could beat it.
    """
    rest = division.devices
    shares: Shares = {}
    shortest = next(by_length, None)  # of the jobs that have no devices
    claims: list[_Claim] = []  # of the jobs that have devices and can use more
    keen: set[str] = set()  # those of them that could beat a job without devices
    while rest:
        winner = _winner(claims) if keen or not shortest else None
        if shortest and not (winner and winner.is_keen):
            winner = _Claim(*shortest, division)
            shortest = next(by_length, None) if rest >= division.smallest else None
            if not winner.step <= min(rest, winner.most):
                continue
            claims.append(winner)
        if winner is None:
            break
        rest -= winner.step
        winner.take_step()
        shares[winner.job.id] = winner.count
        keen.discard(winner.job.id)
        if winner.count == winner.most:
            claims.remove(winner)
        elif winner.is_keen:
            keen.add(winner.job.id)
    return shares


class _Claim:
    """How many devices a job has so far, and what the next one would gain."""

    __slots__ = ("count", "ends", "gain", "job", "length", "loss", "most", "speedups")

    def __init__(self, job: Job, length: float, division: Division) -> None:
        self.job, self.length, self.speedups = job, length, division.speedups(job)
        self.count, self.most = 0, len(self.speedups) - 1

    @property
    def step(self) -> int:
        return 1 if self.count else self.job.least

    def take_step(self) -> None:
        self.count += self.step
        now = self.speedups[self.count]
        then = self.speedups[min(self.count + 1, self.most)]
        self.ends = _over(self.length, now)  # seconds until it ends
        self.gain = _over(then - now, now)  # relative to the speed it has
        self.loss = _over(then - now, then)  # relative to the speed it could have

    @property
    def is_keen(self) -> bool:
        """Whether one more device doubles its speed, which is what a job without devices gains."""
        return self.gain >= 1


def _over(part: float, whole: float) -> float:
    return part / whole if whole else math.inf


def _winner(claims: list[_Claim]) -> _Claim | None:
    if not claims:
        return None
    best = claims[0]
    for claim in claims:
        if claim.ends < best.ends:
            if best.loss <= claim.gain:
                best = claim
        elif claim.loss > best.gain:
            best = claim
    return best
