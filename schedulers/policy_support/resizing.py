"""From shares to moves: how elastic jobs get the devices that a policy has in mind for them.

Two rules keep that honest on real nodes:

- Who comes first in the policy's order is never kept waiting by who comes later. A share that does
  not fit shrinks to what does; where not even the least fits, later jobs are moved out of the way.
- Whatever no share could use in the end stays with, or goes to, those who can use it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from gpu_flows.schedulers.model import Device, Job, Running
from gpu_flows.schedulers.placement.base import offered
from gpu_flows.schedulers.policy import State
from gpu_flows.schedulers.policy_support.elastic import (
    Division,
    ElasticOptions,
    Rule,
    Shares,
    in_rounds,
    is_usable,
)
from gpu_flows.schedulers.policy_support.starting import serve, serve_at
from gpu_flows.schedulers.waiting_queue import Rank


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
        job = running.job if running else self.state.queue.get(job_id)
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
            elif job.request in hopeless or (strict and hopeless and job.id not in self.before):
                continue
            elif not self._start(job) and not self._make_room(job, self.jobs[place + 1 :]):
                hopeless.add(job.request)

    def _start(self, job: Job) -> bool:
        devices = self._sized(job)
        if devices:
            self.draft.start(job, devices)
        return bool(devices)

    def _sized(self, job: Job) -> tuple[Device, ...]:
        """As many devices as its share, or as many fewer as there are for it."""
        share = self.shares.get(job.id) or job.gpus
        counts = range(min(share, self.cluster.idle), job.least - 1, -1)
        return next(filter(None, (self._find(job, count) for count in counts)), ())

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
        previous = self.before.get(job.id)
        if previous:
            if len(previous.devices) == count and self.options.may_have(job, previous.devices, self.cluster):
                return previous.devices
            near = self._near(job, count, self.cluster.mask(previous.nodes))
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
        for job_id, previous in self.before.items():
            running = self.state.running.get(job_id)
            if running is previous or (running and not set(running.devices) < set(previous.devices)):
                continue
            mark = self.draft.mark
            if running:
                self.draft.preempt(job_id)
            if not self.options.may_have(previous.job, previous.devices, self.cluster):
                self.draft.undo(mark)
            else:
                self.draft.start(previous.job, previous.devices)

    def _start_others(self) -> None:
        """Start whoever fits into what the shares left over."""
        serve_at(self.state, self._sized, self.options)

    def _use_up(self) -> None:
        """Let jobs outgrow their shares, in order, where devices would be idle."""
        for job in self.jobs:
            if not self.cluster.idle:
                return
            running = self.state.running.get(job.id)
            most = len(self.division.speedups(job)) - 1
            if running and len(running.devices) < most:
                self._grow(running, most)
