"""A workload of users who run the same kinds of jobs again and again."""

from __future__ import annotations

import math
from random import Random
from typing import Annotated

from pydantic import Field

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.simulation.workloads.base import Count, Positive, Workload, job_ids
from gpu_flows.schedulers.workload import Arrival


class Recurring(Workload):
    """Kinds of jobs that differ in size and run time; a user runs jobs of a few kinds, often several at once.

    As in published traces, most jobs resemble earlier ones of the same user. Run times are lognormal, wide
    between the kinds and narrower within a kind.
    """

    name = "recurring"
    jobs: Count = 1000
    """How many jobs."""
    rate_per_hour: Positive = 60
    """Arrivals an hour."""
    kinds: Count = 12
    """How many kinds of jobs."""
    users: Count = 8
    """How many users. Each runs up to three kinds."""
    most_gpus: Count = 8
    """GPUs of the widest kinds; a kind has 1, 2, 4, ... of them, and half of the kinds have 1."""
    mean_s: Positive = 1800
    """Mean run time, in seconds."""
    between: Annotated[float, Field(ge=0, le=4)] = 1.3
    """How much kinds differ in run time (sigma of a lognormal)."""
    within: Annotated[float, Field(ge=0, le=4)] = 0.6
    """How much jobs of a kind differ (sigma of a lognormal)."""
    group: Positive = 2
    """Mean number of jobs that a user submits at once."""

    def arrivals(self, random: Random) -> list[Arrival]:
        kinds = [self._draw_kind(random, number) for number in range(self.kinds)]
        users = [random.sample(kinds, min(3, len(kinds))) for _ in range(self.users)]
        arrivals: list[Arrival] = []
        now, left = 0.0, 0
        for id in job_ids(self.jobs):
            if not left:
                now += random.expovariate(self.rate_per_hour / 3600 / self.group) if arrivals else 0.0
                user = random.randrange(self.users)
                name, gpus, median = random.choice(users[user])
                left = 1 + int(random.expovariate(1 / max(self.group - 0.5, 1e-3)))
            left -= 1
            job = Job(id, now, gpus, user=f"user-{user + 1}", kind=name, may_span_nodes=gpus > 1)
            arrivals.append(Arrival(job, median * random.lognormvariate(0.0, self.within)))
        return arrivals

    def _draw_kind(self, random: Random, number: int) -> tuple[str, int, float]:
        """Return name, size and median run time of a kind."""
        widest = int(math.log2(self.most_gpus))
        gpus = 1 if random.random() < 0.5 else 2 ** random.randint(0, widest)
        variance = self.between**2 + self.within**2
        median = self.mean_s * random.lognormvariate(-variance / 2, self.between)
        return f"kind-{number + 1}", gpus, median
