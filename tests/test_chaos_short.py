"""A short version of the nightly cases (`make chaos`) that show something within seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.cases import SHORT, run_case
from chaos.lab import Lab

from gpu_flows.bootstrap.local_stack import Stack

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("case", SHORT)
def test_a_short_version_of_the_case(case: str, server: Stack, tmp_path: Path) -> None:
    with Lab(server, tmp_path, seconds=6) as lab:
        counts = run_case(case, lab)
    assert not counts.faults(), str(counts)
