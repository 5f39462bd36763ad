"""Durations and amounts of memory, as people write them."""

from __future__ import annotations

import pytest

from gpu_flows.common.quantities import parse_duration, parse_megabytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        (90, 90),
        (0.5, 0.5),
        ("1e3", 1000),
        ("90s", 90),
        ("15m", 900),
        ("15 min", 900),
        ("1h", 3600),
        ("1.5h", 5400),
        (" 1H30M ", 5400),
        ("1d 2h", 93600),
        ("01:30:05", 5405),
        ("0", 0),
    ],
)
def test_durations(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "1x", "-5", "nan", "inf", "1h30", "30m!", "1:2", "1h-30m", "ten"])
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration; write seconds, or a value like 90s, 15m, 1h30m"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "megabytes"),
    [("4GB", 4096), ("4g", 4096), ("4", 4096), (4, 4096), (0.5, 512), ("512MB", 512), ("1.5TiB", 1572864)],
)
def test_memory(text: str | float, megabytes: int) -> None:
    assert parse_megabytes(text) == megabytes


def test_a_bare_amount_of_memory_has_the_unit_of_its_field() -> None:
    assert parse_megabytes("300", unit="MB") == 300


@pytest.mark.parametrize("text", ["", "GB", "4 PB", "-1", "4GB!", "nan", "much"])
def test_what_is_no_memory_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="is no amount of memory; write GB, or a value like 512MB, 4GB"):
        parse_megabytes(text)
