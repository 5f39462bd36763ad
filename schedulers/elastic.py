"""Jobs that can do with fewer devices or use more: who gets how many, and how to get there.

An elastic policy works out a share for every job, as if devices were coins; here the shares become
moves. Two rules keep that honest on real nodes:

- Who comes first in the policy's order is never kept waiting by who comes later. A share that does
  not fit shrinks to what does; where not even the least fits, later jobs are moved out of the way.
- Whatever no share could use in the end stays with, or goes to, those who can use it.

Where nothing running may be touched (`state.can_preempt` is false) the idle devices alone are
divided, among the waiting jobs alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import heapify, heappop, heapreplace, merge
from operator import itemgetter
from typing import Any

from pydantic import Field

from gpu_flows.schedulers.line import Rank
from gpu_flows.schedulers.model import Device, Job, Running
from gpu_flows.schedulers.placement import PlacementOptions
from gpu_flows.schedulers.placing import offered
from gpu_flows.schedulers.policy import State
from gpu_flows.schedulers.serving import serve


class ElasticOptions(PlacementOptions):
    """What every elastic policy lets people choose."""

    min_gain: float = Field(
        default=0.0,
        ge=0,
        title="Least gain of a resize",
        description="A running job gets more devices only if they make it faster by more than this part "
        "(0.1 is a tenth), since every resize costs a restart.",
    )


class MaybeElasticOptions(ElasticOptions):
    """For policies that are elastic on demand."""

    elastic: bool = Field(
        default=False,
        title="Elastic",
        description="Serve everybody with the fewest devices it can run on, hand the rest out to those "
        "who can use more, and resize running jobs accordingly.",
    )


# -- what there is to divide ---------------------------------------------------------------------


Scaling = tuple[float, tuple[float, ...]]  # a job's speed on one device, and its speedups on more


class Division:
    """The devices that may be divided anew, and the jobs among which.

    Running jobs take part unless they must not be touched, share a device, or hold none at all.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.running = {job_id: each for job_id, each in state.running.items() if _is_movable(state, each)}
        held = (device for each in self.running.values() for device in each.devices)
        self.devices = state.cluster.idle + sum(is_usable(state, device) for device in held)
        self._widest_node = max((len(node.devices) for node in state.cluster), default=0)
        self._scaling: dict[str, Scaling] = {}
        self._scaling_alike: dict[tuple[object, ...], Scaling] = {}

    @cached_property
    def smallest(self) -> int:
        """The fewest devices with which anybody could do anything."""
        waiting = [group.gpus for _, _, _, group in self.state.line.heads()]
        return min([*waiting, *(each.job.least for each in self.running.values())], default=0)

    def in_order(self, rank: Rank, by_ladder: bool = False) -> Iterator[Job]:
        """Running and waiting jobs together, in the order of this rank; with `by_ladder`, of a policy
        that ranks running jobs by their standing alone."""
        now, line, ladder = self.state.now, self.state.line, self.state.ladder
        running: list[tuple[Any, ...]]
        if by_ladder:
            running = [(place, each.job) for place, each in ladder.last_first(now)][::-1]
            running = [entry for entry in running if entry[-1].id in self.running]
        else:
            running = [(rank(each.job, each.progress(now)), each.job) for each in self.running.values()]
            running.sort(key=itemgetter(0))
        waiting = [group.in_order() for _, _, _, group in line.heads()]
        return (entry[-1] for entry in merge(running, *waiting, key=itemgetter(0)))

    def first_served(self, jobs: Iterable[Job], strict: bool = False) -> list[Job]:
        """The jobs that can all have their least at once, each in order that still fits. Strict: the
        first that does not fit ends the row."""
        served: list[Job] = []
        room = self.devices
        for job in jobs:
            least = job.least
            if least <= room and least <= self._most(job):
                served.append(job)
                room -= least
            elif strict:
                break
            if room < self.smallest:
                break
        return served

    def speedups(self, job: Job) -> tuple[float, ...]:
        """[k]: how many times faster the job runs on k devices than on one, up to the most it has a use
        for. On fewer than its least it does not run: 0."""
        return (self._scaling.get(job.id) or self._scale(job))[1]

    def alone(self, job: Job) -> float:
        """The job's speed on one device, measured by what it does on those it asks for."""
        return (self._scaling.get(job.id) or self._scale(job))[0]

    def _scale(self, job: Job) -> Scaling:
        least, most, model = job.least, self._most(job), self._model(job)
        alike = (job.kind, job.gpus, least, most, model)  # jobs of one kind scale alike
        found = self._scaling_alike.get(alike)
        if found is None:
            speed = self.state.speed
            alone = speed(job, model, 1) or speed(job, model, least) / least or 1.0
            rates = [speed(job, model, count) / alone for count in range(least, most + 1)]
            useful = rates.index(max(rates)) + 1 if rates else 0  # beyond it the job gets no faster
            found = self._scaling_alike[alike] = (alone, (0.0,) * least + tuple(rates[:useful]))
        self._scaling[job.id] = found
        return found

    def _most(self, job: Job) -> int:
        """The most devices that the job could be given here."""
        return min(job.most, self.devices if job.may_span_nodes else self._widest_node)

    def _model(self, job: Job) -> str:
        """The model it runs on or, as it waits, the first that it could have."""
        running = self.running.get(job.id)
        if running:
            return running.devices[0].model
        cluster = self.state.cluster
        node = next(cluster.those(cluster.able(job).nodes), None)
        devices = [each.device for each in node.devices] if node else []
        return next((device.model for device in devices if job.accepts(device)), "")


def _is_movable(state: State, running: Running) -> bool:
    if not state.can_preempt or not running.devices:
        return False
    devices = state.cluster.devices
    return all(len(devices[each.id].holders) == 1 for each in running.devices)


def is_usable(state: State, device: Device) -> bool:
    """Whether somebody could start on the device, were it free."""
    node = state.cluster.nodes.get(device.node)
    return node is not None and node.up and state.cluster.devices[device.id].healthy


# -- how many for whom ---------------------------------------------------------------------------

Shares = dict[str, int]  # job id -> devices, in the order in which they are to be served
Rule = Callable[[Division, Sequence[Job]], Shares]


def in_rounds(division: Division, jobs: Sequence[Job]) -> Shares:
    """The least for each of the jobs, then one more for each in order, round after round."""
    shares = {job.id: job.least for job in jobs}
    rest = division.devices - sum(shares.values())
    takers = list(jobs)
    while rest and takers:
        takers = [job for job in takers if shares[job.id] + 1 < len(division.speedups(job))]
        for job in takers[:rest]:
            shares[job.id] += 1
        rest -= min(rest, len(takers))
    return shares


def by_gain(division: Division, jobs: Sequence[Job], devices: int | None = None) -> Shares:
    """The least for each of the jobs, then one more for whoever gains most by it, again and again."""
    shares = {job.id: job.least for job in jobs}
    rest = (division.devices if devices is None else devices) - sum(shares.values())
    steps = [
        (step, place, job) for place, job in enumerate(jobs) if (step := _step(division, job, job.least))
    ]
    heapify(steps)
    while rest > 0 and steps:
        _, place, job = steps[0]
        shares[job.id] += 1
        rest -= 1
        step = _step(division, job, shares[job.id])
        if step:
            heapreplace(steps, (step, place, job))
        else:
            heappop(steps)
    return shares


def _step(division: Division, job: Job, count: int) -> float:
    """What one more device adds to the job's speedup, negative to sort by; 0 if that is nothing."""
    curve = division.speedups(job)
    return min(0.0, round(curve[count] - curve[count + 1], 9)) if count + 1 < len(curve) else 0.0


def serve_elastic(
    state: State,
    options: ElasticOptions,
    rank: Rank,
    rule: Rule = in_rounds,
    *,
    strict: bool = False,
    by_ladder: bool = False,
) -> None:
    """Divide the devices anew: who comes first by this rank runs, and the rule says on how many.

    Shared devices are not divided: there every job gets the number that it asks for.
    """
    if options.sharing == "shared":
        return serve(state, options, strict)
    division = Division(state)
    if division.devices:
        jobs = division.first_served(division.in_order(rank, by_ladder), strict)
        resize(division, options, rule(division, jobs), strict)


# -- how to get there ----------------------------------------------------------------------------


def resize(
    division: Division, options: ElasticOptions, shares: Mapping[str, int], strict: bool = False
) -> None:
    """Give every job its share, in the order of the shares; who has none waits. A job whose share is
    what it holds stays where it is. Strict: behind a job that does not fit nobody starts."""
    _Resize(division, options, shares).carry_out(strict)


class _Resize:
    def __init__(self, division: Division, options: ElasticOptions, shares: Mapping[str, int]) -> None:
        self.division, self.options = division, options
        self.state, self.cluster, self.draft = division.state, division.state.cluster, division.state.draft
        self.before = division.running
        self.shares = self._worth_it(shares)
        self.jobs = [self._job(job_id) for job_id, share in self.shares.items() if share]

    def carry_out(self, strict: bool) -> None:
        self._take_back()
        self._serve(strict)
        if self.cluster.idle:
            self._return_unused()
        if not strict:
            self._start_others()
        if self.state.can_preempt:
            self._use_up()

    def _job(self, job_id: str) -> Job:
        running = self.before.get(job_id)
        job = running.job if running else self.state.line.get(job_id)
        if job is None:
            raise ValueError(f"job {job_id} has a share but neither waits nor may be resized")
        return job

    def _worth_it(self, shares: Mapping[str, int]) -> Shares:
        """The shares without growth that does not pay; as much is left to those who were to shrink for it."""
        kept = dict(shares)
        spare = 0
        for job_id, running in self.before.items():
            share, held = kept.get(job_id, 0), len(running.devices)
            if share > held and not self._pays(running.job, held, share):
                kept[job_id] = held
                spare += share - held
        for job_id, share in kept.items():
            held = len(self.before[job_id].devices) if job_id in self.before else 0
            if spare and 0 < share < held:
                kept[job_id] = min(held, share + spare)
                spare -= kept[job_id] - share
        return kept

    def _pays(self, job: Job, before: int, after: int) -> bool:
        speedups = self.division.speedups(job)
        last = len(speedups) - 1
        return speedups[min(after, last)] > speedups[min(before, last)] * (1 + self.options.min_gain) + 1e-9

    def _take_back(self) -> None:
        """Whoever holds more than its share lets go of the rest, keeping devices that are close together."""
        for job_id, running in self.before.items():
            share = self.shares.get(job_id, 0)
            if share >= len(running.devices):
                continue
            self.draft.preempt(job_id)
            crowd = Counter(device.node for device in running.devices)
            usable = [device for device in running.devices if is_usable(self.state, device)]
            usable.sort(key=lambda device: -crowd[device.node])
            kept = tuple(usable[:share])
            if share and self.options.may_have(running.job, kept, self.cluster):
                self.draft.start(running.job, kept)

    def _serve(self, strict: bool) -> None:
        """Start and grow in order."""
        hopeless: set[object] = set()  # what is asked for in vain by one is so by all behind it
        for place, job in enumerate(self.jobs):
            running = self.state.running.get(job.id)
            if running:
                if len(running.devices) < self.shares[job.id]:
                    self._grow(running, self.shares[job.id])
            elif job.ask in hopeless or (strict and hopeless and job.id not in self.before):
                continue
            elif not self._start(job) and not self._make_room(job, self.jobs[place + 1 :]):
                hopeless.add(job.ask)

    def _start(self, job: Job) -> bool:
        """Start the job on its share, or on as many fewer devices as there are for it."""
        share = self.shares.get(job.id) or job.gpus
        for count in range(min(share, self.cluster.idle), job.least - 1, -1):
            devices = self._find(job, count)
            if devices:
                self.draft.start(job, devices)
                return True
        return False

    def _grow(self, running: Running, share: int) -> None:
        """Give the job more devices, as many up to its share as there are for it."""
        job, held = running.job, len(running.devices)
        if not self._may_grow(running):
            return
        mark = self.draft.mark
        self.draft.preempt(job.id)
        for count in range(min(share, self.cluster.idle), held, -1):
            devices = self._find(job, count)
            if devices and self._pays(job, held, count):
                self.draft.start(job, devices)
                return
        self.draft.undo(mark)

    def _may_grow(self, running: Running) -> bool:
        """Whether a try is worth its while."""
        cluster, job = self.cluster, running.job
        if job.may_span_nodes:
            return cluster.idle > 0
        beside, elsewhere = cluster.with_idle(1), cluster.with_idle(len(running.devices) + 1)
        return bool(cluster.able(job).nodes & (beside & cluster.mask(running.nodes) | elsewhere))

    def _find(self, job: Job, count: int) -> tuple[Device, ...]:
        """So many devices for a job that holds none: those it had, others beside them, or any."""
        former = self.before.get(job.id)
        if former:
            if len(former.devices) == count and self.options.may_have(job, former.devices, self.cluster):
                return former.devices
            near = self._near(job, count, self.cluster.mask(former.nodes))
            if near:
                return near
        return self.options.place(job, self.cluster, count)

    def _near(self, job: Job, count: int, home: int) -> tuple[Device, ...]:
        """On the nodes where it was; if it may span nodes and they are too full, on others as well."""
        cluster, options = self.cluster, self.options
        found = options.place(job, cluster, count, home)
        if not found and job.may_span_nodes:
            able = cluster.able(job).nodes & cluster.with_idle(1) & home
            own = [device for node in cluster.those(able) for device in offered(node, job, count, options)]
            rest = options.place(job, cluster, count - len(own), ~home) if own else ()
            found = (*own, *rest) if rest else ()
        return found

    def _make_room(self, job: Job, later: Sequence[Job]) -> bool:
        """Start the job on devices of those who come after it; where they go is seen when it is their
        turn."""
        able = self.cluster.able(job).nodes
        freed: Counter[str] = Counter()  # by node; under "" in all
        holders: dict[str, list[Running]] = {}
        for other in reversed(later):
            running = self.state.running.get(other.id)
            if running is None:
                continue
            useful = [
                device.node
                for device in running.devices
                if is_usable(self.state, device) and job.accepts(device)
            ]
            for name, count in (*Counter(useful).items(), ("", len(useful))):
                freed[name] += count
                holders.setdefault(name, []).append(running)
                if name:
                    node = self.cluster.nodes[name]
                    enough = able & node.bit and node.idle + freed[name] >= job.least
                else:
                    enough = job.may_span_nodes and self.cluster.idle + freed[name] >= job.least
                if enough and self._replace(holders[name], job):
                    return True
        return False

    def _replace(self, others: Sequence[Running], job: Job) -> bool:
        mark = self.draft.mark
        for running in others:
            self.draft.preempt(running.job.id)
        if self._start(job):
            return True
        self.draft.undo(mark)
        return False

    def _return_unused(self) -> None:
        """What a job let go and nobody took it keeps, as if nothing had been."""
        for job_id, former in self.before.items():
            running = self.state.running.get(job_id)
            if running is former or (running and not set(running.devices) < set(former.devices)):
                continue
            mark = self.draft.mark
            if running:
                self.draft.preempt(job_id)
            if not self.options.may_have(former.job, former.devices, self.cluster):
                self.draft.undo(mark)
            else:
                self.draft.start(former.job, former.devices)

    def _start_others(self) -> None:
        """Start whoever fits into what the shares left over."""
        if not self.cluster.idle:
            return
        heads = self.state.line.heads(self.cluster.idle)
        while heads and self.cluster.idle:
            _, _, job, group = heads[0]
            following = group.head() if self._start(job) else None
            if following:
                heapreplace(heads, (*following, group))
            else:
                heappop(heads)

    def _use_up(self) -> None:
        """Let jobs outgrow their shares, in order, where devices would be idle."""
        for job in self.jobs:
            if not self.cluster.idle:
                return
            running = self.state.running.get(job.id)
            most = len(self.division.speedups(job)) - 1
            if running and len(running.devices) < most:
                self._grow(running, most)
