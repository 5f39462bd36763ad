"""The `command` flow: runs any command line as a job."""

from __future__ import annotations

import logging
import os
from typing import Annotated, Any

from prefect import State, flow
from prefect.context import FlowRunContext
from prefect.runtime import flow_run
from prefect.states import Failed
from pydantic import Field

from gpu_flows.checkpoints import contract
from gpu_flows.flows.command_runner import Command, CommandFailed, run_command, split_command
from gpu_flows.flows.output import Emit
from gpu_flows.prediction.memory_failure import find_memory_failure
from gpu_flows.runtimes.entry import ALLOCATOR_OPTIONS, FRACTION_OPTION, MEMORY_FRACTION, WAITS_FOR_MEMORY


@flow(name="command")
def command(
    command: str,
    shell: bool = False,
    working_directory: str = "",
    environment: dict[str, str] = {},  # noqa: B006  only read; the UI would draw tabs for an Optional
    timeout_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0,
) -> dict[str, Any] | State[None]:
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
    try:
        job = Command(
            split_command(command, shell=shell),
            working_directory,
            {contract.GRACE: f"{grace:g}", **_own_allocator_options(), **environment},
            timeout_seconds,
            grace,
        )
        outcome = run_command(job, _send_to_run_logs(str(flow_run.id)))
    except CommandFailed as error:
        _set_exit_code(127)  # as a shell does
        return _failure(str(error))
    _set_exit_code(outcome.shell_exit_code)
    if outcome.timed_out or outcome.exit_code != 0:
        return _failure(outcome.explain())
    return {"exit_code": 0, "seconds": outcome.seconds, "lines": outcome.lines}


def _own_allocator_options() -> dict[str, str]:
    """Return the options of torch's allocator without the limit that was set for this process: the torch of
    the command may be too old for it. $GPU_FLOWS_GPU_MEMORY_MB tells the command its share."""
    limit = f"{FRACTION_OPTION}:{os.environ.get(MEMORY_FRACTION, '')}"
    names = (name for name in ALLOCATOR_OPTIONS if limit in os.environ.get(name, ""))
    return {name: os.environ[name].replace(limit, "").rstrip(",") for name in names}


def _failure(why: str) -> State[None]:
    """Return the failure as a state: the traceback of an exception would show the code of this flow, and not
    what went wrong. Raise it if the run has a retry left, because Prefect retries only after an exception, or
    if it waits for more memory, because `runtimes.entry` looks for that in exceptions."""
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    has_retry = run and flow_run.run_count <= (run.empirical_policy.retries or 0)
    if has_retry or (os.environ.get(WAITS_FOR_MEMORY) and find_memory_failure(why)):
        raise CommandFailed(why)
    return Failed(message=why)


def _set_exit_code(code: int) -> None:
    """Let the process end with this code, unless this is a part of another flow."""
    if str(flow_run.id) == os.environ.get("PREFECT__FLOW_RUN_ID"):
        os.environ[contract.EXIT_CODE] = str(code)


def _send_to_run_logs(run_id: str) -> Emit:
    """Return a function that logs a line to the run, but not to the console, where stdout shows it."""
    logger, run = logging.getLogger("prefect.flow_runs"), {"flow_run_id": run_id}

    def emit(line: str) -> None:
        record = logger.makeRecord("command", logging.INFO, __file__, 0, line, (), None, extra=run)
        if logger.isEnabledFor(record.levelno) and logger.filter(record):
            for handler in logger.handlers:
                handler.handle(record)

    return emit
