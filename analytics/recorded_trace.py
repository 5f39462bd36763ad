"""The recorded jobs of a pool as a trace for the simulator, and what it cost to stop jobs there.

A job's duration is its time on devices over all attempts. Jobs that never ended or never ran are left out
and counted. Jobs ask for what their owners asked for: nodes and GPU models, elastic sizes, processors, and
the priority of their work queue. Of jobs that an older gpu-flows recorded this is not known, and they run on
any device. A replay that also repeats when jobs entered the queue, and how long it took to launch and to stop
them, is `whatif`.
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpu_flows.analytics.query_runner import QueryError, run_query
from gpu_flows.analytics.recorded_pools import NotOnePool, find_only_pool
from gpu_flows.schedulers.traces import Trace, TraceError
from gpu_flows.schedulers.traces import load as load_trace

FORMAT = "warehouse"
_MAGIC, _MAGIC_AT = b"DUCK", 8


def is_warehouse(path: Path) -> bool:
    """Return whether this is a DuckDB file."""
    try:
        with path.open("rb") as file:
            return file.read(_MAGIC_AT + len(_MAGIC))[_MAGIC_AT:] == _MAGIC
    except OSError:
        return False


def load(database: Path, pool: str = "", experiment: str = "", **choices: Any) -> Trace:
    """Return the jobs of a pool, or of one experiment in it. `choices` are those of `schedulers.traces.load`.

    The jobs are written to a native trace, which is read like any other. Raises TraceError.
    """
    try:
        pool = pool or find_only_pool(database, experiment, f"--format {FORMAT}:pool=")
        found = run_query(database, _JOBS, {"pool": pool, "experiment": experiment})
    except QueryError as error:
        raise TraceError(f"Warehouse {database} cannot be read: {error}") from None
    except NotOnePool as error:
        raise TraceError(str(error)) from None
    names = found.columns[:-2]
    left_out = Counter(row[-1] for row in found.rows if row[-1])
    kept = [row for row in found.rows if not row[-1]]
    jobs, unknown = [row[:-2] for row in kept], sum(not row[-2] for row in kept)
    if not jobs:
        raise TraceError(f"Pool {pool!r} of {database} has no job that ran and ended.")
    with TemporaryDirectory() as folder:
        written = Path(folder) / "recorded.csv"
        with written.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([names, *jobs])
        trace = load_trace(written, "native", **choices)
    remark = (
        f"Of {unknown:,} jobs the nodes and GPU models that they require were not recorded: they take any."
    )
    return replace(
        trace,
        source=str(database),
        format=FORMAT,
        skipped=trace.skipped + left_out,
        remark=remark if unknown else "",
    )


@dataclass(frozen=True, slots=True)
class Costs:
    """What it cost to stop a job (medians), as the simulator counts it."""

    checkpoint_s: float
    restart_s: float
    migration_s: float
    stopped: int  # how many stops the medians are taken over


def load_costs(database: Path) -> Costs:
    """Return the costs over all pools. Raises TraceError."""
    try:
        found = run_query(database, _COSTS)
    except QueryError as error:
        raise TraceError(f"Warehouse {database} cannot be read: {error}") from None
    if not found.rows:
        raise TraceError(
            f"In {database} no job was ever stopped for another one, so the costs are not known."
        )
    return Costs(*found.rows[0])


_COSTS = """
select checkpoint_s, coalesce(restart_s, 0), migration_s, stopped
from preemption_costs
where pool is null and stopped > 0
"""
# Columns as the native format names them. Counting GiB, every whole number of MiB is exact.
_JOBS = """
select
    job_id,
    epoch_us(submitted) / 1e6 as submit_time,
    gpus as num_gpus,
    run_s as duration,
    coalesce(nullif(job_requests.kind, ''), nullif(deployment, ''), flow) as model,
    user_name as user,
    priority,
    epoch_us(deadline) / 1e6 as deadline,
    gpu_memory_mb / 1024 as gpu_memory_gb,
    job_history.expected_s as expected,
    array_to_string(from_json(models, '["VARCHAR"]'), '|') as gpu_model,
    array_to_string(from_json(nodes, '["VARCHAR"]'), '|') as nodes,
    nullif(min_gpus, 0) as min_gpus,
    nullif(max_gpus, 0) as max_gpus,
    may_span_nodes,
    queue_priority,
    preemptible,
    cpus,
    ram_mb / 1024 as ram_gb,
    job_requests.job_id is not null as is_complete,
    case
        when gpus = 0 then 'holds no device'
        when attempts = 0 then 'never ran'
        when state <> 'ended' then 'has not ended'
    end as left_out
from job_history left join job_requests using (job_id)
where pool = $pool and $experiment in ('', experiment)
order by submitted, job_id
"""
