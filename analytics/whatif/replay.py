"""Replays a period of a pool: as it was, and under every choice that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from gpu_flows.analytics.whatif import outcomes
from gpu_flows.analytics.whatif.caveats import list_caveats
from gpu_flows.analytics.whatif.clusters import ChosenCluster, change_gpus, rename_devices
from gpu_flows.analytics.whatif.costs import measure_costs
from gpu_flows.analytics.whatif.outcomes import Figures, JobOutcome, UserEffect
from gpu_flows.analytics.whatif.record import NoRecord, PoolRecord, read_record
from gpu_flows.analytics.whatif.running import MakePolicy, policies_in_force, present_nodes, run_workload
from gpu_flows.analytics.whatif.workload import build_workload
from gpu_flows.schedulers.model import Node, all_devices
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.simulation.outcome import Simulation
from gpu_flows.schedulers.workload import forget_other_nodes

RECORDED = "as recorded"


@dataclass(frozen=True, slots=True)
class Choice:
    """A policy to replay the period under. `label` is what it is shown as."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Reality, or one replay."""

    label: str
    devices: int
    figures: Figures
    change: Mapping[str, float | None]  # of each figure, against the replay of what really ran
    users: Sequence[UserEffect]
    jobs: Sequence[JobOutcome] = field(repr=False)
    policy_error: str = ""  # why FIFO decided instead

    @property
    def unfinished(self) -> list[JobOutcome]:
        return [job for job in self.jobs if job.ended is None]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What happened, and what would have happened."""

    pool: str
    since: float
    until: float
    recorded: Scenario
    replayed: Scenario  # what really ran: the policies that decided, on the devices that were there
    alternatives: Sequence[Scenario]
    cluster: str  # how the devices of the alternatives differ; empty if they do not
    known: Sequence[str]  # what was recorded and measured
    assumed: Sequence[str]


def replay(
    database: Path,
    pool: str = "",
    since: float = 0.0,
    until: float = inf,
    policies: Sequence[Choice] = (),
    gpus: int = 0,
    nodes: Sequence[Node] = (),
    cluster: str = "",
    experiment: str = "",
) -> WhatIf:
    """Replay the jobs that were submitted in this time: as it was, and under each policy, with some more or
    fewer devices, or on other nodes, which `cluster` describes. Without policies, a change of devices is
    replayed under those that really decided. Raises NoRecord, PolicyError and ValueError."""
    makes = {choice.label or choice.name: _maker(choice) for choice in policies}
    record = read_record(database, pool, since, until, experiment)
    costs = measure_costs(record)
    workload = build_workload(record, costs)
    if not workload.measured:
        raise NoRecord(f"Pool {record.pool!r} of {database} has no job of this time that ran and ended.")
    own = present_nodes(record)
    if not own or not record.policies:
        raise NoRecord(f"Pool {record.pool!r} of {database} recorded no devices or no policy.")
    chosen = _choose_cluster(own, gpus, nodes, cluster)

    def run(on: Sequence[Node], make: MakePolicy | None) -> Simulation:
        arrivals = forget_other_nodes(workload.arrivals, on) if nodes and on is not own else workload.arrivals
        placed = replace(workload, arrivals=arrivals)
        return outcomes.only_measured(run_workload(record, placed, costs, on, make), workload)

    reality = outcomes.as_recorded(record, workload, own)
    base = run(own, None)
    plans: dict[str, Callable[[], Simulation]] = {}
    if chosen.text:
        plans[_name_policies(record)] = partial(run, chosen.nodes, None)
    for label, make in makes.items():
        plans[label] = partial(run, chosen.nodes, make)
    found = {label: plan() for label, plan in plans.items()}
    known, assumed = list_caveats(record, workload, costs, [base, *found.values()])
    known.append(_tell_fit(outcomes.figures(reality), outcomes.figures(base)))
    return WhatIf(
        record.pool,
        record.began,
        record.until,
        _describe(RECORDED, reality, base),
        _describe(_name_policies(record), base, base),
        [_describe(label, simulation, base) for label, simulation in found.items()],
        chosen.text,
        known,
        assumed,
    )


def _maker(choice: Choice) -> MakePolicy:
    make = partial(make_policy, choice.name, choice.options)
    make()  # raises before anything is read
    return make


def _choose_cluster(own: Sequence[Node], gpus: int, nodes: Sequence[Node], cluster: str) -> ChosenCluster:
    chosen = ChosenCluster(rename_devices(nodes), f"on {cluster}") if nodes else ChosenCluster(own, "")
    if not gpus:
        return chosen
    changed = change_gpus(chosen.nodes, gpus)
    return ChosenCluster(changed.nodes, f"{chosen.text} {changed.text}".strip())


def _tell_fit(real: Figures, replayed: Figures) -> str:
    change = replayed.change_from(real)
    makespan, turnaround = (
        f"{100 * abs(change[name] or 0):.1f}%" for name in ("makespan_s", "avg_turnaround_s")
    )
    return (
        f"The replay of what ran differs from reality by {makespan} in makespan and {turnaround} in mean"
        " turnaround."
    )


def _name_policies(record: PoolRecord) -> str:
    names = [each.label for each in policies_in_force(record)]
    in_order = [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]
    return ", then ".join(in_order)


def _describe(label: str, simulation: Simulation, base: Simulation) -> Scenario:
    figures, before = outcomes.figures(simulation), outcomes.figures(base)
    is_base = simulation is base
    return Scenario(
        label,
        len(all_devices(simulation.nodes)),
        figures,
        {} if is_base else figures.change_from(before),
        outcomes.effects_on_users(simulation, None if is_base else base),
        outcomes.list_jobs(simulation),
        simulation.policy_error,
    )
