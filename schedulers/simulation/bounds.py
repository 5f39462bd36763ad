"""Lower bounds on makespan and mean turnaround that no policy can beat.

They hold for schedules that preempt, move, resize and share. A policy that meets a bound is optimal, and
its distance to the bound limits what any other policy could gain.

All bounds use one idea. Give everything that a job can hold a price, such that all that is held at one time
never costs more than 1. Under every policy a job then costs at least

    work = (price of what it holds) x (time it holds it), in the cheapest way

and the cluster becomes one machine that does at most 1 work per second. On this machine a job has three
numbers: its `release`, its `work`, and `fastest`, the shortest time in which it could be done.

The assumptions are: a job makes no more progress than `speed` allows, a job on several devices runs at the
speed of the slowest, and sharing a device or stopping a job never makes it faster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from math import inf

import numpy as np

from gpu_flows.schedulers.model import Device, Job, Node
from gpu_flows.schedulers.policy import Speed, linear
from gpu_flows.schedulers.simulation.one_machine import Floats, Machine, drop_dominated
from gpu_flows.schedulers.workload import Arrival


@dataclass(frozen=True, slots=True)
class Bounds:
    """No schedule of these jobs on these nodes has a smaller makespan or mean turnaround."""

    makespan_s: float  # last end - first submission
    mean_turnaround_s: float
    why_makespan: str
    why_turnaround: str


def bounds(arrivals: Sequence[Arrival], nodes: Iterable[Node], speed: Speed | None = None) -> Bounds:
    """Compute lower bounds for the jobs that these nodes could ever serve; ignore the others.

    Without `speed`, all models are equal and an elastic job speeds up linearly with its devices.
    """
    parts = [
        machines for part in _split_workload(arrivals, nodes) if (machines := _build_machines(*part, speed))
    ]
    if not parts:
        return Bounds(0.0, 0.0, "no job can run on these nodes", "no job can run on these nodes")
    jobs = sum(len(machines[0].jobs) for machines in parts)
    first = min(float(machines[0].release.min()) for machines in parts)
    # the parts share no device: the makespan is that of the last part, and turnarounds add up
    makespan, why_makespan = max(machine.makespan(first) for part in parts for machine in part)
    turnarounds = sorted((max(machine.turnaround() for machine in part) for part in parts), reverse=True)
    mean = sum(total for total, _ in turnarounds) / jobs
    return Bounds(makespan, mean, why_makespan, turnarounds[0][1])


# -- groups of equal devices ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Cluster:
    """Devices that are equal for every job form a pool; nodes with equally many devices of every pool have
    the same shape."""

    pools: list[Device]  # one device of each pool
    shapes: Counter[tuple[int, ...]]  # devices of each pool on a node -> number of such nodes

    @property
    def whole(self) -> tuple[int, ...]:
        """The number of devices in each pool, which is the shape of the cluster as a single node."""
        shapes = self.shapes.items()
        return tuple(sum(shape[pool] * nodes for shape, nodes in shapes) for pool in range(len(self.pools)))

    def choices(self, job: Job) -> frozenset[int]:
        """Return the pools in which the job can run."""
        return frozenset(pool for pool, device in enumerate(self.pools) if job.gpus and job.accepts(device))

    def restrict_to(self, pools: Iterable[int]) -> _Cluster:
        kept, shapes = sorted(pools), Counter[tuple[int, ...]]()
        for shape, nodes in self.shapes.items():
            if any(trimmed := tuple(shape[pool] for pool in kept)):
                shapes[trimmed] += nodes
        return _Cluster([self.pools[pool] for pool in kept], shapes)


def _group_devices(patterns: Iterable[tuple[str, ...]], nodes: Iterable[Node]) -> _Cluster:
    """Group the devices. Devices differ if their nodes match different ones of the jobs' `patterns`."""
    probes = [Job(id="", nodes=pattern) for pattern in patterns]
    pools: dict[tuple[object, ...], Device] = {}
    counts: list[Counter[tuple[object, ...]]] = []
    for node in nodes:
        matches = tuple(probe.accepts(Device("", node.name, 0)) for probe in probes)
        keys = [(matches, device.model, device.memory_mb) for device in node.devices]
        pools.update(zip(keys, node.devices, strict=True))
        counts.append(Counter(keys))
    return _Cluster(list(pools.values()), Counter(tuple(count[key] for key in pools) for count in counts))


def _split_workload(
    arrivals: Sequence[Arrival], nodes: Iterable[Node]
) -> Iterator[tuple[list[Arrival], _Cluster]]:
    """Split the workload into parts that have no eligible device in common."""
    cluster = _group_devices({arrival.job.nodes for arrival in arrivals}, nodes)
    known: dict[tuple[object, ...], frozenset[int]] = {}
    choices: list[frozenset[int]] = []
    for arrival in arrivals:
        if (request := arrival.job.request) not in known:
            known[request] = cluster.choices(arrival.job)
        choices.append(known[request])
    parts: list[frozenset[int]] = []
    for choice in set(choices):
        touched = [part for part in parts if part & choice]
        parts = [part for part in parts if not part & choice] + [choice.union(*touched)]
    for part in parts:
        inside = {choice for choice in known.values() if choice == part or choice & part}
        members = [arrival for arrival, choice in zip(arrivals, choices, strict=True) if choice in inside]
        yield members, cluster.restrict_to(part)


# -- the least use of resources ---------------------------------------------------------------------

# at most one job of more than a half fits at a time, and at most two jobs of more than a third
CROWDS = {1: "one large job", 2: "two large jobs"}


def _resources(cluster: _Cluster) -> Iterator[tuple[str, list[int]]]:
    """Yield what jobs compete for, in the order of `_compute_use`: a name and the capacity in each place."""
    yield f"{sum(cluster.whole)} GPUs", list(cluster.whole)
    for large_jobs in CROWDS.values():
        yield f"nodes that hold {large_jobs} at a time", list(cluster.shapes.values())
        yield f"a cluster that holds {large_jobs} at a time", [1]


def _least_use(job: Job, cluster: _Cluster, speed: Speed) -> list[float]:
    """Return, per second of the job's duration, its fastest time and then, for each place of each resource,
    the amount that it uses if it does all its work there. Infinite if it cannot.

    A job may change places and sizes while it runs, but each part of its work is done in one of these
    ways. So no mixture of ways uses less than the cheapest.
    """
    pools = cluster.choices(job)
    ways: list[list[float]] = []
    for gpus in _sizes(job):
        speeds = {pool: speed(job, cluster.pools[pool].model, gpus) for pool in pools}
        times = {pool: 1 / rate for pool, rate in speeds.items() if rate > 0}
        ways.append(list(_compute_use(job, cluster, gpus, times)))
    never = [inf] * (1 + sum(len(capacity) for _, capacity in _resources(cluster)))
    return [min(amounts) for amounts in zip(never, *ways, strict=True)]


def _sizes(job: Job) -> range:
    return range(job.least, job.most + 1)


def _compute_use(job: Job, cluster: _Cluster, gpus: int, times: dict[int, float]) -> Iterator[float]:
    """Yield the same for `gpus` devices, which take `times[pool]` for a second of work."""
    boxes = [cluster.whole] if job.may_span_nodes or not gpus else cluster.shapes
    fastest = min((_gang_time(gpus, times, box) for box in boxes), default=inf)
    yield fastest
    # GPU-seconds, or the share of them on a shared device. Each device of a gang does 1/gpus of the work and
    # takes at least as long as the gang and as its own pool needs. So this holds for gangs in several pools.
    for pool, device in enumerate(cluster.pools):
        share = job.memory_mb / device.memory_mb if job.memory_mb and device.memory_mb else 1.0
        yield gpus * share * max(times[pool], fastest) if pool in times else inf
    # Seconds of crowding a node and the cluster. A job that spans nodes may hold little of each node.
    for crowd in CROWDS:
        for shape in cluster.shapes:
            yield 0.0 if job.may_span_nodes else _crowding(job, cluster, gpus, times, shape, crowd)
        yield _crowding(job, cluster, gpus, times, cluster.whole, crowd)


def _gang_time(gpus: int, times: dict[int, float], box: tuple[int, ...]) -> float:
    """Return the time that the fastest gang in this box takes for a second of work."""
    found = 0
    for pool in sorted(times, key=times.__getitem__):
        found += box[pool]
        if found >= gpus:
            return times[pool]
    return inf if gpus else 1.0


def _crowding(
    job: Job, cluster: _Cluster, gpus: int, times: dict[int, float], box: tuple[int, ...], crowd: int
) -> float:
    """Return the time in a box, weighted by the part of the box that the job holds. The part is rounded such
    that the parts of jobs that fit at the same time sum to at most 1.

    With k = crowd, multiples of 1/(k+1) stay unchanged and any other fraction x becomes floor((k+1)x)/k.
    Proof: Let some fractions sum to at most 1, the multiples among them to X. The floors of the others sum
    to an integer below (k+1)(1-X), an integer too, so to at most k - (k+1)X. Together: at most 1 - X/k.
    """
    time = _gang_time(gpus, times, box)
    if time == inf:
        return inf
    held, whole = gpus, sum(box) or 1
    if job.memory_mb and gpus:
        # the share is smallest on the device with the most memory, and a smaller part never rounds up
        most_memory = max(cluster.pools[pool].memory_mb for pool in times if box[pool])
        held, whole = held * job.memory_mb, whole * most_memory
    floor, rest = divmod((crowd + 1) * held, whole)
    return (floor / crowd if rest else floor / (crowd + 1)) * time


# -- prices -----------------------------------------------------------------------------------------


def _build_machines(arrivals: Sequence[Arrival], cluster: _Cluster, speed: Speed | None) -> list[Machine]:
    """Return the cluster as one machine for each useful choice of prices."""
    durations = np.array([arrival.duration_s for arrival in arrivals], float)
    use = _multiply(_build_table(arrivals, cluster, speed), durations[:, np.newaxis])
    can_run = np.isfinite(use[:, 0])
    if not can_run.any():
        return []
    jobs = [arrival.job for arrival in compress(arrivals, can_run)]
    release = np.array([job.submitted for job in jobs], float)
    fastest, use = use[can_run, 0], use[can_run, 1:]
    machines = [Machine("nothing", jobs, release, np.zeros(len(jobs)), fastest)]
    for name, capacity in _resources(cluster):
        here, use = use[:, : len(capacity)], use[:, len(capacity) :]
        for prices in _try_prices(here, np.array(capacity, float)):
            work = _multiply(here, prices).min(axis=1)
            machines.append(Machine(name, jobs, release, work, np.maximum(fastest, work)))
    return drop_dominated(machines)


def _build_table(arrivals: Sequence[Arrival], cluster: _Cluster, speed: Speed | None) -> Floats:
    """Return `_least_use` of every job, computed once for jobs with the same request and speeds."""
    models = {device.model for device in cluster.pools}
    known: dict[tuple[object, ...], int] = {}
    rows: list[list[float]] = []
    kinds: list[int] = []
    for job in (arrival.job for arrival in arrivals):
        kind: tuple[object, ...] = (job.request, job.min_gpus, job.max_gpus)
        if speed:
            kind += tuple(speed(job, model, gpus) for model in models for gpus in _sizes(job))
        if kind not in known:
            known[kind] = len(rows)
            rows.append(_least_use(job, cluster, speed or linear))
        kinds.append(known[kind])
    return np.array(rows)[kinds]


def _multiply(amounts: Floats, factors: Floats) -> Floats:
    """Return the product, where infinity times 0 is infinity: an impossible place stays impossible."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(amounts), inf, amounts * factors)


def _try_prices(use: Floats, capacity: Floats) -> Iterator[Floats]:
    """Yield prices of a unit in each place. They are valid because the whole capacity costs 1."""
    usable = np.isfinite(use).any(axis=0)
    if (use > 0).all(axis=1).any() and usable.any():
        yield usable / capacity[usable].sum()
        if usable.sum() > 1:
            yield _highest_prices(use, capacity)


def _highest_prices(use: Floats, capacity: Floats) -> Floats:
    """Return the prices under which all jobs together cost the most. This is the dual of the linear program
    that distributes the work so that the place with the most work ends as early as possible."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    kinds = _merge_similar_jobs(use)
    places, rows = len(capacity), np.arange(np.isfinite(kinds).sum())
    kind, place = np.nonzero(np.isfinite(kinds))
    # maximize the sum of cost[kind], where cost[kind] <= kinds[kind, place] * price[place] for each place
    limits = coo_array(
        (
            np.concatenate([np.ones(len(rows)), -kinds[kind, place]]),
            (np.concatenate([rows, rows]), np.concatenate([places + kind, place])),
        ),
        shape=(len(rows), places + len(kinds)),
    )
    answer = linprog(
        np.concatenate([np.zeros(places), -np.ones(len(kinds))]),
        A_ub=limits.tocsr(),
        b_ub=np.zeros(len(rows)),
        A_eq=np.concatenate([capacity / capacity.sum(), np.zeros(len(kinds))])[np.newaxis],
        b_eq=[1.0],
    )
    # the bound does not depend on the solver: scaled to cost 1, any prices give a valid bound
    prices = np.maximum(answer.x[:places], 0.0) if answer.success else np.ones(places)
    return np.asarray(prices / (prices @ capacity), float)


def _merge_similar_jobs(use: Floats) -> Floats:
    """Return the use of all jobs, summed over jobs with about the same preferences among the places."""
    use = use[np.min(use, axis=1) > 0]
    preference = np.rint(10 * np.log(use / use.min(axis=1, keepdims=True)))
    _, kind = np.unique(preference, axis=0, return_inverse=True)
    kinds = np.zeros((kind.max() + 1, use.shape[1]))
    np.add.at(kinds, kind.ravel(), use)
    return np.asarray(kinds / kinds[np.isfinite(kinds)].mean(), float)  # of a magnitude that suits the solver
