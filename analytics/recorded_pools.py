"""The pools that a warehouse has jobs of."""

from __future__ import annotations

from pathlib import Path

from gpu_flows.analytics.query_runner import run_query

_POOLS = "select distinct pool from jobs where $experiment in ('', experiment) order by pool"


class NotOnePool(ValueError):
    """It must be said which pool is meant, or there is none. The message says which there are."""


def find_only_pool(database: Path, experiment: str, how: str = "") -> str:
    """Return the pool of all jobs, or of those of the experiment. `how` is what stands before the name of a
    pool to choose it, if there are several. Raises NotOnePool, QueryError."""
    pools = [name for (name,) in run_query(database, _POOLS, {"experiment": experiment}).rows]
    if len(pools) == 1:
        return str(pools[0])
    of = f" of experiment {experiment!r}" if experiment else ""
    if not pools:
        raise NotOnePool(f"Warehouse {database} holds no jobs{of}.")
    choose = f"choose one, as in {how}{pools[0]}" if how else "choose one"
    raise NotOnePool(
        f"Warehouse {database} holds {len(pools)} pools{of}; {choose}. There are: {', '.join(pools)}."
    )
