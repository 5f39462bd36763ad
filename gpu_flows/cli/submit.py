"""`gpu-flows submit`: put a job in line, a command, a container or a run of a deployment."""

from __future__ import annotations

import getpass
import math
import re
import shlex
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperCommand

from gpu_flows.cli import containers, parts
from gpu_flows.cli.containers import Order
from gpu_flows.cli.parts import DEFAULT_POOL, JsonOption, PoolOption
from gpu_flows.cli.prefect_settings import page_of_run
from gpu_flows.cli.problem import INTERRUPTED, BadInput, Problem
from gpu_flows.cli.server import Rejected, Server
from gpu_flows.cli.targets import COMMAND, CONTAINER, deployment_named, deployment_of, parameters_of
from gpu_flows.runtimes.base import Pull
from gpu_flows.runtimes.docker.command_launchers import Launcher
from gpu_flows.worker.status import read_status

LOOK_EVERY_S = 0.5
FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


class WithCommandLine(TyperCommand):
    """Keeps the words after `--`, which are somebody else's command line, away from our options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ours, theirs = args, None
        if "--" in args:
            ours, theirs = args[: args.index("--")], args[args.index("--") + 1 :]
        ctx.obj = theirs
        return super().parse_args(ctx, ours)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND ...]"]


def _one_of(kinds: Any) -> str:
    return ", ".join(get_args(kinds)[:-1]) + f" or {get_args(kinds)[-1]}"


@parts.examples(
    "gpu-flows submit --gpus 2 -- python train.py --epochs 3",
    "gpu-flows submit --shell -- 'nvidia-smi > gpus.txt && python train.py'",
    "gpu-flows submit --image pytorch/pytorch --gpus 2 --mount /data:/data:ro -- python train.py",
    "gpu-flows submit --file jobs.json --wait",
    "gpu-flows submit train --gpus 4 --param model=cnn --param epochs=3 --wait",
    "gpu-flows submit train --image gpu-flows --gpus 4",
    cls=WithCommandLine,
)
def submit(
    context: typer.Context,
    deployment: Annotated[list[str] | None, typer.Argument(help="A deployment's name, or FLOW/NAME.")] = None,
    gpus: Annotated[int | None, typer.Option(metavar="N", help="Devices, all at the same time.")] = None,
    memory: Annotated[float | None, typer.Option(metavar="GB", help="Memory on each device.")] = None,
    priority: Annotated[int | None, typer.Option(metavar="N", help="Higher is more urgent.")] = None,
    priority_class: Annotated[
        str | None, typer.Option("--class", metavar="NAME", help="low, normal, high or urgent.")
    ] = None,
    min_gpus: Annotated[int | None, typer.Option(metavar="N", help="Fewer devices do, if need be.")] = None,
    max_gpus: Annotated[int | None, typer.Option(metavar="N", help="It has a use for more.")] = None,
    no_preempt: Annotated[bool, typer.Option("--no-preempt", help="Never stop it for others.")] = False,
    name: Annotated[str, typer.Option(help="A name for the run.")] = "",
    model: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Only such GPUs.")] = None,
    node: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Only such nodes.")] = None,
    span_nodes: Annotated[bool, typer.Option("--span-nodes", help="Devices of several nodes do.")] = False,
    expected: Annotated[float | None, typer.Option(metavar="S", help="How long it will run.")] = None,
    deadline: Annotated[float | None, typer.Option(metavar="S", help="By when it should be done.")] = None,
    env: Annotated[list[str] | None, typer.Option(metavar="K=V", help="Environment variable.")] = None,
    param: Annotated[list[str] | None, typer.Option(metavar="K=V", help="Parameter of the flow.")] = None,
    directory: Annotated[
        str,
        typer.Option(help="Where to run. A command runs in this directory, if the worker is here."),
    ] = "",
    shell: Annotated[bool, typer.Option("--shell", help="Hand the command to /bin/sh.")] = False,
    image: Annotated[str, typer.Option(metavar="IMG", help="Run it in a container of this image.")] = "",
    file: Annotated[Path | None, typer.Option(metavar="JSON", help="Containers, as a file says.")] = None,
    launcher: Annotated[
        str, typer.Option(metavar="HOW", help=f"In a container, on several GPUs: {_one_of(Launcher)}.")
    ] = "",
    mount: Annotated[
        list[str] | None, typer.Option(metavar="FROM:TO[:ro]", help="A folder of the host, where allowed.")
    ] = None,
    pull: Annotated[str, typer.Option(metavar="WHEN", help=f"Pull the image: {_one_of(Pull)}.")] = "",
    shm: Annotated[
        float | None, typer.Option(metavar="GB", help="Shared memory of the container; 1 if not said.")
    ] = None,
    memory_limit: Annotated[
        float | None, typer.Option(metavar="GB", help="Most main memory of the container.")
    ] = None,
    cpus: Annotated[float | None, typer.Option(metavar="N", help="Most CPUs of the container.")] = None,
    registry_credentials: Annotated[
        str, typer.Option(metavar="BLOCK", help="Docker Registry Credentials block, for a private image.")
    ] = "",
    user: Annotated[str, typer.Option(help="For whom. You, if not said.")] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Stay until it ends; exit 1 if it fails.")] = False,
    pool: PoolOption = DEFAULT_POOL,
    as_json: JsonOption = False,
) -> None:
    """Put a job in line: any command line, any container, or a run of a deployment.

    What comes after -- is run as a command by the pool's `command` deployment, or, with --image, in a
    container by its `container` deployment; without a command the image runs what it runs by itself.
    With --image a deployment's flow runs in that image, which needs Prefect and the flow in it.

    A file has a job, or a list of jobs, with the keys name, type (PyTorch, Horovod, TensorFlow),
    container_image, command and required_gpus. All of it is read before any of it is submitted.

    Parameters are JSON where they look like it, else text; `config.model=cnn` reaches inside one.
    """
    words = context.obj
    variables = _variables(
        {
            "gpus": gpus,
            "gpu_memory_gb": memory,
            "priority": priority,
            "priority_class": priority_class,
            "min_gpus": min_gpus,
            "max_gpus": max_gpus,
            "preemptible": False if no_preempt else None,
            "gpu_models": model,
            "nodes": node,
            "may_span_nodes": span_nodes or None,
            "expected_seconds": expected,
            "deadline_seconds": deadline,
            "env": parts.assignments(env or [], "--env", str) or None,
            "image": image or None,
            "pull": _choice("--pull", pull, Pull),
            "launcher": _choice("--launcher", launcher, Launcher),
            "mounts": mount or None,
            "shm_gb": shm,
            "memory_gb": memory_limit,
            "cpus": cpus,
            "registry_credentials": registry_credentials or None,
        }
    )
    given = parts.assignments(param or [], "--param", parts.json_or_text)
    is_list, flow = False, ""  # of which flow; empty for the deployment that is named
    if file:
        also = [f for f, said in (("--image", image), ("--gpus", gpus), ("--name", name)) if said]
        also += ["a deployment"] * bool(deployment) + ["a command"] * (words is not None)
        if also or given:
            raise BadInput(f"{file} says what to run: leave {(also or ['--param'])[0]} out.")
        flow, (orders, is_list) = CONTAINER, containers.read(file)
    elif image and not deployment:
        flow, orders = CONTAINER, [containers.typed(image, words, shell, gpus, name)]
        del variables["image"]
        variables.pop("gpus", None)
    elif words is not None:
        if stray := [flag for field, flag in _CONTAINER_FLAGS.items() if field in variables]:
            raise BadInput(f"{stray[0]} is for jobs in containers.", "Say which one with --image IMG.")
        flow, orders = COMMAND, [Order(_command(words, shell, directory or _here(pool)), name)]
    else:
        orders = [Order({}, name)]
    if directory and flow != COMMAND:
        variables["working_dir"] = directory
    if flow and deployment:
        raise BadInput(f"Name a deployment ({deployment[0]!r}) or give a command after --, not both.")
    server = Server()
    target = deployment_of(server, pool, flow) if flow else deployment_named(server, pool, deployment or [])
    if flow == CONTAINER or image:
        containers.check_pool(server, target.get("work_pool_name") or pool)
    runs = _create_all(server, target, variables, orders, given, user or _me())
    _tell(server, target, runs, quiet=as_json and wait)
    if wait:
        runs = _follow(server, runs, quiet=as_json)
    _show(runs, as_json, is_list)
    if wait and any(run["state_type"] != "COMPLETED" for run in runs):
        raise typer.Exit(1)


# -- what to run ------------------------------------------------------------------------------


def _variables(asked: dict[str, Any]) -> dict[str, Any]:
    """The job variables among these that were said."""
    variables = {field: value for field, value in asked.items() if value is not None}
    for field, value in variables.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise BadInput(f"{_FLAGS[field]} {value} is not a number that can be counted with.")
    return variables


def _choice(flag: str, said: str, kinds: Any) -> str | None:
    if said and said not in get_args(kinds):
        raise BadInput(f"{flag} {said!r} is none of {_one_of(kinds)}.")
    return said or None


def _command(words: list[str], shell: bool, directory: str) -> dict[str, Any]:
    """The parameters of the `command` flow."""
    if not words:
        raise BadInput("There is no command after --.", "For example: gpu-flows submit -- python train.py")
    line = words[0] if len(words) == 1 else " ".join(words) if shell else shlex.join(words)
    return {"command": line, "shell": shell, "working_directory": directory}


def _here(pool: str) -> str:
    """This directory, if the worker runs on this machine: then a command finds its files."""
    return str(Path.cwd()) if read_status(pool) else ""


def _me() -> str:
    with suppress(Exception):  # a container's user may have no name
        return getpass.getuser()
    return ""


# -- running it -------------------------------------------------------------------------------

_CONTAINER_FLAGS = {
    "pull": "--pull",
    "launcher": "--launcher",
    "mounts": "--mount",
    "shm_gb": "--shm",
    "memory_gb": "--memory-limit",
    "cpus": "--cpus",
    "registry_credentials": "--registry-credentials",
}
_FLAGS = {
    "gpus": "--gpus",
    "gpu_memory_gb": "--memory",
    "priority": "--priority",
    "priority_class": "--class",
    "min_gpus": "--min-gpus",
    "max_gpus": "--max-gpus",
    "gpu_models": "--model",
    "nodes": "--node",
    "expected_seconds": "--expected",
    "deadline_seconds": "--deadline",
    "env": "--env",
    "image": "--image",
    **_CONTAINER_FLAGS,
}
_FORM_FLAGS = {"container_image": "--image", "required_gpus": "--gpus"}  # fields of the `container` flow
_REFUSAL = re.compile(
    r"Validation failed(?: for field '(?P<field>[^']+)')?\. Failure reason: (?P<why>.*)", re.S
)


def _create_all(
    server: Server,
    target: dict[str, Any],
    variables: dict[str, Any],
    orders: Sequence[Order],
    given: dict[str, Any],
    user: str,
) -> list[dict[str, Any]]:
    """A run for each, in order. What is refused halfway does not take back what went before."""
    runs: list[dict[str, Any]] = []
    for order in orders:
        try:
            parameters = parameters_of(target, {**order.parameters, **given})
            runs.append(_create(server, target, variables, parameters, order, user))
        except Problem as problem:
            if not runs:
                raise
            done = f"{len(runs)} of {len(orders)} jobs were submitted before it."
            raise Problem(problem.what, done, problem.exit_code) from None
    return runs


def _create(
    server: Server,
    deployment: dict[str, Any],
    variables: dict[str, Any],
    parameters: dict[str, Any],
    order: Order,
    user: str,
) -> dict[str, Any]:
    body = {
        "job_variables": variables,
        "parameters": parameters,
        "tags": [f"user:{user}"] if user else [],
        "idempotency_key": str(uuid.uuid4()),  # a busy server may have done what it says it could not
        **({"name": order.name} if order.name else {}),
    }
    try:
        return dict(server.post(f"/deployments/{deployment['id']}/create_flow_run", body))
    except Rejected as rejected:
        told = _REFUSAL.search(rejected.detail)
        if not told:
            raise
        field, why = told["field"] or "", told["why"].strip().rstrip(".")
        typed = {} if order.where else _FORM_FLAGS
        what = _FLAGS.get(field) or typed.get(field) or (f"parameter {field}" if field else "the parameters")
        what = f"{order.where}{field if order.where and field in containers.KEYS else what}"
        raise BadInput(f"{what}: {why}.", "Nothing was submitted; see `gpu-flows submit --help`.") from None


def _tell(server: Server, deployment: dict[str, Any], runs: list[dict[str, Any]], quiet: bool) -> None:
    """A job in a pool that nobody serves would wait without a word."""
    pool = deployment.get("work_pool_name") or ""
    with suppress(Problem):
        if not quiet and not read_status(pool) and not server.workers(pool):
            who = f"{runs[0]['name']} waits" if len(runs) == 1 else f"{len(runs)} jobs wait"
            parts.remark(f"No worker serves pool {pool!r} now; {who} until one does.")


def _follow(server: Server, runs: list[dict[str, Any]], quiet: bool) -> list[dict[str, Any]]:
    """Tell each new state on stderr, until the last one."""
    told: dict[str, str] = {}
    try:
        while True:
            for run in runs:
                state = run.get("state") or {}
                if state.get("id") != told.get(run["id"]) and not quiet:
                    told[run["id"]] = state.get("id", "")
                    who = f"{run['name']}  " if len(runs) > 1 else ""
                    what = f"{who}{state.get('name', '')}  {state.get('message') or ''}".rstrip()
                    parts.remark(f"{time.strftime('%H:%M:%S')}  {what}")
            if all(run["state_type"] in FINAL for run in runs):
                return runs
            time.sleep(LOOK_EVERY_S)
            runs = [
                run if run["state_type"] in FINAL else server.get(f"/flow_runs/{run['id']}") for run in runs
            ]
    except KeyboardInterrupt:
        for run in runs:
            if run["state_type"] not in FINAL:
                parts.remark(f"{run['name']} goes on without you; `gpu-flows why {run['id']}` tells of it.")
        raise typer.Exit(INTERRUPTED) from None


def _show(runs: list[dict[str, Any]], as_json: bool, is_list: bool) -> None:
    told = [_summary(run) for run in runs]
    if as_json:
        parts.print_json(told if is_list else told[0])
    elif is_list:
        columns = ("run", "id", "state", "message")
        parts.show(parts.table(columns, [[each[name] for name in columns] for each in told]))
    else:
        parts.show(parts.lines(*told[0].items()))


def _summary(run: dict[str, Any]) -> dict[str, Any]:
    state = run.get("state") or {}
    return {
        "run": run["name"],
        "id": run["id"],
        "state": state.get("name"),
        "message": state.get("message") or "",
        "ui": page_of_run(run["id"]),
    }
