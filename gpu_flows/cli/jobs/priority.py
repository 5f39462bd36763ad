"""`gpu-flows priority`: change the priority of a waiting job."""

from __future__ import annotations

from typing import Annotated

import typer

from gpu_flows.cli.jobs.changes import change_runs
from gpu_flows.cli.jobs.runs import RunArgument
from gpu_flows.cli.options import DEFAULT_POOL, JsonOption, PoolOption, examples
from gpu_flows.schedulers.policy import is_built_in, policies
from gpu_flows.worker.status import read_status


@examples("gpu-flows priority brave-otter 10", "gpu-flows priority 1ae36b2c -- -5")
def priority(
    run: RunArgument,
    value: Annotated[int, typer.Argument(metavar="N", min=-1000, max=1000, help="Higher is more urgent.")],
    pool: PoolOption = DEFAULT_POOL,
    as_json: JsonOption = False,
) -> None:
    """Change the priority of a waiting job, for policies that use priorities.

    The priority class of the job still adds to it: low -100, normal 0, high 100, urgent 1000.
    """
    change_runs(pool, [run], as_json, done=f"has priority {value}{_describe_effect(pool)}", priority=value)


def _describe_effect(pool: str) -> str:
    """Say so if the policy in force is known to ignore priorities. What others' policies do is not known."""
    status = read_status(pool)
    name = status.policy["serving"] if status else ""
    if not is_built_in(name) or policies()[name].uses_priority:
        return ""
    return f", which the policy in force ({name}) does not use"
