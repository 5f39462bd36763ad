"""Weighted fair share between users."""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Annotated, Any

from pydantic import Field

from gpu_flows.schedulers.model import Job, Plan
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.policy_support.backfill import Forecast
from gpu_flows.schedulers.waiting_queue import Group

AHEAD_S = 60.0  # what runs counts this long ahead, so that devices that are free together are shared too


class FairShareOptions(PlacementOptions):
    weights: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default={},
        title="Weights",
        description="How much each user should get relative to others. Who is not named has weight 1.",
    )
    half_life_s: float = Field(
        default=86_400,
        gt=0,
        title="Half-life (s)",
        description="Device time that was used so long ago counts half.",
    )


class FairShare(Policy):
    """The user who had the least device time for their weight goes next; what runs is left alone.

    Device time loses half its weight in each half-life (Kay and Lauder 1988). A user's own jobs go
    in arrival order. The first job that does not fit gets a reservation, and others pass it only if
    they do not delay it, so wide jobs get their share too and nobody starves. With shared devices,
    whoever's turn it is blocks the others.
    """

    name = "fair_share"
    Options = FairShareOptions
    options: FairShareOptions
    moves_running = True  # it moves nothing, but must see when jobs end
    needs = ("user",)
    optimizes = "equal device time for users, by weight"
    promises = ("no starvation",)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._accounts: dict[str, Account] = {}
        self._charged: dict[str, tuple[Account, int]] = {}  # job id -> who pays for how many devices

    def group(self, job: Job) -> object:
        return (job.user, job.request)

    def plan(self, state: State) -> Plan:
        for job_id in sorted(self._charged.keys() - state.running.keys()):
            account, devices = self._charged.pop(job_id)
            account.give_back(devices, state.now)
        for job_id in sorted(state.running.keys() - self._charged.keys()):
            self._charge(state, job_id)
        self._serve(state)
        return state.draft.plan()

    def _serve(self, state: State) -> None:
        """Start jobs in turn. Each start makes its user's next turn come later."""
        cluster, exclusive = state.cluster, self.options.sharing == "exclusive"
        forecast: Forecast | None = None  # made when the first has to wait
        turns = [self._turn(job, group, state.now) for _, _, job, group in state.queue.heads()]
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
                turns = [turn for turn in turns if turn[-1].gpus <= cluster.idle]
                heapify(turns)
                if turns:
                    forecast = forecast or Forecast(state)
                    if forecast.can_serve(job):
                        forecast.promise(job)

    def _turn(self, job: Job, group: Group, now: float) -> tuple[int, float, Any, Job, Group]:
        return (job.queue_priority, self._share(job.user, now), job.order, job, group)

    def _share(self, user: str, now: float) -> float:
        account = self._accounts.get(user)
        if account is None:
            return 0.0
        account.settle(now)
        return (account.used + account.held * AHEAD_S) / self.options.weights.get(user, 1.0)

    def _charge(self, state: State, job_id: str) -> None:
        """The job's user pays for its devices, from when it started until it ends."""
        running = state.running[job_id]
        account = self._accounts.setdefault(running.job.user, Account(self.options.half_life_s))
        account.take(len(running.devices), running.since, state.now)
        self._charged[job_id] = (account, len(running.devices))


@dataclass(slots=True)
class Account:
    """What a user had so far, in device-seconds that lose half their value in each half-life."""

    half_life_s: float
    used: float = 0.0
    held: int = 0  # devices, at present
    at: float = 0.0  # when the above was true

    def settle(self, now: float) -> None:
        """Count what was held until now."""
        decay = math.log(2) / self.half_life_s
        lost = -math.expm1(-decay * max(0.0, now - self.at))
        self.used += self.held * lost / decay - self.used * lost
        self.at = now

    def take(self, devices: int, since: float, now: float) -> None:
        """Hold so many devices more, and have held them since then."""
        self.settle(now)
        before = Account(self.half_life_s, held=devices, at=since)
        before.settle(now)
        self.used += before.used
        self.held += devices

    def give_back(self, devices: int, now: float) -> None:
        self.settle(now)
        self.held -= devices
