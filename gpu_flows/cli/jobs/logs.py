"""`gpu-flows logs RUN`: print what a job printed and what the worker said about it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpu_flows.cli import output
from gpu_flows.cli.errors import BadInput
from gpu_flows.cli.jobs.follow import Follower
from gpu_flows.cli.jobs.log_reader import LogReader, clean, format_line, name_level, read_output_file
from gpu_flows.cli.jobs.runs import RunArgument, find_run, name_run
from gpu_flows.cli.options import DEFAULT_POOL, JsonOption, PoolOption, examples
from gpu_flows.cli.prefect_client import PrefectClient
from gpu_flows.prefect_api.conventions import FINAL_STATES


@examples(
    "gpu-flows logs brave-otter",
    "gpu-flows logs 1ae36b2c --follow",
    "gpu-flows logs 1ae36b2c --tail 20 --times",
)
def logs(
    run: RunArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines until the run ends.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", min=0, metavar="N", help="Only the last N lines.")
    ] = None,
    times: Annotated[bool, typer.Option("--times", "-t", help="Print the time of each line.")] = False,
    pool: PoolOption = DEFAULT_POOL,
    as_json: JsonOption = False,
) -> None:
    """Print the logs of a run: the job's output, and the worker's lines, which are marked [worker].

    --json prints one object per line. With --follow, Ctrl-C ends the command, not the job.
    """
    client = PrefectClient()
    found = find_run(client, pool, run)
    reader = LogReader(client, [found["id"]])

    def print_line(line: dict[str, Any]) -> None:
        if as_json:
            output.print_json(_to_object(line), indent=None)
        else:
            print(format_line(line, times), flush=True)

    lines = reader.read_new() if tail is None else reader.read_last(tail)
    for line in lines:
        print_line(line)
    if follow and found["state_type"] not in FINAL_STATES:
        [found] = Follower(client, [found], reader, print_line).follow()
        output.print_remark(f"{name_run(found)} ended: {(found.get('state') or {}).get('name')}.")
    elif not lines and tail != 0:
        _print_output_file(found, pool, tail, as_json)


def _to_object(line: dict[str, Any]) -> dict[str, Any]:
    return {
        "time": line["timestamp"],
        "level": name_level(line["level"]),
        "logger": line["name"],
        "message": line["message"],
    }


def _print_output_file(run: dict[str, Any], pool: str, tail: int | None, as_json: bool) -> None:
    """Print what the job printed, from the file on this machine, or say that there is nothing."""
    found = read_output_file(run.get("work_pool_name") or pool, run["id"])
    if found is None:
        state = (run.get("state") or {}).get("name") or "new"
        output.print_remark(f"{name_run(run)} has no logs yet; its state is {state}.")
        return
    path, text = found
    if as_json:
        raise BadInput("The server has no logs of this run.", f"Its output is in {path}.")
    output.print_remark(f"The server has no logs of it; this is {path}:")
    lines = text.splitlines()
    for line in lines[len(lines) - tail :] if tail and tail < len(lines) else lines:
        print(clean(line))
