"""The model of torch's CUDA caching allocator: rounding, pools, segments, splits and merges."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_flows.schedulers.prediction.caching_allocator import MIB, Block, CachingAllocator, OutOfMemory


def test_requests_are_rounded_to_512_bytes_and_share_a_small_segment() -> None:
    allocator = CachingAllocator()
    assert [allocator.allocate(size).size for size in (1, 512, 513)] == [512, 512, 1024]
    assert allocator.allocated == 2048
    assert allocator.reserved == 2 * MIB


def test_segments_are_2_mib_for_small_20_for_medium_and_fitting_for_large_requests() -> None:
    def reserve(size: int) -> int:
        allocator = CachingAllocator()
        allocator.allocate(size)
        return allocator.reserved // MIB

    assert reserve(MIB) == 2
    assert reserve(MIB + 1) == 20
    assert reserve(10 * MIB - 512) == 20
    assert reserve(10 * MIB) == 10
    assert reserve(10 * MIB + 1) == 12
    assert reserve(101 * MIB) == 102


def test_a_large_block_is_split_only_if_more_than_1_mib_remains() -> None:
    allocator = CachingAllocator()
    assert allocator.allocate(11 * MIB).size == 12 * MIB  # of a segment of 12 MiB, 1 MiB would remain
    allocator = CachingAllocator()
    assert allocator.allocate(11 * MIB - 512).size == 11 * MIB - 512
    allocator.allocate(MIB + 512)  # fits into the rest
    assert allocator.reserved == 12 * MIB


def test_the_smallest_fitting_block_is_taken() -> None:
    allocator = CachingAllocator()
    large, small = allocator.allocate(40 * MIB), allocator.allocate(30 * MIB)
    allocator.free(large)
    allocator.free(small)
    assert allocator.allocate(29 * MIB + 512).address == small.address
    assert allocator.allocate(29 * MIB + 512).address == large.address
    assert allocator.reserved == 70 * MIB


def test_neighbours_merge_when_freed() -> None:
    allocator = CachingAllocator()
    first, second, third = (allocator.allocate(6 * MIB) for _ in range(3))
    assert allocator.reserved == 20 * MIB
    for block in (first, third, second):
        allocator.free(block)
    allocator.allocate(20 * MIB)
    assert allocator.reserved == 20 * MIB


def test_small_and_large_requests_never_share_a_segment() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(20 * MIB))
    allocator.allocate(512)
    assert allocator.reserved == 22 * MIB


def test_a_full_device_gets_its_cached_segments_back_before_it_is_out_of_memory() -> None:
    allocator = CachingAllocator(capacity=100 * MIB)
    allocator.free(allocator.allocate(60 * MIB))
    kept = allocator.allocate(80 * MIB)
    assert allocator.reserved == 80 * MIB
    assert allocator.peak_reserved == 80 * MIB
    with pytest.raises(OutOfMemory, match="do not fit"):
        allocator.allocate(30 * MIB)
    assert allocator.allocated == kept.size


def test_a_block_cannot_be_freed_twice() -> None:
    allocator = CachingAllocator()
    block = allocator.allocate(1)
    allocator.free(block)
    with pytest.raises(ValueError, match="free already"):
        allocator.free(block)


@given(st.lists(st.tuples(st.integers(1, 30 * MIB), st.integers(0, 5)), max_size=60))
def test_blocks_never_overlap_and_everything_comes_back(requests: list[tuple[int, int]]) -> None:
    allocator = CachingAllocator()
    live: list[Block] = []
    for size, freed in requests:
        live.append(allocator.allocate(size))
        assert live[-1].size >= size
        for _ in range(min(freed, len(live))):
            allocator.free(live.pop(len(live) // 2))
        assert allocator.allocated == sum(block.size for block in live) <= allocator.reserved
        ordered = sorted(live, key=lambda block: block.address)
        for left, right in pairwise(ordered):
            assert left.address + left.size <= right.address
    for block in live:
        allocator.free(block)
    assert allocator.allocated == 0
    allocator.empty_cache()
    assert allocator.reserved == 0
