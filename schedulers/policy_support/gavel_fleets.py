"""Fleets, over which Gavel divides time: the nodes with the same GPU models, and how fast jobs are there."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Job, Running
from gpu_flows.schedulers.policy import State


class Fleet(NamedTuple):
    """All nodes with the same GPU models. A job runs in one fleet at a time, so that it has one speed."""

    models: tuple[str, ...]
    nodes: int  # a set of nodes
    devices: int

    def holds(self, running: Running, cluster: Cluster) -> bool:
        """Return whether the job runs in this fleet."""
        node = cluster.nodes.get(running.devices[0].node) if running.devices else None
        return node is not None and bool(node.bit & self.nodes)


def find_fleets(cluster: Cluster) -> list[Fleet]:
    """Return the fleets of the cluster. Unhealthy devices and nodes without healthy ones do not count."""
    nodes: dict[tuple[str, ...], int] = {}
    devices: dict[tuple[str, ...], int] = {}
    for node in cluster:
        models = [each.device.model for each in node.devices if each.healthy]
        if models:
            make = tuple(sorted(set(models)))
            nodes[make] = nodes.get(make, 0) | node.bit
            devices[make] = devices.get(make, 0) + len(models)
    return [Fleet(make, nodes[make], devices[make]) for make in nodes]


def unite(fleets: list[Fleet]) -> Fleet:
    """Return one fleet of all these nodes."""
    models = sorted({model for fleet in fleets for model in fleet.models})
    nodes = sum(fleet.nodes for fleet in fleets)  # no two have a node in common
    return Fleet(tuple(models), nodes, sum(fleet.devices for fleet in fleets))


def measure_speeds(jobs: Iterable[Job], fleets: list[Fleet], state: State) -> list[list[float]]:
    """Return how fast each job is in each fleet; not a number where it cannot run."""
    known: dict[object, list[float]] = {}  # jobs of one kind and request are equally fast
    rows = []
    for job in jobs:
        key = (job.kind, job.request)
        if key not in known:
            known[key] = [measure_speed(job, fleet, state) for fleet in fleets]
        rows.append(known[key])
    return rows


def measure_speed(job: Job, fleet: Fleet, state: State) -> float:
    """Return how fast the job is in the fleet: as fast as on the slowest model there that it accepts."""
    nodes = list(state.cluster.nodes_in(state.cluster.eligible(job).nodes & fleet.nodes))
    if not nodes or sum(len(node.devices) for node in nodes) < job.gpus:
        return math.nan
    models: set[str] = set()
    for node in nodes:
        models |= {each.device.model for each in node.devices if job.accepts(each.device)}
        if len(models) == len(fleet.models):
            break
    return min(state.speed(job, model, job.gpus) for model in models)
