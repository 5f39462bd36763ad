"""`gpu-flows release`: let held jobs start."""

from __future__ import annotations

from gpu_flows.cli.jobs.changes import RunsArgument, change_runs
from gpu_flows.cli.options import DEFAULT_POOL, JsonOption, PoolOption, examples


@examples("gpu-flows release brave-otter", "gpu-flows release 1ae36b2c 77c0d5f1")
def release(runs: RunsArgument, pool: PoolOption = DEFAULT_POOL, as_json: JsonOption = False) -> None:
    """Let jobs start that were held by `gpu-flows hold` or `gpu-flows submit --hold`."""
    change_runs(pool, runs, as_json, done="released", hold=False)
