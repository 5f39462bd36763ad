"""AFS-L: the short first, but the efficient get more."""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import merge
from typing import Any

from gpu_flows.schedulers.model import Job, Plan, Progress
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.policy_support.elastic import Division, ElasticOptions, Shares
from gpu_flows.schedulers.policy_support.resizing import resize
from gpu_flows.schedulers.policy_support.starting import expected, serve


class AfsL(Policy):
    """One by one, each device goes where it serves all jobs best, weighing short jobs against efficient ones.

    Hwang et al., Elastic Resource Sharing for Distributed Deep Learning (NSDI 2021), for jobs whose
    length is known. A device lent to the job that ends sooner is worth more, as it comes back sooner,
    unless a longer one gains so much more by it. Worked out anew at every arrival and end; running
    jobs are resized. A long job may starve while shorter ones keep coming.
    """

    name = "afs_l"
    Options = ElasticOptions
    options: ElasticOptions
    preempts = True
    moves_running = True
    needs = ("expected duration", "speed on more or fewer devices")
    optimizes = "mean turnaround of jobs that can be resized"
    promises = ("work conserving",)

    def rank(self, job: Job, progress: Progress) -> Any:
        return (job.queue_priority, max(0.0, expected(job) - progress.work_s), job.submitted, job.id)

    def group(self, job: Job) -> object:
        return (job.request, job.kind)  # these scale alike: who has the least time left is the shortest

    def plan(self, state: State) -> Plan:
        if self.options.sharing == "shared":  # such devices are not divided by their number
            serve(state, self.options)
        else:
            division = Division(state)
            resize(division, self.options, one_by_one(division, self._by_length(division)))
        return state.draft.plan()

    def _by_length(self, division: Division) -> Iterator[tuple[Job, float]]:
        """Every job and how long it would still take on a single device, the shortest first."""
        now, queue = division.state.now, division.state.queue

        def entry(job: Job, rank: Any) -> tuple[Any, Job]:
            number, left, submitted, job_id = rank
            return (number, left / division.alone(job), submitted, job_id), job

        running = division.running.values()
        runs = sorted(entry(each.job, self.rank(each.job, each.progress(now))) for each in running)
        waits = [(entry(job, rank) for rank, _, job in group.in_order()) for *_, group in queue.heads()]
        return ((job, rank[1]) for rank, job in merge(runs, *waits))


def one_by_one(division: Division, by_length: Iterator[tuple[Job, float]]) -> Shares:
    """Hand the devices out, each to the winner of a walk in which two jobs at a time are compared.

    Three jobs can beat each other in a circle, so the order of the walk can decide. Here it goes over
    the jobs that have something, in the order in which they first got it, and then over those that
    have nothing. The outcome is exactly that, but much of the walk is saved: to a job that has
    something, all that have nothing are alike, and among these the shortest wins. So only the
    shortest is looked at, and no walk is needed while nobody that has something could beat it.
    """
    rest = division.devices
    shares: Shares = {}
    shortest = next(by_length, None)  # of those that have nothing
    claims: list[_Claim] = []  # of those that have something and want more
    keen: set[str] = set()  # those of them that could beat one that has nothing
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
    """How many devices a job has so far, and what the next would do."""

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
        self.ends = _over(self.length, now)  # after so many seconds
        self.gain = _over(then - now, now)  # of what it has
        self.loss = _over(then - now, then)  # of what it could have, if another gets the device

    @property
    def is_keen(self) -> bool:
        """Whether one more device gives it as much as it has: what a job that has nothing gains too."""
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
