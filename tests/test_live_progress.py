"""Progress on a real server with a real worker: read from the output, shown, recorded and used by srtf."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import eventually
from live import Pool

from gpu_flows.bootstrap.local_stack import Stack

pytestmark = pytest.mark.slow

# Prints as tqdm does: one line that overwrites itself.
PRINTS = """
import time
for step in range(1, 1001):
    time.sleep(0.1)
    bar = f"\\rTraining: {step // 10:3d}%|###   | {step}/1000 [00:12<01:15,  9.80it/s, loss=0.31]"
    print(bar, end="", flush=True)
"""


def test_srtf_preempts_a_job_whose_output_shows_that_it_is_longer_than_stated(
    new_stack: Callable[..., Stack], tmp_path: Path
) -> None:
    pool = Pool(new_stack("1x1:GTX 1080 Ti:11"))
    pool.use_policy("srtf", protection={"min_run_seconds": 0})
    script = tmp_path / "train.py"
    script.write_text(PRINTS)
    long = pool.command(f"{sys.executable} {script}", expected_seconds=12)
    pool.until(long, "Running")
    short = pool.command("true", expected_seconds=25)  # longer than what the other states

    def find_progress() -> list[dict[str, Any]]:
        """Progress that tells more than the owner stated. At first, his statement counts more."""
        found = [job["progress"] for job in pool.status().running if job.get("progress")]
        return [progress for progress in found if progress["remaining_s"] > 12]

    shown = eventually(find_progress, "its progress shows that it takes longer")[0]
    assert shown["source"] == "tqdm"
    assert 0 < shown["fraction"] < 0.9
    assert pool.until(short, "Completed")
    eventually(lambda: "Preempted" in pool.states(long), "the other was preempted for it")
    reports = "select source, count(*) from progress_reports group by source"
    eventually(lambda: pool.sql(reports), "reports are recorded")
    assert {source for source, _ in pool.sql(reports)} == {"tqdm"}
    pool.until_recorded("select distinct how from predictions where how = 'progress'", ("progress",))
    pool.cancel(long)
    pool.until(long, "Cancelled")
