"""Runs on a server that refuses or loses some of its answers: each runs once, and each end is reported."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from faulty_pool import AWAY, LOST, FaultyPool, FaultyPrefect, without_pauses
from prefect.client.schemas.objects import StateType

RUNS = 60


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("faults", "share"),
    [
        ((401, 403), 0.05),
        ((401, 403), 0.4),
        ((500, 429), 0.2),
        ((LOST, AWAY), 0.2),
        ((401, 403, 500, LOST), 0.3),
    ],
    ids=["5% 401 or 403", "40% 401 or 403", "500 or 429", "lost", "everything"],
)
def test_no_run_is_lost_or_runs_twice(
    tmp_path: Path, faults: tuple[int, ...], share: float, seed: int
) -> None:
    prefect = FaultyPrefect(faults, share, seed)
    expected = {}
    for number in range(RUNS):
        bad, bare = number % 3 == 0, number % 2 == 0
        variables = {"command": "train"} if bare else {}
        run = prefect.add_run(name=f"{'bad' if bad else 'good'}-{number}", job_variables=variables)
        expected[run.id] = StateType.FAILED if bad else StateType.COMPLETED

    async def serve() -> FaultyPool:
        pool = FaultyPool(tmp_path, prefect)

        def all_ended() -> bool:
            ended = all(run.state and run.state.is_final() for run in prefect.runs.values())
            return ended and not pool.dispatcher.executing()

        await pool.serve(all_ended, timeout_s=120)
        return pool

    pauses, retries = without_pauses()
    with pauses, retries:
        pool = asyncio.run(serve())
    assert sum(prefect.answered.values()) > 0.5 * share * RUNS, "the server did refuse"
    assert {run_id: run.state_type for run_id, run in prefect.runs.items()} == expected, "no run is stuck"
    assert len(pool.runtime.launched) == RUNS, "each run was launched once"
    assert not pool.runtime.known, "no attempt is left behind"
    once = dict.fromkeys(map(str, expected), 1)
    assert pool.count_facts("attempt_ends") == once, "each end is in SQL"
    assert pool.count_facts("job_ends") == once
