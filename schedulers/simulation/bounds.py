"""How good could any schedule have been? Lower bounds that no policy can beat.

They hold for schedules that preempt, move, resize and share. So a policy that meets one is optimal, and
its distance to the bound is the most that any other policy could still win.

One idea carries them all. Give everything a job can hold a price, such that what is held at one time never
costs more than 1. Whatever the policy does, a job then costs at least

    work = (price of what it holds) x (time it holds it), at its cheapest

and the cluster has become one machine that does at most 1 work per second. On this machine a job is three
numbers: its `release`, its `work`, and the `fastest` time in which it could ever be done.

All that is taken for granted: a job makes no more progress than `speed` says, a gang goes at the pace of
its slowest device, and sharing a device or stopping a job never speeds it up.
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
from gpu_flows.schedulers.simulation.one_machine import Floats, Machine, undominated
from gpu_flows.schedulers.workload import Arrival


@dataclass(frozen=True, slots=True)
class Bounds:
    """No schedule of these jobs on these nodes has a smaller makespan or mean turnaround."""

    makespan_s: float  # last end - first submission
    mean_turnaround_s: float
    why_makespan: str
    why_turnaround: str


def bounds(arrivals: Sequence[Arrival], nodes: Iterable[Node], speed: Speed | None = None) -> Bounds:
    """Lower bounds for the jobs that these nodes can ever serve; the others count for nothing.

    Without `speed` all models are alike and an elastic job gains from each device as from the first.
    """
    parts = [machines for part in _parts(arrivals, nodes) if (machines := _machines(*part, speed))]
    if not parts:
        return Bounds(0.0, 0.0, "no job can run on these nodes", "no job can run on these nodes")
    jobs = sum(len(machines[0].jobs) for machines in parts)
    first = min(float(machines[0].release.min()) for machines in parts)
    # the parts share nothing: the last to end ends the whole, and turnarounds add up
    makespan, why_makespan = max(machine.makespan(first) for part in parts for machine in part)
    turnarounds = sorted((max(machine.turnaround() for machine in part) for part in parts), reverse=True)
    mean = sum(total for total, _ in turnarounds) / jobs
    return Bounds(makespan, mean, why_makespan, turnarounds[0][1])


# -- the cluster as the jobs see it -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Cluster:
    """Devices that look alike to every job form a pool; nodes alike in every pool have one shape."""

    pools: list[Device]  # one device stands for each pool
    shapes: Counter[tuple[int, ...]]  # how many devices of each pool a node has -> how many such nodes

    @property
    def whole(self) -> tuple[int, ...]:
        """How many devices each pool has: the shape of the cluster, were it one node."""
        shapes = self.shapes.items()
        return tuple(sum(shape[pool] * nodes for shape, nodes in shapes) for pool in range(len(self.pools)))

    def choices(self, job: Job) -> frozenset[int]:
        """The pools in which the job can run."""
        return frozenset(pool for pool, device in enumerate(self.pools) if job.gpus and job.accepts(device))

    def only(self, pools: Iterable[int]) -> _Cluster:
        kept, shapes = sorted(pools), Counter[tuple[int, ...]]()
        for shape, nodes in self.shapes.items():
            if any(trimmed := tuple(shape[pool] for pool in kept)):
                shapes[trimmed] += nodes
        return _Cluster([self.pools[pool] for pool in kept], shapes)


def _survey(patterns: Iterable[tuple[str, ...]], nodes: Iterable[Node]) -> _Cluster:
    """`patterns` are what jobs call nodes by: nodes that match the same ones look alike."""
    probes = [Job(id="", nodes=pattern) for pattern in patterns]
    pools: dict[tuple[object, ...], Device] = {}
    counts: list[Counter[tuple[object, ...]]] = []
    for node in nodes:
        matches = tuple(probe.accepts(Device("", node.name, 0)) for probe in probes)
        looks = [(matches, device.model, device.memory_mb) for device in node.devices]
        pools.update(zip(looks, node.devices, strict=True))
        counts.append(Counter(looks))
    return _Cluster(list(pools.values()), Counter(tuple(count[look] for look in pools) for count in counts))


def _parts(arrivals: Sequence[Arrival], nodes: Iterable[Node]) -> Iterator[tuple[list[Arrival], _Cluster]]:
    """The workload cut into parts of which none can use a device that another one can."""
    cluster = _survey({arrival.job.nodes for arrival in arrivals}, nodes)
    known: dict[tuple[object, ...], frozenset[int]] = {}
    choices: list[frozenset[int]] = []
    for arrival in arrivals:
        if (ask := arrival.job.request) not in known:
            known[ask] = cluster.choices(arrival.job)
        choices.append(known[ask])
    parts: list[frozenset[int]] = []
    for choice in set(choices):
        touched = [part for part in parts if part & choice]
        parts = [part for part in parts if not part & choice] + [choice.union(*touched)]
    for part in parts:
        inside = {choice for choice in known.values() if choice == part or choice & part}
        mine = [arrival for arrival, choice in zip(arrivals, choices, strict=True) if choice in inside]
        yield mine, cluster.only(part)


# -- what a job uses at least -----------------------------------------------------------------------

# side by side fit at most one job of more than a half, and at most two jobs of more than a third
CROWDS = {1: "one large job", 2: "two large jobs"}


def _resources(cluster: _Cluster) -> Iterator[tuple[str, list[int]]]:
    """What jobs compete for, in the order of `_use`: a name, and how much of it there is in each place."""
    yield f"{sum(cluster.whole)} GPUs", list(cluster.whole)
    for large_jobs in CROWDS.values():
        yield f"nodes that hold {large_jobs} at a time", list(cluster.shapes.values())
        yield f"a cluster that holds {large_jobs} at a time", [1]


def _least_use(job: Job, cluster: _Cluster, speed: Speed) -> list[float]:
    """Per second of its duration: its fastest time, then for each place of each resource what it uses if
    all its work is done there. Infinite where that cannot be.

    A job may change places and sizes as it goes, but each bit of progress uses that bit of one way's
    amount: no mixture of ways uses less than the cheapest.
    """
    pools = cluster.choices(job)
    ways: list[list[float]] = []
    for gpus in _sizes(job):
        paces = {pool: speed(job, cluster.pools[pool].model, gpus) for pool in pools}
        times = {pool: 1 / pace for pool, pace in paces.items() if pace > 0}
        ways.append(list(_use(job, cluster, gpus, times)))
    never = [inf] * (1 + sum(len(capacity) for _, capacity in _resources(cluster)))
    return [min(amounts) for amounts in zip(never, *ways, strict=True)]


def _sizes(job: Job) -> range:
    return range(job.least, job.most + 1)


def _use(job: Job, cluster: _Cluster, gpus: int, times: dict[int, float]) -> Iterator[float]:
    """The same with so many devices, which take `times[pool]` for a second of work."""
    boxes = [cluster.whole] if job.may_span_nodes or not gpus else cluster.shapes
    fastest = min((_gang_time(gpus, times, box) for box in boxes), default=inf)
    yield fastest
    # GPU-seconds; of a shared device, its share. Each device of a gang does 1/gpus of the work and takes no
    # less time than the gang, nor than its own pool needs: so this holds for gangs over several pools too.
    for pool, device in enumerate(cluster.pools):
        share = job.memory_mb / device.memory_mb if job.memory_mb and device.memory_mb else 1.0
        yield gpus * share * max(times[pool], fastest) if pool in times else inf
    # Seconds of crowding a node, and of crowding the cluster. One that spans nodes may take little of each.
    for crowd in CROWDS:
        for shape in cluster.shapes:
            yield 0.0 if job.may_span_nodes else _crowding(job, cluster, gpus, times, shape, crowd)
        yield _crowding(job, cluster, gpus, times, cluster.whole, crowd)


def _gang_time(gpus: int, times: dict[int, float], box: tuple[int, ...]) -> float:
    """What the slowest device of the fastest gang in this box takes for a second of work."""
    found = 0
    for pool in sorted(times, key=times.__getitem__):
        found += box[pool]
        if found >= gpus:
            return times[pool]
    return inf if gpus else 1.0


def _crowding(
    job: Job, cluster: _Cluster, gpus: int, times: dict[int, float], box: tuple[int, ...], crowd: int
) -> float:
    """Time in a box, by the part it takes of it, rounded so that what fits side by side is at most 1.

    With k = crowd, multiples of 1/(k+1) stay as they are and any other fraction x becomes floor((k+1)x)/k.
    Proof: let some fractions sum to at most 1, the multiples among them to X. The floors of the others sum
    to an integer below (k+1)(1-X), an integer too, so to at most k - (k+1)X. Together: at most 1 - X/k.
    """
    time = _gang_time(gpus, times, box)
    if time == inf:
        return inf
    held, whole = gpus, sum(box) or 1
    if job.memory_mb and gpus:
        # its share of a device is least on the roomiest, and less is never rounded to more
        roomiest = max(cluster.pools[pool].memory_mb for pool in times if box[pool])
        held, whole = held * job.memory_mb, whole * roomiest
    floor, rest = divmod((crowd + 1) * held, whole)
    return (floor / crowd if rest else floor / (crowd + 1)) * time


# -- prices -----------------------------------------------------------------------------------------


def _machines(arrivals: Sequence[Arrival], cluster: _Cluster, speed: Speed | None) -> list[Machine]:
    """The cluster as one machine, once for every system of prices that is worth a try."""
    durations = np.array([arrival.duration_s for arrival in arrivals], float)
    use = _scaled(_table(arrivals, cluster, speed), durations[:, np.newaxis])
    able = np.isfinite(use[:, 0])
    if not able.any():
        return []
    jobs = [arrival.job for arrival in compress(arrivals, able)]
    release = np.array([job.submitted for job in jobs], float)
    fastest, use = use[able, 0], use[able, 1:]
    machines = [Machine("nothing", jobs, release, np.zeros(len(jobs)), fastest)]
    for name, capacity in _resources(cluster):
        here, use = use[:, : len(capacity)], use[:, len(capacity) :]
        for prices in _prices(here, np.array(capacity, float)):
            work = _scaled(here, prices).min(axis=1)
            machines.append(Machine(name, jobs, release, work, np.maximum(fastest, work)))
    return undominated(machines)


def _table(arrivals: Sequence[Arrival], cluster: _Cluster, speed: Speed | None) -> Floats:
    """`_least_use` of every job, worked out once for those that ask and run alike."""
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


def _scaled(amounts: Floats, factors: Floats) -> Floats:
    """Their product, in which a place that is out of the question stays so: infinity x 0 is infinity."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(amounts), inf, amounts * factors)


def _prices(use: Floats, capacity: Floats) -> Iterator[Floats]:
    """Prices of a unit in each place. All there is costs 1 together, which is all that makes them valid."""
    usable = np.isfinite(use).any(axis=0)
    if (use > 0).all(axis=1).any() and usable.any():
        yield usable / capacity[usable].sum()
        if usable.sum() > 1:
            yield _dearest_prices(use, capacity)


def _dearest_prices(use: Floats, capacity: Floats) -> Floats:
    """The prices under which all jobs together cost the most: the dual of the linear program that spreads
    the work over the places so that the fullest place is done soonest."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    kinds = _kinds(use)
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
    # the solver is trusted with the choice only: scaled to cost 1, any prices give a valid bound
    prices = np.maximum(answer.x[:places], 0.0) if answer.success else np.ones(places)
    return np.asarray(prices / (prices @ capacity), float)


def _kinds(use: Floats) -> Floats:
    """The use of all jobs, summed over those that prefer the same places about as strongly."""
    use = use[np.min(use, axis=1) > 0]
    taste = np.rint(10 * np.log(use / use.min(axis=1, keepdims=True)))
    _, kind = np.unique(taste, axis=0, return_inverse=True)
    kinds = np.zeros((kind.max() + 1, use.shape[1]))
    np.add.at(kinds, kind.ravel(), use)
    return np.asarray(kinds / kinds[np.isfinite(kinds)].mean(), float)  # of a size that solvers like
