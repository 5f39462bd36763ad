"""Gavel: shares of time on each GPU model by a linear program, realized in rounds."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Job, Running
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.policy_support.gavel_fleets import (
    Fleet,
    find_fleets,
    measure_speed,
    measure_speeds,
    unite,
)

if TYPE_CHECKING:
    from gpu_flows.schedulers.policy_support.gavel_shares import TimeShares

ASSUMED_S = 3600.0  # the duration of all jobs, if none is known


class GavelOptions(PlacementOptions):
    objective: Literal["max_min", "min_makespan"] = "max_min"
    """Raise the gain of the job that gains least (max-min fairness, LAS), or end all jobs soonest."""

    aware: bool = Field(default=True, title="Heterogeneity-aware")
    """Consider how fast a job runs on each GPU model; otherwise all models count as equal."""

    round_s: float = Field(default=360, gt=0, title="Round (s)")
    """Jobs start, stop and move only between rounds of this length (or less, if all end)."""

    renew_s: float = Field(default=1920, ge=0, title="Renew shares after (s)")
    """Shares follow arrivals and ends no sooner than this; until then new jobs wait."""

    seed: int = 5
    """The seed of the order in which GPU models choose jobs, if the policy is not heterogeneity-aware."""

    sharing: Literal["exclusive"] = "exclusive"
    """A device serves one job at a time."""


class Gavel(Policy[GavelOptions]):
    """Each round, every GPU model runs the jobs that have received the least of their share of time on it.

    Narayanan et al., OSDI 2020. A linear program finds each job's share of time on each model, such
    that the job that gains least gains the most (`max_min`; priority 2 is worth twice as much as
    priority 1), or that all jobs end soonest (`min_makespan`, by expected durations). A job that waits
    falls behind on its share and so comes first soon; but a steady stream of new jobs may starve a wide
    one. Devices may be idle until a round ends, and while new jobs have no share yet; with `renew_s: 0`
    these wait for the next round only. Where jobs cannot be preempted, they start by the size of their
    shares. A job of unknown duration counts as long as the others on average.
    """

    name = "gavel"
    preempts = True
    moves_running = True
    needs = ("speed on each GPU model",)
    uses_priority = True
    optimizes = "fair shares of unlike GPUs, or makespan"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._random = random.Random(self.options.seed)
        self._seen: list[Fleet] = []
        self._fleets: list[Fleet] = []  # the fleets that the shares refer to
        self._fastest_first: list[int] = []  # their numbers
        self._shares: TimeShares | None = None
        self._renewed = 0.0  # 0: never; so shares made at time zero hold for a round, as in Gavel itself
        self._round_began = 0.0
        self._round_ends = 0.0

    def plan(self, state: State) -> None:
        if not state.can_preempt:
            self._start_what_fits(state)
            return
        running = [each for each in state.running.values() if each.devices]
        if running and state.now < self._round_ends:
            state.draft.wake_at(self._round_ends)
        elif running or len(state.queue):
            self._next_round(running, state)

    def _next_round(self, running: list[Running], state: State) -> None:
        self._find_fleets(state.cluster)
        self._record_round(running, state)
        self._renew_shares(state)
        placed: set[str] = set()
        for number in self._turns():
            placed |= self._allocate(number, placed, state)
        self._round_began, self._round_ends = state.now, state.now + self.options.round_s
        if state.running:
            state.draft.wake_at(self._round_ends)

    def _start_what_fits(self, state: State) -> None:
        """Without preemption, start the jobs with the largest shares of each fleet there while there is
        room, then jobs that have no share yet."""
        if state.cluster.idle and len(state.queue):
            self._find_fleets(state.cluster)
            self._renew_shares(state)
            for number in self._turns():
                self._start_by_share(number, state)
            if state.cluster.idle:
                self._start_without_share(state)

    # -- shares -------------------------------------------------------------------------------

    def _find_fleets(self, cluster: Cluster) -> None:
        """Find the fleets. If devices were added or removed, discard all shares."""
        fleets = find_fleets(cluster)
        if fleets != self._seen:
            self._seen, self._fleets, self._fastest_first, self._shares = fleets, [], [], None

    def _record_round(self, running: Iterable[Running], state: State) -> None:
        """Record the time that the jobs which still run have had in the round that ends now."""
        seconds = round(state.now - self._round_began, 3)  # equal histories must stay equal
        for each in running:
            for number, fleet in enumerate(self._fleets):
                if self._shares and fleet.holds(each, state.cluster):
                    self._shares.add_time(each.job.id, number, seconds)

    def _renew_shares(self, state: State) -> None:
        """Compute new shares, if they are due and if jobs have arrived or ended."""
        before = self._shares
        running = [each.job for each in state.running.values() if each.devices]
        due = not running or not self._renewed or state.now - self._renewed >= self.options.renew_s
        if (before and not due) or not self._seen:
            return
        jobs = sorted([*state.waiting, *running], key=lambda job: job.order)
        if before and before.rows.keys() == {job.id for job in jobs}:
            return
        fleets, speeds = self._seen, measure_speeds(jobs, self._seen, state)
        too_wide = [job for job, row in zip(jobs, speeds, strict=True) if all(map(math.isnan, row))]
        if too_wide and any(measure_speed(job, unite(fleets), state) > 0 for job in too_wide):
            fleets = [unite(fleets)]  # while there is a job too wide for each of them
            speeds = measure_speeds(jobs, fleets, state)
        same_fleets, self._fleets = fleets == self._fleets, fleets
        self._shares = self._compute_shares(jobs, speeds, state)
        if before and same_fleets:
            self._shares.carry_over(before, state.now - self._renewed)
        self._renewed = state.now

    def _compute_shares(self, jobs: list[Job], speeds: list[list[float]], state: State) -> TimeShares:
        import numpy as np  # imported here because loading it takes long

        from gpu_flows.schedulers.policy_support.gavel_lp import fairest_shares
        from gpu_flows.schedulers.policy_support.gavel_shares import TimeShares

        room = np.array([float(fleet.devices) for fleet in self._fleets])
        width = np.array([float(job.gpus) for job in jobs])
        speed = np.array(speeds).reshape(len(jobs), len(room))
        worth = np.nan_to_num(speed) if self.options.aware else 1.0 - np.isnan(speed)
        if self.options.objective == "max_min":
            equal_share = worth @ room / room.sum()
            measure = np.array([max(job.priority, 1) for job in jobs]) * equal_share / width
        else:
            measure = np.array(_remaining(jobs, state))
        able = worth.any(axis=1)
        share = np.zeros(worth.shape)
        if able.any():
            share[able] = fairest_shares(worth[able] / measure[able, None], width[able], room)
        share[~(speed > 0)] = 0  # no job goes where it would make no progress
        self._fastest_first = np.argsort(-worth.sum(axis=0), kind="stable").tolist()
        return TimeShares({job.id: job.queue_priority for job in jobs}, share, self.options.round_s / 2)

    # -- devices ------------------------------------------------------------------------------

    def _turns(self) -> list[int]:
        """Return the order in which the fleets choose: the fastest first; random if speeds do not count."""
        if self.options.aware:
            return self._fastest_first
        turns = list(range(len(self._fleets)))
        self._random.shuffle(turns)
        return turns

    def _allocate(self, number: int, placed: set[str], state: State) -> set[str]:
        """Give the fleet to the jobs that are furthest behind on their shares of it and not placed yet.
        Return the jobs that run there now. If one finds no room beside those that stay, place all of
        them anew; if it still finds none, others may have the rest."""
        fleet = self._fleets[number]
        chosen = self._choose(number, placed, state)
        if not self._place(chosen, fleet, state):
            self._place(chosen, fleet, state, anew=True)
            self._start_by_share(number, state)
        return {each.job.id for each in state.running.values() if fleet.holds(each, state.cluster)}

    def _choose(self, number: int, others: set[str], state: State) -> list[Job]:
        """Return the first jobs in order that fit beside the jobs that may not be preempted."""
        chosen: list[Job] = []
        fleet, cluster = self._fleets[number], state.cluster
        fixed = [each for each in state.running.values() if not state.may_preempt(each)]
        others = {*others, *(each.job.id for each in fixed)} if fixed else others
        room = fleet.devices - sum(len(each.devices) for each in fixed if fleet.holds(each, cluster))
        for job_id in self._shares.in_order(number) if self._shares else ():
            if not room:
                break
            running = state.running.get(job_id)
            job = running.job if running else state.queue.get(job_id)
            if job and job.gpus <= room and job_id not in others:
                chosen.append(job)
                room -= job.gpus
        return chosen

    def _place(self, chosen: list[Job], fleet: Fleet, state: State, anew: bool = False) -> bool:
        """Preempt all other jobs of the fleet and start the chosen ones, the widest first. Chosen jobs that
        run there already stay; if one finds no room, roll back and return False. With `anew`, place all
        of them anew."""
        draft, cluster, checkpoint = state.draft, state.cluster, state.draft.checkpoint()
        staying = set() if anew else {job.id for job in chosen}
        for running in list(state.running.values()):
            stays = running.job.id in staying or not state.may_preempt(running)
            if not stays and fleet.holds(running, cluster):
                draft.preempt(running.job.id)
        for job in sorted(chosen, key=lambda job: -job.gpus):
            held = state.running.get(job.id)
            if held and fleet.holds(held, cluster):
                continue
            if held:
                draft.preempt(job.id)
            devices = self.options.place(job, cluster, among=fleet.nodes)
            if devices:
                draft.start(job, devices)
            elif not anew:
                draft.rollback(checkpoint)
                return False
        return True

    def _start_by_share(self, number: int, state: State) -> None:
        if self._shares:
            self._start(self._shares.in_order(number), self._fleets[number], state)

    def _start_without_share(self, state: State) -> None:
        """Start the jobs that have no share yet, in arrival order."""
        known = self._shares.rows if self._shares else {}
        new = [job for job in state.waiting if job.id not in known]
        speeds = measure_speeds(new, self._fleets, state)
        for number in self._turns():
            able = [job.id for job, row in zip(new, speeds, strict=True) if row[number] > 0]
            self._start(able, self._fleets[number], state)

    def _start(self, in_order: Iterable[str], fleet: Fleet, state: State) -> None:
        """Start the jobs that wait and fit into the fleet beside those that run there."""
        unplaceable: set[object] = set()  # requests that do not fit
        for job_id in in_order:
            if not state.cluster.idle:
                return
            job = state.queue.get(job_id)
            if job and job.request not in unplaceable:
                devices = self.options.place(job, state.cluster, among=fleet.nodes)
                if devices:
                    state.draft.start(job, devices)
                else:
                    unplaceable.add(job.request)


def _remaining(jobs: Iterable[Job], state: State) -> list[float]:
    """Return the seconds of work that each job has left. The program needs finite numbers, so an unknown
    one counts as the average of the others."""
    left: list[float | None] = []
    for job in jobs:
        running = state.running.get(job.id)
        done = running.work(state.now) if running else state.queue.progress(job.id).work_s
        left.append(None if job.expected_s is None else max(job.expected_s - done, 1.0))
    known = [each for each in left if each is not None]
    average = sum(known) / len(known) if known else ASSUMED_S
    return [average if each is None else each for each in left]
