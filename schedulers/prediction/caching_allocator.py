"""A model of torch's CUDA caching allocator: how much memory it reserves for a sequence of requests.

The rules are those of torch's native allocator with default settings (no expandable segments, no limit on
splits), for one stream:

- A request is rounded up to 512 bytes.
- It is served from the smallest free block of its pool that is large enough; of equal ones, from the block
  at the lowest address. Requests of at most 1 MiB have a pool of their own.
- Without such a block, a new segment is reserved on the device: 2 MiB in the small pool, 20 MiB for requests
  under 10 MiB, and otherwise the request rounded up to 2 MiB.
- A block is split if at least 512 bytes (small pool) or more than 1 MiB (large pool) would remain.
- A freed block merges with its free neighbours of the same segment, and its segment stays reserved.
- If the device is full, all segments without a used block are given back, and the request is tried again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from itertools import count

KIB, MIB = 1024, 2**20

ROUNDING = 512
SMALL_REQUEST = MIB
SMALL_SEGMENT = 2 * MIB
MEDIUM_REQUEST = 10 * MIB  # a request of this size or more gets a segment of its own
MEDIUM_SEGMENT = 20 * MIB
LARGE_ROUNDING = 2 * MIB


class OutOfMemory(Exception):
    """The device cannot hold what is requested."""


@dataclass(slots=True, eq=False)
class Block:
    """A part of a segment, used or free."""

    address: int
    size: int
    small: bool
    used: bool = False
    before: Block | None = field(default=None, repr=False)  # neighbours in the same segment
    after: Block | None = field(default=None, repr=False)


class CachingAllocator:
    """The memory of one process on one device, in bytes."""

    def __init__(self, capacity: float = float("inf")) -> None:
        self.capacity = capacity
        self.allocated = self.peak_allocated = 0
        self.reserved = self.peak_reserved = 0
        # The free blocks of both pools, as (size, address): the first fitting one is the best one.
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._blocks: dict[int, Block] = {}  # the free ones, by address
        # Segments never touch, so that blocks of two of them are never neighbours.
        self._addresses = count(start=2**40, step=2**40)

    def allocate(self, size: int) -> Block:
        """Serve a request. Raises OutOfMemory if it does not fit, even without the cached segments."""
        if size <= 0:
            raise ValueError(f"A request needs at least one byte, not {size}: torch allocates nothing then.")
        size = -(-size // ROUNDING) * ROUNDING
        small = size <= SMALL_REQUEST
        block = self._take_free(size, small) or self._reserve(size, small)
        self._split(block, size)
        block.used = True
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def free(self, block: Block) -> None:
        """Take a block back into the cache."""
        if not block.used:
            raise ValueError(f"The block at {block.address:#x} is free already.")
        block.used = False
        self.allocated -= block.size
        if (before := block.before) and not before.used:
            self._remove_free(before)
            self._join(before, block)
            block = before
        if (after := block.after) and not after.used:
            self._remove_free(after)
            self._join(block, after)
        self._add_free(block)

    def empty_cache(self) -> None:
        """Give all segments without a used block back to the device."""
        for block in list(self._blocks.values()):
            if block.before is None and block.after is None:
                self._remove_free(block)
                self.reserved -= block.size

    # -- blocks and segments ----------------------------------------------------------------------

    def _take_free(self, size: int, small: bool) -> Block | None:
        pool = self._free[small]
        position = bisect_left(pool, (size, 0))
        if position == len(pool):
            return None
        _, address = pool.pop(position)
        return self._blocks.pop(address)

    def _reserve(self, size: int, small: bool) -> Block:
        """Get a new segment from the device. It is one free block."""
        if small:
            segment = SMALL_SEGMENT
        elif size < MEDIUM_REQUEST:
            segment = MEDIUM_SEGMENT
        else:
            segment = -(-size // LARGE_ROUNDING) * LARGE_ROUNDING
        if self.reserved + segment > self.capacity:
            self.empty_cache()
        if self.reserved + segment > self.capacity:
            raise OutOfMemory(
                f"{size:,} bytes do not fit: {self.allocated:,} are allocated and {self.reserved:,} reserved "
                f"of {self.capacity:,.0f}."
            )
        self.reserved += segment
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return Block(next(self._addresses), segment, small)

    def _split(self, block: Block, size: int) -> None:
        """Reduce the block to this size, if what remains is worth a block of its own."""
        rest = block.size - size
        if rest < ROUNDING if block.small else rest <= SMALL_REQUEST:
            return
        remainder = Block(block.address + size, rest, block.small, before=block, after=block.after)
        if block.after:
            block.after.before = remainder
        block.after, block.size = remainder, size
        self._add_free(remainder)

    @staticmethod
    def _join(left: Block, right: Block) -> None:
        left.size += right.size
        left.after = right.after
        if right.after:
            right.after.before = left

    def _add_free(self, block: Block) -> None:
        insort(self._free[block.small], (block.size, block.address))
        self._blocks[block.address] = block

    def _remove_free(self, block: Block) -> None:
        pool = self._free[block.small]
        del pool[bisect_left(pool, (block.size, block.address))]
        del self._blocks[block.address]
