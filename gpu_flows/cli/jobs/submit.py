"""`gpu-flows submit`: submit a command, containers, or a run of a deployment."""

from __future__ import annotations

import getpass
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from gpu_flows.cli import output
from gpu_flows.cli.errors import FAILED, BadInput, CommandError
from gpu_flows.cli.jobs.creation import check_pool_runs_containers, create_runs
from gpu_flows.cli.jobs.deployments import COMMAND, CONTAINER, find_flow_deployment, find_named_deployment
from gpu_flows.cli.jobs.follow import follow_runs
from gpu_flows.cli.jobs.requests import JobRequest, read_requests, request_command, request_container
from gpu_flows.cli.jobs.submit_options import CONTAINER_FLAGS, SubmitOptions, build_job_variables
from gpu_flows.cli.options import (
    DEFAULT_POOL,
    JsonOption,
    PoolOption,
    accepts,
    examples,
    parse_assignments,
    parse_json_or_text,
)
from gpu_flows.cli.prefect_client import PrefectClient
from gpu_flows.cli.prefect_settings import build_run_url
from gpu_flows.worker.status import read_status


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
    "gpu-flows submit --gpus 2 -- python train.py --epochs 3",
    "gpu-flows submit --shell -- 'nvidia-smi > gpus.txt && python train.py'",
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

    A file holds one job or a list of jobs, with the keys name, type (PyTorch, Horovod, TensorFlow),
    container_image, command and required_gpus. The whole file is checked before any job is submitted.

    Parameter values are parsed as JSON if they are JSON, else taken as text. `config.model=cnn` sets one
    field of the parameter `config`.
    """
    variables = build_job_variables(options)
    parameters = parse_assignments(options.param or [], "--param", parse_json_or_text)
    flow, requests, is_list = _choose_requests(options, context.obj, variables, pool)
    if options.directory and flow != COMMAND:
        variables["working_dir"] = options.directory
    client = PrefectClient()
    if flow:
        deployment = find_flow_deployment(client, pool, flow)
    else:
        deployment = find_named_deployment(client, pool, options.deployment or [])
    if flow == CONTAINER or options.image:
        check_pool_runs_containers(client, deployment.get("work_pool_name") or pool)
    runs = create_runs(client, deployment, variables, requests, parameters, options.user or _find_user())
    if not (as_json and options.wait):
        _warn_without_worker(client, deployment.get("work_pool_name") or "", runs)
    if options.wait:
        runs = follow_runs(client, runs, quiet=as_json)
    _show(runs, as_json, is_list)
    if options.wait and any(run["state_type"] != "COMPLETED" for run in runs):
        raise typer.Exit(FAILED)


def _choose_requests(
    options: SubmitOptions, words: list[str] | None, variables: dict[str, Any], pool: str
) -> tuple[str, list[JobRequest], bool]:
    """The flow to run (empty: the named deployment's), the requests, and whether they come from a list.

    Removes the variables that the parameters of the `container` flow replace.
    """
    if options.file:
        _check_file_alone(options, words)
        requests, is_list = read_requests(options.file)
        return CONTAINER, requests, is_list
    if words is not None and options.deployment:
        raise BadInput(f"Name a deployment ({options.deployment[0]!r}) or give a command after --, not both.")
    if options.image and not options.deployment:
        for replaced in ("image", "gpus"):
            variables.pop(replaced, None)
        request = request_container(options.image, words, options.shell, options.gpus, options.name)
        return CONTAINER, [request], False
    if words is not None:
        if stray := [flag for variable, flag in CONTAINER_FLAGS.items() if variable in variables]:
            raise BadInput(f"{stray[0]} is for jobs in containers.", "Name the image with --image IMG.")
        directory = options.directory or _find_directory(pool)
        return COMMAND, [request_command(words, options.shell, directory, options.name)], False
    return "", [JobRequest({}, options.name)], False


def _check_file_alone(options: SubmitOptions, words: list[str] | None) -> None:
    """Refuse options that repeat what a file of jobs states."""
    given = {
        "--image": options.image,
        "--gpus": options.gpus,
        "--name": options.name,
        "a deployment": options.deployment,
        "a command": words is not None,
        "--param": options.param,
    }
    if repeated := [name for name, value in given.items() if value]:
        raise BadInput(f"{options.file} states what to run: leave {repeated[0]} out.")


def _find_directory(pool: str) -> str:
    """The current directory, if the pool's worker runs on this machine and so can use it."""
    return str(Path.cwd()) if read_status(pool) else ""


def _find_user() -> str:
    with suppress(Exception):  # a container's user may have no name
        return getpass.getuser()
    return ""


def _warn_without_worker(client: PrefectClient, pool: str, runs: list[dict[str, Any]]) -> None:
    """Warn that the runs wait for a worker. Without one, no message on the run explains why it waits."""
    with suppress(CommandError):
        if not read_status(pool) and not client.list_workers(pool):
            waiting = f"{runs[0]['name']} waits" if len(runs) == 1 else f"{len(runs)} jobs wait"
            output.print_remark(f"No worker serves pool {pool!r} now; {waiting} until one does.")


def _show(runs: list[dict[str, Any]], as_json: bool, is_list: bool) -> None:
    summaries = [_summarize(run) for run in runs]
    if as_json:
        output.print_json(summaries if is_list else summaries[0])
    elif is_list:
        columns = ("run", "id", "state", "message")
        output.show(
            output.make_table(columns, [[summary[name] for name in columns] for summary in summaries])
        )
    else:
        output.show(output.make_value_list(*summaries[0].items()))


def _summarize(run: dict[str, Any]) -> dict[str, Any]:
    state = run.get("state") or {}
    return {
        "run": run["name"],
        "id": run["id"],
        "state": state.get("name"),
        "message": state.get("message") or "",
        "ui": build_run_url(run["id"]),
    }
