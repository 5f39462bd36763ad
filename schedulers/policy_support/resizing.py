"""From shares to moves: elastic jobs get the numbers of devices that a policy computed for them.

Two rules hold on real nodes, where not every share fits:

- A job never waits for a later one in the policy's order. A share that does not fit shrinks to what
  does; if not even the least fits, later jobs are preempted and get other devices.
- Devices that no share could use stay with the jobs that held them, or go to jobs that can use them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from gpu_flows.schedulers.model import Device, Job, Running
from gpu_flows.schedulers.placement.base import available_devices
from gpu_flows.schedulers.placement.linked import choose_linked
from gpu_flows.schedulers.policy import State
from gpu_flows.schedulers.policy_support.elastic import (
    Division,
    ElasticOptions,
    Rule,
    Shares,
    in_rounds,
    is_usable,
)
from gpu_flows.schedulers.policy_support.starting import start_in_order, start_in_order_on


def run_elastic(
    state: State,
    options: ElasticOptions,
    rule: Rule = in_rounds,
    *,
    strict: bool = False,
    by_running_rank: bool = False,
) -> None:
    """Divide the devices anew: the first jobs in order run, and the rule decides on how many devices.

    Shared devices are not divided: every job gets the number that it asks for.
    """
    if options.sharing == "shared":
        return start_in_order(state, options, strict)
    division = Division(state)
    if division.devices:
        jobs = division.select(division.in_order(by_running_rank), strict)
        resize(division, options, rule(division, jobs), strict)


def resize(
    division: Division, options: ElasticOptions, shares: Mapping[str, int], strict: bool = False
) -> None:
    """Give every job its share, in the order of the shares. A job without a share waits; a job whose share
    is what it holds stays where it is. Strict: no job starts behind one that does not fit."""
    _Resize(division, options, shares).carry_out(strict)


class _Resize:
    def __init__(self, division: Division, options: ElasticOptions, shares: Mapping[str, int]) -> None:
        self.division, self.options = division, options
        self.state, self.cluster, self.draft = division.state, division.state.cluster, division.state.draft
        self.before = division.running
        self.shares = self._without_small_gains(shares)
        self.jobs = [self._job(job_id) for job_id, share in self.shares.items() if share]

    def carry_out(self, strict: bool) -> None:
        self._shrink()
        self._start_and_grow(strict)
        if self.cluster.idle:
            self._return_unused()
        if not strict:
            start_in_order_on(self.state, self._find_share, self.options)
        if self.state.can_preempt:
            self._use_idle()

    def _job(self, job_id: str) -> Job:
        running = self.before.get(job_id)
        job = running.job if running else self.state.queue.get(job_id)
        if job is None:
            raise ValueError(f"job {job_id} has a share but neither waits nor may be resized")
        return job

    def _without_small_gains(self, shares: Mapping[str, int]) -> Shares:
        """Return the shares without growth that gains too little. Jobs to shrink for it keep more."""
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

    def _shrink(self) -> None:
        """Take from each job the devices beyond its share, and leave it those that are close together."""
        for job_id, running in self.before.items():
            share = self.shares.get(job_id, 0)
            if share >= len(running.devices):
                continue
            self.draft.preempt(job_id)
            usable = [device for device in running.devices if is_usable(self.state, device)]
            usable.sort(key=lambda device: -running.by_node[device.node])
            kept = choose_linked(usable[:share], {device.id for device in usable}, self.cluster)
            if share and self.options.are_available(running.job, kept, self.cluster):
                self.draft.start(running.job, kept)

    def _start_and_grow(self, strict: bool) -> None:
        """Start waiting jobs and grow running ones, in order."""
        unplaceable: set[object] = set()  # requests: if one job does not fit, no later one like it does
        for index, job in enumerate(self.jobs):
            running = self.state.running.get(job.id)
            if running:
                if len(running.devices) < self.shares[job.id]:
                    self._grow(running, self.shares[job.id])
            elif job.request in unplaceable or (strict and unplaceable and job.id not in self.before):
                continue
            elif not self._start(job) and not self._make_room(job, self.jobs[index + 1 :]):
                unplaceable.add(job.request)

    def _start(self, job: Job) -> bool:
        devices = self._find_share(job)
        if devices:
            self.draft.start(job, devices)
        return bool(devices)

    def _find_share(self, job: Job) -> tuple[Device, ...]:
        """Return as many devices as the job's share, or as many fewer as there are."""
        share = self.shares.get(job.id) or job.gpus
        counts = range(min(share, self.cluster.idle), job.least - 1, -1)
        return next(filter(None, (self._find(job, count) for count in counts)), ())

    def _grow(self, running: Running, share: int) -> None:
        """Give the job more devices, up to its share."""
        job, held = running.job, len(running.devices)
        if not self._may_grow(running):
            return
        checkpoint = self.draft.checkpoint()
        self.draft.preempt(job.id)
        for count in range(min(share, self.cluster.idle), held, -1):
            devices = self._find(job, count)
            if devices and self._pays(job, held, count):
                self.draft.start(job, devices)
                return
        self.draft.rollback(checkpoint)

    def _may_grow(self, running: Running) -> bool:
        """Return whether there may be more devices for the job. It is a quick check before the real one."""
        cluster, job = self.cluster, running.job
        if job.may_span_nodes:
            return cluster.idle > 0
        beside, elsewhere = cluster.with_idle(1), cluster.with_idle(len(running.devices) + 1)
        return bool(cluster.eligible(job).nodes & (beside & cluster.node_set(running.nodes) | elsewhere))

    def _find(self, job: Job, count: int) -> tuple[Device, ...]:
        """Return devices for a job that holds none: those it had, others near them, or any."""
        previous = self.before.get(job.id)
        if previous:
            if len(previous.devices) == count and self.options.are_available(
                job, previous.devices, self.cluster
            ):
                return previous.devices
            near = self._near(job, count, self.cluster.node_set(previous.nodes))
            if near:
                return near
        return self.options.place(job, self.cluster, count)

    def _near(self, job: Job, count: int, home: int) -> tuple[Device, ...]:
        """Return devices on the nodes where the job was; if they are too full and it may span nodes, also
        on others."""
        cluster, options = self.cluster, self.options
        found = options.place(job, cluster, count, home)
        if not found and job.may_span_nodes:
            able = cluster.eligible(job).nodes & cluster.with_idle(1) & home
            own = [
                device
                for node in cluster.nodes_in(able)
                for device in available_devices(node, job, count, options)
            ]
            rest = options.place(job, cluster, count - len(own), ~home) if own else ()
            found = (*own, *rest) if rest else ()
        return found

    def _make_room(self, job: Job, later: Sequence[Job]) -> bool:
        """Start the job on devices of later jobs. These get other devices when it is their turn."""
        able = self.cluster.eligible(job).nodes
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
        checkpoint = self.draft.checkpoint()
        for running in others:
            self.draft.preempt(running.job.id)
        if self._start(job):
            return True
        self.draft.rollback(checkpoint)
        return False

    def _return_unused(self) -> None:
        """Give jobs back the devices that were taken from them and that no other job took."""
        for job_id, previous in self.before.items():
            running = self.state.running.get(job_id)
            if running is previous or (running and not set(running.devices) < set(previous.devices)):
                continue
            checkpoint = self.draft.checkpoint()
            if running:
                self.draft.preempt(job_id)
            if not self.options.are_available(previous.job, previous.devices, self.cluster):
                self.draft.rollback(checkpoint)
            else:
                self.draft.start(previous.job, previous.devices)

    def _use_idle(self) -> None:
        """Let jobs grow beyond their shares, in order, where devices would be idle."""
        for job in self.jobs:
            if not self.cluster.idle:
                return
            running = self.state.running.get(job.id)
            most = len(self.division.speedups(job)) - 1
            if running and len(running.devices) < most:
                self._grow(running, most)
