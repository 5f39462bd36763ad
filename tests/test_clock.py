"""Times as people read them."""

from __future__ import annotations

from datetime import datetime

import pytest

from gpu_flows.common.clock import describe_late, describe_time

NOON = datetime(2026, 5, 4, 12, 0, 0).timestamp()


@pytest.mark.parametrize(
    ("when", "late", "shown"),
    [
        (90, 150, ("12:01:30", "12:02:30")),  # both with seconds, so that the later one looks later
        (90, 90.2, ("12:01:30", "")),
        (600, 640, ("12:10", "")),
        (600, 700, ("12:10", "12:11")),
    ],
)
def test_a_late_time_is_as_precise_as_the_one_that_is_expected(
    when: float, late: float, shown: tuple[str, str]
) -> None:
    assert (describe_time(NOON + when, NOON), describe_late(NOON + when, NOON + late, NOON)) == shown
