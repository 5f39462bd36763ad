"""`gpu-flows hold`: keep waiting jobs from starting."""

from __future__ import annotations

from gpu_flows.cli.jobs.changes import RunsArgument, change_runs
from gpu_flows.cli.options import DEFAULT_POOL, JsonOption, PoolOption, examples


@examples("gpu-flows hold brave-otter", "gpu-flows hold 1ae36b2c 77c0d5f1")
def hold(runs: RunsArgument, pool: PoolOption = DEFAULT_POOL, as_json: JsonOption = False) -> None:
    """Keep waiting jobs from starting until `gpu-flows release`.

    A held job loses no priority: once released, it is queued as if it had not been held. A running job
    cannot be held. `gpu-flows submit --hold` submits a job that is held from the beginning.
    """
    change_runs(pool, runs, as_json, done="held", hold=True)
