"""The index by which `schedtune` finds nodes with room gives the same answers as a look at every device."""

from __future__ import annotations

import random

import pytest

from gpu_flows.schedulers.cluster.node_state import NodeState
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.policy_support.node_index import NodeIndex


def count_shared(node: NodeState, memory_mb: int) -> int:
    return sum(s.free_mb >= memory_mb for s in node.devices if s.holders and not s.exclusive)


@pytest.mark.parametrize("seed", range(5))
def test_nodes_with_room_are_found_while_jobs_come_and_go(seed: int) -> None:
    chance = random.Random(seed)
    cluster, index, running = Cluster(declare("6x4:T4:16+3x2:A100:40")), NodeIndex(), list[Job]()
    for number in range(150):
        if running and chance.random() < 0.45:
            cluster.release(running.pop(chance.randrange(len(running))))
        else:
            gpus = chance.choice((1, 1, 2))
            job = Job(
                f"{number}", gpus=gpus, memory_mb=chance.choice((0, 3000, chance.randrange(500, 15_000)))
            )
            node = chance.choice(list(cluster.nodes.values()))
            fitting = tuple(state.device for state in node.devices if state.fits(job))[:gpus]
            if len(fitting) == gpus:
                cluster.allocate(job, fitting)
                running.append(job)
        if chance.random() < 0.05:
            cluster.mark_device(chance.choice(sorted(cluster.devices)), chance.random() < 0.5)
        if number == 100:
            cluster.set_nodes(declare("5x4:T4:16+4x2:A100:40"))
        index.update(cluster)
        for memory_mb in (1, 3000, chance.randrange(1, 16_000)):
            sharing = {n.name for n in cluster.nodes.values() if count_shared(n, memory_mb)}
            assert {n.name for n in cluster.nodes_in(index.sharing(memory_mb))} == sharing
            for count in (1, 2, 4):
                room = {
                    n.name for n in cluster.nodes.values() if n.idle + count_shared(n, memory_mb) >= count
                }
                assert {n.name for n in cluster.nodes_in(index.with_room(count, memory_mb))} == room
