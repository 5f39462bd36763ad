"""`gpu-flows submit`: submit commands, containers, or runs of a deployment."""

from __future__ import annotations

import getpass
import re
from contextlib import suppress
from dataclasses import replace
from typing import Any

import typer
from typer.core import TyperCommand

from gpu_flows.cli import output
from gpu_flows.cli.errors import FAILED, CommandError
from gpu_flows.cli.escaping import escape
from gpu_flows.cli.jobs.acceptance import is_refused, wait_for_notice
from gpu_flows.cli.jobs.arrays import split_limit
from gpu_flows.cli.jobs.creation import check_pool_runs_containers, create_runs
from gpu_flows.cli.jobs.deployments import CONTAINER, find_flow_deployment, find_named_deployment
from gpu_flows.cli.jobs.dry_run import foresee_runs, show_dry_run
from gpu_flows.cli.jobs.follow import Follower, print_state
from gpu_flows.cli.jobs.log_reader import LogReader, format_line
from gpu_flows.cli.jobs.requests import build_requests
from gpu_flows.cli.jobs.runs import find_array, find_run, shorten
from gpu_flows.cli.jobs.submit_options import SubmitOptions
from gpu_flows.cli.jobs.tables import draw_jobs
from gpu_flows.cli.options import DEFAULT_POOL, JsonOption, PoolOption, accepts, examples
from gpu_flows.cli.prefect_client import PrefectClient
from gpu_flows.cli.prefect_settings import build_run_url
from gpu_flows.worker.status import read_status

MOST_STREAMED = 100  # jobs whose output is printed side by side


class WithCommandLine(TyperCommand):
    """A command whose arguments after `--` are the user's command line, not options of ours."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options, words = args, None
        if "--" in args:
            options, words = args[: args.index("--")], args[args.index("--") + 1 :]
        ctx.obj = words
        return super().parse_args(ctx, options)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND ...]"]


@examples(
    "gpu-flows submit --gpus 2 --memory 8GB -- python train.py --epochs 3",
    "gpu-flows submit --shell --wait -- 'nvidia-smi > gpus.txt && python train.py'",
    "gpu-flows submit --array 1-10 --name seed -- python train.py --seed {index}",
    "gpu-flows submit train --sweep learning_rate=0.1,0.01 --sweep batch_size=32,64",
    "gpu-flows submit --after brave-otter,1ae36b2c -- python evaluate.py",
    "gpu-flows submit --image pytorch/pytorch --gpus 2 --mount /data:/data:ro -- python train.py",
    "gpu-flows submit --file jobs.json --wait",
    "gpu-flows submit train --gpus 4 --param model=cnn --param epochs=3 --wait",
    "gpu-flows submit train --image gpu-flows --gpus 4",
    cls=WithCommandLine,
)
@accepts(SubmitOptions)
def submit(
    options: SubmitOptions,
    context: typer.Context,
    pool: PoolOption = DEFAULT_POOL,
    as_json: JsonOption = False,
) -> None:
    """Submit a job: a command, a container, or a run of a deployment.

    A command follows after --. The pool's `command` deployment runs it; with --image, the pool's
    `container` deployment runs it in a container. With --image and no command, the image runs its own
    command. With --image and a deployment, the deployment's flow runs in that image, which must contain
    Prefect and the flow.

    --array submits one job for each index, and --sweep one for each combination of values. {index} and
    {NAME} in the command, in --param and in --env stand for them; GPU_FLOWS_ARRAY_INDEX holds the index.
    The jobs are named NAME[3] or NAME[lr=0.1]. With 1-10%4, at most 4 of the jobs run at the same time.

    A file holds one job or a list of jobs, with the keys name, type (PyTorch, Horovod, TensorFlow),
    container_image, command and required_gpus. The whole file is checked before any job is submitted.

    Parameter values are parsed as JSON if they are JSON, else taken as text. `config.model=cnn` sets one
    field of the parameter `config`.

    With --dry-run, nothing is submitted and nothing is written. The worker on this machine tells where the
    job would start and when, what it would wait for, and what would let it start earlier.

    The command returns when the worker has queued, started or refused the job, after 3 seconds at most. With
    --wait, it prints the job's output until the job ends. Exit code 1: a job was refused, or waited for and
    not completed; with --dry-run, that it would be refused.
    """
    flow, requests, is_list = build_requests(options, context.obj, pool)
    client = PrefectClient()
    if flow:
        deployment = find_flow_deployment(client, pool, flow)
    else:
        deployment = find_named_deployment(client, pool, options.deployment or [])
    pool = deployment.get("work_pool_name") or pool
    if flow == CONTAINER or options.image:
        check_pool_runs_containers(client, pool)
    before = {
        "after": _find_runs_before(client, pool, options.after or []),
        "after_any": _find_runs_before(client, pool, options.after_any or []),
    }
    before = {name: ids for name, ids in before.items() if ids}
    requests = [replace(each, variables={**each.variables, **before}) for each in requests]
    _, at_once = split_limit(options.array)
    if options.dry_run:
        foreseen = foresee_runs(pool, deployment, requests, options.user or _find_user())
        show_dry_run(foreseen, as_json, is_list)
        if any(each["refused"] for each in foreseen):
            raise typer.Exit(FAILED)
        return
    runs = create_runs(client, deployment, requests, options.user or _find_user(), at_once)
    if options.wait:
        runs = _follow(client, pool, runs, quiet=as_json)
    elif _is_served(client, pool):
        runs = wait_for_notice(client, pool, runs)
    else:
        _warn_without_worker(pool, runs)
    _show(runs, as_json, is_list)
    if any(is_refused(run) or (options.wait and run["state_type"] != "COMPLETED") for run in runs):
        raise typer.Exit(FAILED)


def _find_runs_before(client: PrefectClient, pool: str, given: list[str]) -> list[str]:
    """The ids of the runs of --after or --after-any. The name of an array stands for all its jobs."""
    wanted = [each.strip() for several in given for each in _split_names(several)]
    found = [find_array(client, pool, each) or [find_run(client, pool, each)] for each in wanted if each]
    return list(dict.fromkeys(run["id"] for runs in found for run in runs))


def _split_names(text: str) -> list[str]:
    """Split at commas, but not inside the brackets of `train[lr=0.1,batch=32]`."""
    return re.split(r",(?![^\[]*\])", text)


def _find_user() -> str:
    with suppress(Exception):  # a container's user may have no name
        return getpass.getuser()
    return ""


def _is_served(client: PrefectClient, pool: str) -> bool:
    """Whether a worker serves the pool; also true if the server does not tell."""
    with suppress(CommandError):
        return bool(read_status(pool) or client.list_workers(pool))
    return True


def _warn_without_worker(pool: str, runs: list[dict[str, Any]]) -> None:
    """Warn that the runs wait for a worker. Without one, no message on the run explains why it waits."""
    waiting = f"{runs[0]['name']} waits" if len(runs) == 1 else f"{len(runs)} jobs wait"
    output.print_remark(
        f"No worker serves pool {pool!r} now; {waiting} until one does: prefect worker start --pool {pool}"
    )


def _follow(
    client: PrefectClient, pool: str, runs: list[dict[str, Any]], quiet: bool
) -> list[dict[str, Any]]:
    """Wait until the runs have ended, with their output on stdout and their states on stderr."""
    if quiet:
        return Follower(client, runs).follow()
    if not _is_served(client, pool):
        _warn_without_worker(pool, runs)
    several = len(runs) > 1
    names = {run["id"]: f"{run['name']}: " if several else "" for run in runs}

    def print_line(line: dict[str, Any]) -> None:
        print(escape(names[line["flow_run_id"]]) + format_line(line), flush=True)

    if len(runs) > MOST_STREAMED:
        output.print_remark(f"These are more than {MOST_STREAMED} jobs, so only their states are printed.")
    reader = LogReader(client, names) if len(runs) <= MOST_STREAMED else None
    return Follower(client, runs, reader, print_line, lambda run: print_state(run, name_it=several)).follow()


def _show(runs: list[dict[str, Any]], as_json: bool, is_list: bool) -> None:
    summaries = [_summarize(run) for run in runs]
    if as_json:
        output.print_json(summaries if is_list else summaries[0])
    elif is_list:
        rows = [[shorten(each["id"]), each["run"], each["state"], each["message"]] for each in summaries]
        output.show(draw_jobs(["id", "run", "state", "message"], rows))
    else:
        output.show(output.make_value_list(*summaries[0].items()))


def _summarize(run: dict[str, Any]) -> dict[str, Any]:
    state = run.get("state") or {}
    return {
        "run": run["name"],
        "id": run["id"],
        "state": state.get("name"),
        "message": (state.get("message") or "").partition("\n")[0],  # what follows is for workers
        "ui": build_run_url(run["id"]),
    }
