"""Runs the recorded workload in the simulator, under the policies that really decided or another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from gpu_flows.analytics.whatif.costs import PoolCosts
from gpu_flows.analytics.whatif.expectations import find_expectations
from gpu_flows.analytics.whatif.record import PolicyPeriod, PoolRecord
from gpu_flows.analytics.whatif.workload import Workload, progress_at
from gpu_flows.schedulers.mirror import Changes, Held
from gpu_flows.schedulers.model import Node, all_devices
from gpu_flows.schedulers.network.tables import REALISTIC, load_network
from gpu_flows.schedulers.policy import Policy, make_policy
from gpu_flows.schedulers.prediction.gavel_pairs import gavel_slowdown
from gpu_flows.schedulers.protection import Protection
from gpu_flows.schedulers.simulation.conditions import Conditions
from gpu_flows.schedulers.simulation.estimates import Stated
from gpu_flows.schedulers.simulation.outcome import Simulation
from gpu_flows.schedulers.simulation.timed_run import Stopping, TimedRun

MakePolicy = Callable[[], Policy]


def policies_in_force(record: PoolRecord) -> list[PolicyPeriod]:
    """Return the policies that decided in the period: the one at its beginning, and those after it."""
    before = [each for each in record.policies if each.since <= record.began]
    after = [each for each in record.policies if record.began < each.since <= record.until]
    return [*before[-1:], *after] or list(record.policies[:1])


def present_nodes(record: PoolRecord) -> list[Node]:
    """Return the nodes with the devices that could be used at any time of the period."""

    def was_there(device_id: str) -> bool:
        spans = record.available.get(device_id, ())
        return any(since <= record.until and until > record.began for since, until in spans)

    kept = [
        replace(node, devices=tuple(device for device in node.devices if was_there(device.id)))
        for node in record.nodes
    ]
    return [node for node in kept if node.devices]


def run_workload(
    record: PoolRecord,
    workload: Workload,
    costs: PoolCosts,
    nodes: Sequence[Node],
    make: MakePolicy | None = None,
) -> Simulation:
    """Run the workload on these nodes. Without a policy, the recorded ones decide, each in its time. Raises
    PolicyError if one of them cannot be made here."""
    periods = [] if make else policies_in_force(record)
    policy = make() if make else _make_recorded(periods[0])
    run = TimedRun(
        workload.arrivals,
        nodes,
        policy,
        Conditions(restart_s=costs.restart.seconds + costs.lost.seconds, migration_s=costs.migration.seconds),
        Stated(),
        begin=_find_beginning(record, workload, costs, nodes),
        stopping=Stopping(costs.stop.seconds, costs.report.seconds),
        told=find_expectations(record.jobs, costs),
    )
    for period in periods[1:]:
        run.at(period.since, partial(run.swap, _make_recorded(period)))
    for job_id, time in workload.cancelled.items():
        run.at(time, partial(run.cancel, job_id))
    if record.is_live:  # live policies are told of the network and of jobs on one device like this
        run.engine.set_network(load_network(REALISTIC).slowdown)
        run.engine.set_slowdown(gavel_slowdown)
    _protect(run, record)
    _plan_outages(run, record, nodes)
    for _ in run.events():
        pass
    return run.simulation


def _make_recorded(period: PolicyPeriod) -> Policy:
    return make_policy(period.name, period.options)


def _find_beginning(
    record: PoolRecord, workload: Workload, costs: PoolCosts, nodes: Sequence[Node]
) -> Changes | None:
    """Return the jobs that waited or ran already when the first job that counts was submitted."""
    began, devices = record.began, {device.id: device for device in all_devices(nodes)}
    beginning = Changes(began, None)
    for arrival in workload.arrivals:
        each = workload.jobs[arrival.job.id]
        if arrival.enters >= began or each.counts:
            continue
        before = progress_at(each, began, costs)
        now = next((a for a in each.attempts if a.started <= began < a.until), None)
        if now and all(device_id in devices for device_id in now.devices):
            held = tuple(devices[device_id] for device_id in now.devices)
            beginning.running.append(Held(each.job, held, now.started, now.number, before))
        else:
            beginning.waiting.append((each.job, before))
    return beginning if beginning.waiting or beginning.running else None


def _protect(run: TimedRun, record: PoolRecord) -> None:
    """Protect jobs as the pool did; as it does by default where that is not recorded."""

    def change(protection: Protection, _: float) -> None:
        run.engine.set_protection(protection)

    before = [protection for time, protection in record.protections if time <= record.began]
    first = record.protections[0][1] if record.protections else Protection()
    run.engine.set_protection(before[-1] if before else first)
    for time, protection in record.protections:
        if record.began < time <= record.until:
            run.at(time, partial(change, protection))


def _plan_outages(run: TimedRun, record: PoolRecord, nodes: Sequence[Node]) -> None:
    """Let the devices of the pool be away when they were. After the period they stay as they were."""

    def change(device_id: str, is_healthy: bool, _: float) -> None:
        run.engine.set_health(device_id, is_healthy, "" if is_healthy else "it was not available then")

    began, until = record.began, record.until
    for device in all_devices(nodes):
        if device.id not in record.available:
            continue
        spans = record.available[device.id]
        if not any(since <= began < end for since, end in spans):
            change(device.id, False, began)
        for since, end in spans:
            if began < since <= until:
                run.at(since, partial(change, device.id, True))
            if began < end < until:
                run.at(end, partial(change, device.id, False))
