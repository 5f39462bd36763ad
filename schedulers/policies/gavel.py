"""Gavel: shares of time on each GPU model by a linear program, kept in rounds."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Field

from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Job, Plan, Running
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policy import Policy, State

if TYPE_CHECKING:
    from gpu_flows.schedulers.policy_support.gavel_lp import Ledger

ASSUMED_S = 3600.0  # what jobs have left to do, if nobody knows of any


class GavelOptions(PlacementOptions):
    objective: Literal["max_min", "min_makespan"] = Field(
        default="max_min",
        title="Objective",
        description="Help whoever gains least (max-min fairness, LAS), or be done with all jobs soonest.",
    )
    aware: bool = Field(
        default=True,
        title="Heterogeneity-aware",
        description="Look at how fast a job runs on each GPU model; otherwise all models count as equal.",
    )
    round_s: float = Field(
        default=360,
        gt=0,
        title="Round (s)",
        description="Jobs start, stop and move only between rounds of this length (or less, if all end).",
    )
    renew_s: float = Field(
        default=1920,
        ge=0,
        title="Renew shares after (s)",
        description="Shares follow arrivals and ends no sooner than this; until then newcomers wait.",
    )
    seed: int = Field(
        default=5,
        title="Seed",
        description="Of the order in which GPU models choose jobs, if the policy is not heterogeneity-aware.",
    )
    sharing: Literal["exclusive"] = Field(
        default="exclusive",
        title="Sharing",
        description="A device serves one job at a time.",
    )


class Fleet(NamedTuple):
    """All nodes with the same GPU models. A job is in one fleet at a time, so all of it has one pace."""

    models: tuple[str, ...]
    nodes: int
    devices: int


class Gavel(Policy):
    """Each round, every GPU model serves the jobs that had the least of their share of time on it.

    Narayanan et al., OSDI 2020. A linear program finds each job's share of time on each model, such
    that the job that gains least gains the most (`max_min`; one of priority 2 is owed twice as much
    as one of priority 1), or that all are done soonest (`min_makespan`, by expected durations). A job
    that waits falls behind on its share and so comes first soon; but a stream of ever new jobs may
    starve a wide one. Devices may idle until a round ends, and beside newcomers that have no share
    yet; with `renew_s: 0` those wait for the next round only. Where jobs cannot be preempted, they
    start by the size of their shares.
    """

    name = "gavel"
    Options = GavelOptions
    options: GavelOptions
    preempts = True
    moves_running = True
    needs = ("speed on each GPU model",)
    optimizes = "fair shares of unlike GPUs, or makespan"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._random = random.Random(self.options.seed)
        self._seen: list[Fleet] = []
        self._fleets: list[Fleet] = []  # those that shares are about
        self._fastest_first: list[int] = []
        self._ledger: Ledger | None = None
        self._renewed = 0.0  # 0: not yet; so shares made at time zero hold for a round, as in Gavel itself
        self._began = 0.0  # the round
        self._ends = 0.0

    def plan(self, state: State) -> Plan:
        return self._next_round(state) if state.can_preempt else self._start_what_fits(state)

    def _next_round(self, state: State) -> Plan:
        running = [each for each in state.running.values() if each.devices]
        if running and state.now < self._ends:
            return state.draft.plan(self._ends)
        if not running and not len(state.queue):
            return state.draft.plan()
        self._look_around(state.cluster)
        self._note(running, state)
        self._renew(state)
        placed: set[str] = set()
        for number in self._turns():
            placed |= self._deal(number, placed, state)
        self._began, self._ends = state.now, state.now + self.options.round_s
        return state.draft.plan(self._ends if state.running else None)

    def _start_what_fits(self, state: State) -> Plan:
        """Nothing can be stopped: the jobs with the largest shares of a fleet start there, while there is
        room. What is left goes to newcomers."""
        if state.cluster.idle and len(state.queue):
            self._look_around(state.cluster)
            self._renew(state)
            for number in self._turns():
                self._start_by_share(number, state)
            if state.cluster.idle:
                self._start_newcomers(state)
        return state.draft.plan()

    # -- shares -------------------------------------------------------------------------------

    def _look_around(self, cluster: Cluster) -> None:
        """Where devices came or went, all shares are void."""
        fleets = _fleets(cluster)
        if fleets != self._seen:
            self._seen, self._fleets, self._fastest_first, self._ledger = fleets, [], [], None

    def _note(self, running: Iterable[Running], state: State) -> None:
        """The round is over: what those that saw its end had of it."""
        seconds = round(state.now - self._began, 3)  # equal histories must stay equal
        for each in running:
            for number, fleet in enumerate(self._fleets):
                if self._ledger and _is_in(fleet, each, state.cluster):
                    self._ledger.note(each.job.id, number, seconds)

    def _renew(self, state: State) -> None:
        """New shares, if it is time for that, and if jobs have come or gone."""
        before = self._ledger
        running = [each.job for each in state.running.values() if each.devices]
        due = not running or not self._renewed or state.now - self._renewed >= self.options.renew_s
        if (before and not due) or not self._seen:
            return
        jobs = sorted([*state.waiting, *running], key=lambda job: job.order)
        if before and before.rows.keys() == {job.id for job in jobs}:
            return
        fleets, speeds = self._seen, _speeds(jobs, self._seen, state)
        homeless = [job for job, row in zip(jobs, speeds, strict=True) if all(map(math.isnan, row))]
        if homeless and any(_speed(job, _united(fleets), state) > 0 for job in homeless):
            fleets = [_united(fleets)]  # for as long as there is a job too wide for each of them
            speeds = _speeds(jobs, fleets, state)
        same_fleets, self._fleets = fleets == self._fleets, fleets
        self._ledger = self._shares(jobs, speeds, state)
        if before and same_fleets:
            self._ledger.carry_over(before, state.now - self._renewed)
        self._renewed = state.now

    def _shares(self, jobs: list[Job], speeds: list[list[float]], state: State) -> Ledger:
        import numpy as np  # takes longer to load than all the rest of us

        from gpu_flows.schedulers.policy_support.gavel_lp import Ledger, fairest_shares

        room = np.array([float(fleet.devices) for fleet in self._fleets])
        width = np.array([float(job.gpus) for job in jobs])
        speed = np.array(speeds).reshape(len(jobs), len(room))
        worth = np.nan_to_num(speed) if self.options.aware else 1.0 - np.isnan(speed)
        if self.options.objective == "max_min":
            equal_share = worth @ room / room.sum()
            measure = np.array([max(job.priority, 1) for job in jobs]) * equal_share / width
        else:
            measure = np.array(_left(jobs, state))
        able = worth.any(axis=1)
        share = np.zeros(worth.shape)
        if able.any():
            share[able] = fairest_shares(worth[able] / measure[able, None], width[able], room)
        share[~(speed > 0)] = 0  # no job is sent where it would stand still
        self._fastest_first = np.argsort(-worth.sum(axis=0), kind="stable").tolist()
        return Ledger({job.id: job.queue_priority for job in jobs}, share, self.options.round_s / 2)

    # -- devices ------------------------------------------------------------------------------

    def _turns(self) -> list[int]:
        """In which order the fleets choose: the fastest first, or at random if we do not look at speeds."""
        if self.options.aware:
            return self._fastest_first
        turns = list(range(len(self._fleets)))
        self._random.shuffle(turns)
        return turns

    def _deal(self, number: int, placed: set[str], state: State) -> set[str]:
        """Give the fleet to those that are most behind on their shares of it and not placed yet. If one
        finds no room beside those that stay, all move; if it still does not, others may have the rest."""
        fleet = self._fleets[number]
        chosen = self._choose(number, placed, state)
        if not self._seat(chosen, fleet, state):
            self._seat(chosen, fleet, state, anew=True)
            self._start_by_share(number, state)
        running = state.running.values()
        return {each.job.id for each in running if _is_in(fleet, each, state.cluster)}

    def _choose(self, number: int, others: set[str], state: State) -> list[Job]:
        """The first in order, as many as there are devices for beside those who must not be stopped."""
        chosen: list[Job] = []
        fleet, cluster = self._fleets[number], state.cluster
        fixed = [each for each in state.running.values() if not state.may_preempt(each)]
        others = {*others, *(each.job.id for each in fixed)} if fixed else others
        room = fleet.devices - sum(len(each.devices) for each in fixed if _is_in(fleet, each, cluster))
        for job_id in self._ledger.in_order(number) if self._ledger else ():
            if not room:
                break
            running = state.running.get(job_id)
            job = running.job if running else state.queue.get(job_id)
            if job and job.gpus <= room and job_id not in others:
                chosen.append(job)
                room -= job.gpus
        return chosen

    def _seat(self, chosen: list[Job], fleet: Fleet, state: State, anew: bool = False) -> bool:
        """Stop all others in the fleet and start the chosen, the widest first. Those that run there already
        stay where they are, and if one finds no room, nothing moves. Or all are seated anew."""
        draft, cluster, mark = state.draft, state.cluster, state.draft.mark
        staying = set() if anew else {job.id for job in chosen}
        for running in list(state.running.values()):
            stays = running.job.id in staying or not state.may_preempt(running)
            if not stays and _is_in(fleet, running, cluster):
                draft.preempt(running.job.id)
        for job in sorted(chosen, key=lambda job: -job.gpus):
            held = state.running.get(job.id)
            if held and _is_in(fleet, held, cluster):
                continue
            if held:
                draft.preempt(job.id)
            devices = self.options.place(job, cluster, among=fleet.nodes)
            if devices:
                draft.start(job, devices)
            elif not anew:
                draft.undo(mark)
                return False
        return True

    def _start_by_share(self, number: int, state: State) -> None:
        if self._ledger:
            self._start(self._ledger.in_order(number), self._fleets[number], state)

    def _start_newcomers(self, state: State) -> None:
        """Start those that have no share yet, as they came."""
        known = self._ledger.rows if self._ledger else {}
        newcomers = [job for job in state.waiting if job.id not in known]
        speeds = _speeds(newcomers, self._fleets, state)
        for number in self._turns():
            able = [job.id for job, row in zip(newcomers, speeds, strict=True) if row[number] > 0]
            self._start(able, self._fleets[number], state)

    def _start(self, in_order: Iterable[str], fleet: Fleet, state: State) -> None:
        """Start those that still wait and fit into the fleet beside those that run there."""
        misfits: set[object] = set()
        for job_id in in_order:
            if not state.cluster.idle:
                return
            job = state.queue.get(job_id)
            if job and job.request not in misfits:
                devices = self.options.place(job, state.cluster, among=fleet.nodes)
                if devices:
                    state.draft.start(job, devices)
                else:
                    misfits.add(job.request)


def _fleets(cluster: Cluster) -> list[Fleet]:
    nodes: dict[tuple[str, ...], int] = {}
    devices: dict[tuple[str, ...], int] = {}
    for node in cluster:
        models = [each.device.model for each in node.devices if each.healthy]
        if models:
            make = tuple(sorted(set(models)))
            nodes[make] = nodes.get(make, 0) | node.bit
            devices[make] = devices.get(make, 0) + len(models)
    return [Fleet(make, nodes[make], devices[make]) for make in nodes]


def _united(fleets: list[Fleet]) -> Fleet:
    models = sorted({model for fleet in fleets for model in fleet.models})
    nodes = sum(fleet.nodes for fleet in fleets)  # no two have a node in common
    return Fleet(tuple(models), nodes, sum(fleet.devices for fleet in fleets))


def _is_in(fleet: Fleet, running: Running, cluster: Cluster) -> bool:
    node = cluster.nodes.get(running.devices[0].node) if running.devices else None
    return node is not None and bool(node.bit & fleet.nodes)


def _speeds(jobs: Iterable[Job], fleets: list[Fleet], state: State) -> list[list[float]]:
    """How fast each job is in each fleet; not a number where it has no place."""
    known: dict[object, list[float]] = {}  # jobs of one kind are alike in this
    rows = []
    for job in jobs:
        key = (job.kind, job.request)
        if key not in known:
            known[key] = [_speed(job, fleet, state) for fleet in fleets]
        rows.append(known[key])
    return rows


def _speed(job: Job, fleet: Fleet, state: State) -> float:
    """Where there are several models a job is as fast as on the slowest that it accepts."""
    nodes = list(state.cluster.those(state.cluster.able(job).nodes & fleet.nodes))
    if not nodes or sum(len(node.devices) for node in nodes) < job.gpus:
        return math.nan
    models: set[str] = set()
    for node in nodes:
        models |= {each.device.model for each in node.devices if job.accepts(each.device)}
        if len(models) == len(fleet.models):
            break
    return min(state.speed(job, model, job.gpus) for model in models)


def _left(jobs: Iterable[Job], state: State) -> list[float]:
    """How many seconds of work each job has left; where nobody knows, as many as others on average."""
    left: list[float | None] = []
    for job in jobs:
        running = state.running.get(job.id)
        done = running.work(state.now) if running else state.queue.progress(job.id).work_s
        left.append(None if job.expected_s is None else max(job.expected_s - done, 1.0))
    known = [each for each in left if each is not None]
    average = sum(known) / len(known) if known else ASSUMED_S
    return [average if each is None else each for each in left]
