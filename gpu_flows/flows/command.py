"""The `command` flow: runs any command line as a job."""

from __future__ import annotations

import logging
import os
from typing import Annotated, Any

from prefect import flow
from prefect.runtime import flow_run
from pydantic import Field

from gpu_flows.checkpoints import contract
from gpu_flows.flows.command_runner import Command, CommandError, run_command, split_command
from gpu_flows.flows.output import Emit


@flow(name="command")
def command(
    command: str,
    shell: bool = False,
    working_directory: str = "",
    environment: dict[str, str] = {},  # noqa: B006  only read; the UI would draw tabs for an Optional
    timeout_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0,
) -> dict[str, Any]:
    """Run a command line on the devices of this run.

    The output of the command is shown in the run's logs. An exit code other than 0 fails the run. When the
    run is preempted, the command gets SIGTERM and can save its state in $GPU_FLOWS_CHECKPOINT_DIR; it is
    run again later.

    Args:
        command: The command line, for example: python train.py --epochs 3.
        shell: Run the line in /bin/sh, for pipes, && and variables.
        working_directory: Where to run it; empty means the job's own directory.
        environment: Variables to set or replace, in addition to those of the job.
        timeout_seconds: Stop it after this many seconds; 0 means never.
    """
    # Shorter than the grace period of this process, so that the worker never kills it first.
    grace = 0.8 * float(os.environ.get(contract.GRACE, "10"))
    outcome = run_command(
        Command(
            split_command(command, shell=shell),
            working_directory,
            {contract.GRACE: f"{grace:g}", **environment},
            timeout_seconds,
            grace,
        ),
        _send_to_run_logs(str(flow_run.id)),
    )
    if outcome.timed_out or outcome.exit_code != 0:
        raise CommandError(outcome.explain())
    return {"exit_code": 0, "seconds": outcome.seconds, "lines": outcome.lines}


def _send_to_run_logs(run_id: str) -> Emit:
    """Return a function that logs a line to the run, but not to the console, where stdout shows it."""
    logger, run = logging.getLogger("prefect.flow_runs"), {"flow_run_id": run_id}

    def emit(line: str) -> None:
        record = logger.makeRecord("command", logging.INFO, __file__, 0, line, (), None, extra=run)
        if logger.isEnabledFor(record.levelno) and logger.filter(record):
            for handler in logger.handlers:
                handler.handle(record)

    return emit
