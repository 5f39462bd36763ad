"""The memory bound of a job that ran out of memory."""

from __future__ import annotations

import pytest

from gpu_flows.schedulers.prediction.raised_bound import raise_bound


@pytest.mark.parametrize(
    ("bound", "device", "peak", "raised"),
    [
        (4_000, 16_000, None, 16_000),  # nobody knows how much it needs: the device for itself
        (12_000, 16_000, None, 18_000),  # half as much again exceeds the device: a larger one
        (0, 16_000, None, 16_000),  # it had no bound
        (4_000, 16_000, 4_000.0, 6_000),
        (4_000, 16_000, 6_000.0, 9_000),  # the peak tells more than the bound
        (4_000, 16_000, 3_000.0, 6_000),  # others took the memory: it never reached its bound
        (12_000, 16_000, 14_000.0, 16_000),  # a device like this is still enough
        (16_000, 16_000, 16_000.0, 24_000),  # this device is not
    ],
)
def test_the_raised_bound(bound: int, device: int, peak: float | None, raised: int) -> None:
    assert raise_bound(bound, device, peak) == raised
