"""How the devices of one node are linked, and which of them a job should get.

A node has groups of devices that are linked by NVLink, by PCIe switches or by a common processor. Groups may
lie within each other and may overlap: a mesh of NVLinks is described by its cliques. Of the devices that a
job could have, it gets those

1. whose weakest link is strongest, because that one limits a collective operation,
2. with the most links among them, the closest kind first,
3. with the fewest links to the devices that stay free, so that no group is broken up for a job that fits in
   a smaller one.

Devices are bits of an integer (`DeviceBits`): bit n is the n-th device of the node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, islice

from gpu_flows.schedulers.cluster.bits import bit_positions, lowest_bits
from gpu_flows.schedulers.model import DeviceLink, LinkGroup, Node

DeviceBits = int
Quality = tuple[int, int, int]
MOST_COMPARED = 300  # choices; only large nodes with small or irregular groups have more
MOST_GROWN = 8  # choices that are compared there
MOST_CHOICES = 20_000  # cached for one kind of node
_NAMES = {"nvlink": DeviceLink.NVLINK, "switch": DeviceLink.SWITCH, "numa": DeviceLink.NUMA}


# -- groups -----------------------------------------------------------------------------------


def parse_links(text: str, gpus: int) -> tuple[LinkGroup, ...]:
    """Parse `nvlink:2, numa:4`: NVLink groups of two devices and NUMA groups of four, in index order. The
    comma may be left out. Raises ValueError."""
    groups: list[LinkGroup] = []
    for part in text.replace(",", " ").split():
        name, _, size = part.lower().partition(":")
        if name not in _NAMES or not size.isdecimal() or not 2 <= int(size) <= gpus:
            raise ValueError(
                f"{part!r} is not nvlink, switch or numa with a size from 2 to the {gpus} of a node; "
                "write for example nvlink:2, numa:4"
            )
        starts = range(0, gpus - 1, int(size))
        groups += [
            LinkGroup(_NAMES[name], tuple(range(start, min(start + int(size), gpus)))) for start in starts
        ]
    return tuple(groups)


def group_pairs(links: Mapping[tuple[int, int], DeviceLink]) -> tuple[LinkGroup, ...]:
    """Return the groups of devices that are linked in pairs. Each pair is given with its smaller index
    first, and is in a group of its own link."""
    groups: list[LinkGroup] = []
    devices = sorted({device for pair in links for device in pair})
    for link in sorted(DeviceLink, reverse=True):
        linked = {pair for pair, closest in links.items() if closest >= link}
        covered: set[tuple[int, int]] = set()
        for pair in sorted(pair for pair, closest in links.items() if closest == link):
            if pair not in covered:
                clique = list(pair)
                for device in devices:
                    if all((min(device, one), max(device, one)) in linked for one in clique):
                        clique.append(device)
                groups.append(LinkGroup(link, tuple(sorted(clique))))
                covered.update(combinations(sorted(clique), 2))
    return tuple(groups)


def groups_of(node: Node, index: int) -> list[LinkGroup]:
    """Return the groups that this device is in, the closest and largest first."""
    found = [group for group in node.links if index in group.devices]
    return sorted(found, key=lambda group: (-group.link, -len(group.devices)))


# -- the choice of devices --------------------------------------------------------------------


def device_links(node: Node) -> DeviceLinks | None:
    """Return the links of the node; None if all its devices are linked alike, so that any of them do."""
    if not node.links:
        return None
    links = _find_links(node.links, tuple(device.index for device in node.devices))
    return None if links.are_alike else links


@lru_cache(maxsize=1000)
def _find_links(groups: tuple[LinkGroup, ...], indexes: tuple[int, ...]) -> DeviceLinks:
    """Return the links between the devices with these indexes, once for all nodes that are alike."""
    closest: dict[tuple[int, int], DeviceLink] = {}
    positions = {index: position for position, index in enumerate(indexes)}
    for group in groups:
        present = sorted(positions[index] for index in group.devices if index in positions)
        for pair in combinations(present, 2):
            closest[pair] = max(group.link, closest.get(pair, group.link))
    return DeviceLinks(len(indexes), closest)


class DeviceLinks:
    """The links between the devices of a node, by position."""

    def __init__(self, devices: int, closest: Mapping[tuple[int, int], DeviceLink]) -> None:
        pairs = devices * (devices - 1) // 2
        self.are_alike = len(set(closest.values())) + (len(closest) < pairs) <= 1
        linked = [dict.fromkeys(DeviceLink, 0) for _ in range(devices)]
        for (one, other), link in closest.items():
            linked[one][link] |= 1 << other
            linked[other][link] |= 1 << one
        # For each device: the others to which this is its closest link.
        self._linked = [(to[DeviceLink.NUMA], to[DeviceLink.SWITCH], to[DeviceLink.NVLINK]) for to in linked]
        self._choices: dict[tuple[DeviceBits, int, DeviceBits], DeviceBits] = {}

    def choose(self, available: DeviceBits, count: int, beside: DeviceBits = 0) -> DeviceBits:
        """Return `count` of the available devices for a job that also has the devices `beside`."""
        if available.bit_count() <= count:
            return available
        key = (available, count, beside)
        chosen = self._choices.get(key)
        if chosen is None:
            if len(self._choices) >= MOST_CHOICES:
                self._choices.clear()
            chosen = self._choices[key] = self._search(available, count, beside)
        return chosen

    def _search(self, available: DeviceBits, count: int, beside: DeviceBits) -> DeviceBits:
        """Compare all choices that differ in how many devices they take of each group of twins; if there are
        too many, a few good ones that begin in the largest groups."""
        twins = self._group_twins(available)
        choices = list(islice(_splits(twins, count), MOST_COMPARED + 1))
        if len(choices) > MOST_COMPARED:
            twins.sort(key=lambda some: (-some.bit_count(), some))
            choices = [self._grow(some & -some, twins, count, beside) for some in twins[:MOST_GROWN]]
        return max(choices, key=lambda chosen: (self.quality(chosen, available, beside), -chosen))

    def _grow(
        self, chosen: DeviceBits, twins: Sequence[DeviceBits], count: int, beside: DeviceBits
    ) -> DeviceBits:
        """Add to the devices, one by one, the one that is linked best to them."""
        while chosen.bit_count() < count:
            own, free = chosen | beside, [some & ~chosen for some in twins if some & ~chosen]
            rest = sum(free)
            best = max(
                (next(bit_positions(some)) for some in free),
                key=lambda device: (
                    self._weakest(device, own),
                    self._weight(device, own),
                    -self._weight(device, rest),
                ),
            )
            chosen |= 1 << best
        return chosen

    def quality(self, chosen: DeviceBits, available: DeviceBits, beside: DeviceBits = 0) -> Quality:
        """Return what makes a choice better than another, by the rules above."""
        weakest, within, cut = 3, 0, 0
        own, rest = chosen | beside, available & ~chosen
        for device in bit_positions(own):
            weakest = min(weakest, self._weakest(device, own & ~(1 << device)))
            within += self._weight(device, own)
            cut += self._weight(device, rest)
        return weakest, within, -cut

    def _weakest(self, device: int, others: DeviceBits) -> int:
        """Return the weakest link between the device and the others; 0 if one of them is not linked to it."""
        numa, switch, nvlink = self._linked[device]
        if others & ~(numa | switch | nvlink):
            return 0
        return 1 if others & numa else 2 if others & switch else 3

    def _weight(self, device: int, others: DeviceBits) -> int:
        """Return how many links there are between the device and the others. One link counts more than all
        weaker ones of a node together."""
        numa, switch, nvlink = self._linked[device]
        count = (nvlink & others).bit_count() << 12 | (switch & others).bit_count()
        return count << 12 | (numa & others).bit_count()

    def _group_twins(self, devices: DeviceBits) -> list[DeviceBits]:
        """Group the devices that have the same links to all others: any of them do."""
        groups: list[DeviceBits] = []
        for device in bit_positions(devices):
            for number, group in enumerate(groups):
                if self._are_twins(device, next(bit_positions(group))):
                    groups[number] |= 1 << device
                    break
            else:
                groups.append(1 << device)
        return groups

    def _are_twins(self, one: int, other: int) -> bool:
        others = ~(1 << one | 1 << other)
        pairs = zip(self._linked[one], self._linked[other], strict=True)
        return all(mine & others == its & others for mine, its in pairs)


def _splits(groups: Sequence[DeviceBits], count: int) -> Iterator[DeviceBits]:
    """Yield the ways to take `count` devices from the groups, which differ in how many come from each."""
    if not groups:
        if not count:
            yield 0
        return
    left = sum(group.bit_count() for group in groups[1:])
    for number in range(max(0, count - left), min(count, groups[0].bit_count()) + 1):
        for others in _splits(groups[1:], count - number):
            yield lowest_bits(groups[0], number) | others
