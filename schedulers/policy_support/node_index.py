"""An index of all nodes by GPU model and by free memory, for the search of shared devices."""

from __future__ import annotations

import math
from bisect import bisect_left, insort

from gpu_flows.schedulers.cluster.node_state import NodeSet, NodeState
from gpu_flows.schedulers.cluster.state import Cluster


class NodeIndex:
    """What plans need to know of all nodes. It follows the changes of the cluster from plan to plan."""

    def __init__(self) -> None:
        self.by_models: dict[frozenset[str], NodeSet] = {}  # the nodes that have exactly these models
        self.models: set[str] = set()
        self._nodes: dict[str, NodeState] | None = None
        self._version = 0
        self._largest = _Levels()  # the most memory free on one shared device
        self._by_count: dict[int, _Levels] = {}  # the most that is free on each of so many devices

    def update(self, cluster: Cluster) -> None:
        if self._nodes is not cluster.nodes:  # other nodes were declared
            self._nodes, self.by_models, self.models = cluster.nodes, {}, set()
            self._largest, self._by_count = _Levels(), {}
            for node in cluster.nodes.values():
                models = frozenset(state.device.model for state in node.devices)
                self.by_models[models] = self.by_models.get(models, 0) | node.bit
                self.models |= models
                self._refresh(node)
        else:
            for node in cluster.changed_since(self._version):
                self._refresh(node)
        self._version = cluster.version

    def sharing(self, memory_mb: int) -> NodeSet:
        """Return the nodes, up or not, with a shared device on which this much memory is free."""
        return self._largest.at_least(memory_mb)

    def with_room(self, count: int, memory_mb: int) -> NodeSet:
        """Return the nodes, up or not, with so many devices that are idle or shared with this much free."""
        levels = self._by_count.get(count)
        if levels is None:
            levels = self._by_count[count] = _Levels()
            for node in (self._nodes or {}).values():
                levels.set(node, _free_on_each(node, _free_on_shared(node), count))
        return levels.at_least(memory_mb)

    def _refresh(self, node: NodeState) -> None:
        free = _free_on_shared(node)
        self._largest.set(node, free[0] if free else 0)
        for count, levels in self._by_count.items():
            levels.set(node, _free_on_each(node, free, count))


def _free_on_shared(node: NodeState) -> list[int]:
    """Return what is free on each shared device, the most first."""
    shared = (state.free_mb for state in node.devices if state.holders and not state.exclusive)
    return sorted(shared, reverse=True)


def _free_on_each(node: NodeState, shared: list[int], count: int) -> float:
    """Return how much is free at least on each of the emptiest `count` devices. Idle ones have no end."""
    if node.idle >= count:
        return math.inf
    place = count - node.idle - 1
    return shared[place] if place < len(shared) else -1


class _Levels:
    """A number of each node, and quickly the nodes with at least a given one."""

    def __init__(self) -> None:
        self._levels: dict[str, float] = {}
        self._nodes: dict[float, NodeSet] = {}  # by level
        self._sorted: list[float] = []  # all levels
        self._found: dict[int, NodeSet] = {}  # answers that hold until a node changes

    def set(self, node: NodeState, level: float) -> None:
        before = self._levels.get(node.name)
        if level == before:
            return
        if before is not None:
            self._nodes[before] ^= node.bit
            if not self._nodes[before]:
                del self._nodes[before]
                del self._sorted[bisect_left(self._sorted, before)]
        if level not in self._nodes:
            self._nodes[level] = 0
            insort(self._sorted, level)
        self._nodes[level] |= node.bit
        self._levels[node.name] = level
        self._found.clear()

    def at_least(self, level: int) -> NodeSet:
        found = self._found.get(level)
        if found is None:
            found = 0
            for each in self._sorted[bisect_left(self._sorted, level) :]:
                found |= self._nodes[each]
            self._found[level] = found
        return found
