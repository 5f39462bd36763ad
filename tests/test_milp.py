"""The placement `milp`: the integer program against all choices, what it prefers, and its fallback."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

import pytest

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.placement import milp
from gpu_flows.schedulers.placement.milp import Choice, Kind, Kinds, cost, fewest_nodes, solve
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.simulation.generators import generate
from gpu_flows.schedulers.simulation.simulator import simulate
from gpu_flows.schedulers.workload import allow_spanning

OPTIONS = PlacementOptions(placement="milp")


def hold(cluster: Cluster, **busy: int) -> Cluster:
    """Let other jobs hold that many devices of each node."""
    for name, count in busy.items():
        for state in cluster.nodes[name.replace("_", "-")].devices[:count]:
            cluster.allocate(Job(f"holder of {state.device.id}"), (state.device,))
    return cluster


def count_by_node(devices: tuple[Device, ...]) -> dict[str, int]:
    names = [device.node for device in devices]
    return {name: names.count(name) for name in dict.fromkeys(names)}


# -- the program ------------------------------------------------------------------------------


def random_kinds(random: Random) -> Kinds:
    kinds = {}
    for _ in range(random.randint(2, 4)):
        size = random.choice((2, 4, 8))
        idle = random.randint(0, size)
        most = random.choice((idle, idle, random.randint(0, idle)))
        fits = sorted((random.random() for _ in range(most + 1)), reverse=True)
        kinds[Kind(size, idle, most, tuple(fits))] = random.randint(1, 2)
    return tuple(kinds.items())


def least_cost(kinds: Kinds, gpus: int) -> float | None:
    """Try every choice."""
    patterns = [
        (number, taken) for number, (kind, _) in enumerate(kinds) for taken in range(1, kind.most + 1)
    ]
    most_nodes = fewest_nodes(kinds, gpus) + milp.MORE_NODES
    costs = []

    def complete(rest: int, gpus: int, nodes: int, chosen: Choice) -> None:
        if gpus == 0:
            costs.append(cost(kinds, chosen))
        elif rest < len(patterns):
            number, taken = patterns[rest]
            used = sum(count for other, _, count in chosen if other == number)
            most = min(kinds[number][1] - used, gpus // taken, nodes)
            for count in range(most + 1):
                more = ((number, taken, count),) if count else ()
                complete(rest + 1, gpus - count * taken, nodes - count, chosen + more)

    complete(0, gpus, most_nodes, ())
    return min(costs, default=None)


def test_the_solution_is_the_best_of_all_choices() -> None:
    solved = 0
    for seed in range(60):
        random = Random(seed)
        kinds, gpus = random_kinds(random), random.randint(2, 10)
        found, best = solve(kinds, gpus), least_cost(kinds, gpus)
        if best is None:
            assert found == (), seed
        else:
            solved += 1
            assert sum(taken * nodes for _, taken, nodes in found) == gpus, seed
            assert cost(kinds, found) == pytest.approx(best, abs=1e-6), seed
    assert solved > 25


# -- what it prefers --------------------------------------------------------------------------


def test_a_partial_node_is_filled_before_an_empty_one_is_broken_up() -> None:
    on = hold(Cluster(declare("3x4")), node_2=2)
    assert count_by_node(OPTIONS.place(Job("a", gpus=2), on)) == {"node-2": 2}


def test_a_job_across_unlike_nodes_leaves_as_few_partial_nodes_as_possible() -> None:
    on = hold(Cluster(declare("2x8+2x4")), node_1=2)  # idle: 6, 8, 4, 4
    job = Job("a", gpus=10, may_span_nodes=True)
    assert count_by_node(OPTIONS.place(job, on)) == {"node-1": 6, "node-3": 4}
    packed = PlacementOptions(placement="pack").place(job, on)
    assert count_by_node(packed) == {"node-2": 8, "node-3": 2}  # node 1 stays partial, node 3 becomes so


def test_devices_that_only_the_usual_jobs_can_use_are_kept_for_them() -> None:
    on = Cluster(declare("1x4:A100:80+1x4:V100:16"))
    for number in range(3):
        assert OPTIONS.place(Job(f"large {number}", gpus=4, memory_mb=60_000), on)
    for number in range(3):
        found = OPTIONS.place(Job(f"small {number}", gpus=4), on)
        assert count_by_node(found) == {"node-2": 4}


def test_models_memory_nodes_and_processors_are_respected() -> None:
    on = hold(Cluster(declare("2x4:V100:16+2x4:A100:80")), node_3=1)
    job = Job("a", gpus=6, may_span_nodes=True, models=("A100",), memory_mb=40_000)
    found = OPTIONS.place(job, on)
    assert not on.allocation_error(job, found)
    assert set(count_by_node(found)) == {"node-3", "node-4"}
    assert not OPTIONS.place(Job("b", gpus=8, may_span_nodes=True, models=("A100",)), on)
    assert set(count_by_node(OPTIONS.place(Job("c", gpus=2, nodes=("node-2",)), on))) == {"node-2"}


# -- with policies ----------------------------------------------------------------------------


def test_without_a_proven_optimum_the_job_is_placed_as_by_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milp, "solve", lambda kinds, gpus: ())
    on = hold(Cluster(declare("2x8+2x4")), node_1=2)
    job = Job("a", gpus=10, may_span_nodes=True)
    assert OPTIONS.place(job, on) == PlacementOptions(placement="pack").place(job, on)


def test_a_limit_that_is_reached_is_no_solution(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = SimpleNamespace(status=1, x=None)
    monkeypatch.setattr("scipy.optimize.milp", lambda *arguments, **options: stopped)
    solve.cache_clear()
    assert solve(random_kinds(Random(1)), 2) == ()
    solve.cache_clear()


@pytest.mark.parametrize(
    ("policy", "options"), [("fifo", {}), ("tiresias", {}), ("rl", {"learned_placement": False})]
)
def test_policies_place_with_it_and_repeat_themselves(policy: str, options: dict[str, bool]) -> None:
    arrivals = allow_spanning(generate("poisson:jobs=60", 3))
    runs = [
        simulate(
            arrivals,
            declare("2x8:A100:80+4x4:V100:16"),
            make_policy(policy, {**options, "placement": "milp"}),
        )
        for _ in range(2)
    ]
    assert not runs[0].policy_error
    ends = [[job.ended for job in run.jobs] for run in runs]
    assert None not in ends[0]
    assert ends[0] == ends[1]
