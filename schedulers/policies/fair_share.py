"""Weighted fair share between users."""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Annotated, Any

from pydantic import Field

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.policy_support.backfill import Forecast
from gpu_flows.schedulers.waiting_queue import Group

AHEAD_S = 60.0  # held devices count this long ahead, so that devices that are free together are shared too


class FairShareOptions(PlacementOptions):
    weights: dict[str, Annotated[float, Field(gt=0)]] = {}
    """How much each user should get relative to others. A user who is not named has weight 1."""

    half_life_s: float = Field(default=86_400, gt=0, title="Half-life (s)")
    """Device time that was used this long ago counts half."""


class FairShare(Policy[FairShareOptions]):
    """The user with the least device time relative to their weight goes next; running jobs are not preempted.

    Device time loses half its weight in each half-life (Kay and Lauder 1988). A user's own jobs start
    in arrival order. The first job that does not fit gets a reservation, and others pass it only if
    they do not delay it, so wide jobs get their share too and no job starves. With shared devices,
    the first job that does not fit blocks the others.
    """

    name = "fair_share"
    moves_running = True  # it moves no job, but must notice when jobs end
    needs = ("user",)
    optimizes = "equal device time for users, by weight"
    promises = ("no starvation",)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._accounts: dict[str, Account] = {}
        self._charged: dict[str, tuple[Account, int]] = {}  # job id -> the account and the devices

    def group(self, job: Job) -> object:
        return (job.user, job.request)

    def plan(self, state: State) -> None:
        for job_id in sorted(self._charged.keys() - state.running.keys()):
            account, devices = self._charged.pop(job_id)
            account.release(devices, state.now)
        for job_id in sorted(state.running.keys() - self._charged.keys()):
            self._charge(state, job_id)
        self._start_in_turn(state)

    def _start_in_turn(self, state: State) -> None:
        """Start jobs by their users' turns. Each start delays its user's next turn."""
        cluster, exclusive = state.cluster, self.options.sharing == "exclusive"
        forecast: Forecast | None = None  # made when the first job has to wait
        groups = state.queue.groups()
        turns = [self._turn(head[2], group, state.now) for group in groups if (head := group.head())]
        heapify(turns)
        while turns and (cluster.idle or not exclusive):
            _, share, _, job, group = heappop(turns)
            if share != self._share(job.user, state.now):
                heappush(turns, self._turn(job, group, state.now))
                continue
            room = forecast.room_now(job, self.options) if forecast else self.options.place(job, cluster)
            if room:
                state.draft.start(job, room)
                self._charge(state, job.id)
                if forecast:
                    forecast.started(job)
                following = group.head()
                if following:
                    heappush(turns, self._turn(following[2], group, state.now))
            elif not exclusive:
                return
            elif not forecast or not forecast.slots:
                turns = [turn for turn in turns if turn[-1].least <= cluster.idle]
                heapify(turns)
                if turns:
                    forecast = forecast or Forecast(state)
                    if forecast.can_serve(job):
                        forecast.reserve(job)

    def _turn(self, job: Job, group: Group, now: float) -> tuple[int, float, Any, Job, Group]:
        return (job.queue_priority, self._share(job.user, now), job.order, job, group)

    def _share(self, user: str, now: float) -> float:
        account = self._accounts.get(user)
        if account is None:
            return 0.0
        account.settle(now)
        return (account.used + account.held * AHEAD_S) / self.options.weights.get(user, 1.0)

    def _charge(self, state: State, job_id: str) -> None:
        """Charge the job's user for its devices, from when it started until it ends."""
        running = state.running[job_id]
        account = self._accounts.setdefault(running.job.user, Account(self.options.half_life_s))
        account.acquire(len(running.devices), running.since, state.now)
        self._charged[job_id] = (account, len(running.devices))


@dataclass(slots=True)
class Account:
    """What a user has used so far, in device-seconds that lose half their value in each half-life."""

    half_life_s: float
    used: float = 0.0
    held: int = 0  # devices
    settled: float = 0.0  # the time up to which `used` counts

    def settle(self, now: float) -> None:
        """Count the devices held up to now."""
        decay = math.log(2) / self.half_life_s
        lost = -math.expm1(-decay * max(0.0, now - self.settled))
        self.used += self.held * lost / decay - self.used * lost
        self.settled = now

    def acquire(self, devices: int, since: float, now: float) -> None:
        """Hold this many more devices, counted from an earlier time."""
        self.settle(now)
        before = Account(self.half_life_s, held=devices, settled=since)
        before.settle(now)
        self.used += before.used
        self.held += devices

    def release(self, devices: int, now: float) -> None:
        self.settle(now)
        self.held -= devices
