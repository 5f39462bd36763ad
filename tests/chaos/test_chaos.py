"""The nightly suite: `make chaos`. Each case prints one line with its counts.

CHAOS_MINUTES (45) is the time for all cases, CHAOS_SEED (0) varies their random choices, and
`ARGS="-k slow_answers"` selects some.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from chaos.cases import CASES, run_case
from chaos.lab import Lab

from gpu_flows.bootstrap.local_stack import Stack

MINUTES = float(os.environ.get("CHAOS_MINUTES", "45"))
SHARE_OF_LOAD = 0.6  # the rest of a case's time goes by until servers run and all jobs have ended


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("case", CASES)
def test_chaos(case: str, server: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Lab(server, tmp_path, MINUTES * 60 / len(CASES) * SHARE_OF_LOAD) as lab:
        counts = run_case(case, lab)
    with capsys.disabled():
        print(f"\n{case:18} {counts}")
    assert not counts.faults(), f"{case}: {counts}"
