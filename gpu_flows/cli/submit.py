"""`gpu-flows submit`: put a job in line, a command or a run of a deployment."""

from __future__ import annotations

import getpass
import math
import re
import shlex
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from typer.core import TyperCommand

from gpu_flows.cli import parts
from gpu_flows.cli.parts import DEFAULT_POOL, JsonOption, PoolOption
from gpu_flows.cli.prefect_settings import page_of_run
from gpu_flows.cli.problem import INTERRUPTED, BadInput, Problem
from gpu_flows.cli.server import NotFound, Rejected, Server
from gpu_flows.status import read_status

COMMAND_FLOW = "command"
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


@parts.examples(
    "gpu-flows submit --gpus 2 -- python train.py --epochs 3",
    "gpu-flows submit --shell -- 'nvidia-smi > gpus.txt && python train.py'",
    "gpu-flows submit train --gpus 4 --param model=cnn --param epochs=3 --wait",
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
        str, typer.Option(help="Where to run. A command runs in this directory, if the worker is here.")
    ] = "",
    shell: Annotated[bool, typer.Option("--shell", help="Hand the command to /bin/sh.")] = False,
    user: Annotated[str, typer.Option(help="For whom. You, if not said.")] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Stay until it ends; exit 1 if it fails.")] = False,
    pool: PoolOption = DEFAULT_POOL,
    as_json: JsonOption = False,
) -> None:
    """Put a job in line: any command line, or a run of a deployment.

    What comes after -- is run as a command by the pool's `command` deployment. Parameters are
    JSON where they look like it, else text; `config.model=cnn` reaches inside one.
    """
    wanted = {
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
    }
    variables: dict[str, Any] = {field: value for field, value in wanted.items() if value is not None}
    for field, value in variables.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise BadInput(f"{_FLAGS[field]} {value} is not a number that can be counted with.")
    given = parts.assignments(param or [], "--param", parts.json_or_text)
    if context.obj is not None:
        given = {**_command(context.obj, shell, directory or _here(pool)), **given}
    elif directory:
        variables["working_dir"] = directory
    server = Server()
    target = (
        _deployment(server, pool, deployment or [])
        if context.obj is None
        else _command_deployment(server, pool, deployment)
    )
    run = _create(server, target, variables, _parameters(target, given), name, user or _me())
    _tell(server, target, run, quiet=as_json and wait)
    if wait:
        run = _follow(server, run, quiet=as_json)
    if as_json:
        parts.print_json(_summary(run))
    else:
        parts.show(parts.lines(*_summary(run).items()))
    if wait and run["state_type"] != "COMPLETED":
        raise typer.Exit(1)


# -- what to run ------------------------------------------------------------------------------


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


def _command_deployment(server: Server, pool: str, stray: list[str] | None) -> dict[str, Any]:
    if stray:
        raise BadInput(f"Name a deployment ({stray[0]!r}) or give a command after --, not both.")
    found = _in_pool(server, pool, flows={"name": {"any_": [COMMAND_FLOW]}})
    named = [each for each in found if each["name"] == COMMAND_FLOW] or found
    if not named:
        server.pool(pool)  # if the pool is missing, that is the news
        raise NotFound(
            f"Pool {pool!r} has no deployment of the flow `command`, which runs command lines.",
            "Put it there with `gpu-flows up`, or `prefect deploy --name command` in the project.",
        )
    return named[0]


def _deployment(server: Server, pool: str, words: list[str]) -> dict[str, Any]:
    if len(words) != 1:
        what = "More than one deployment is named." if words else "Nothing to run."
        line = shlex.join(words) or "python train.py"
        raise BadInput(what, f"Name one deployment, or put -- before a command: gpu-flows submit -- {line}")
    flow, slash, name = words[0].rpartition("/")
    if slash:
        with suppress(NotFound):
            return dict(server.get(f"/deployments/name/{quote(flow, safe='')}/{quote(name, safe='')}"))
        found = []
    else:
        found = _in_pool(server, pool, deployments={"name": {"any_": [name]}})
    if not found:
        server.pool(pool)
        there = ", ".join(sorted(each["name"] for each in _in_pool(server, pool))) or "none"
        raise NotFound(
            f"There is no deployment {words[0]!r}. Those of pool {pool!r}: {there}.",
            f"To run a command, put -- before it: gpu-flows submit -- {shlex.join(words)}",
        )
    if len(found) > 1:
        flows = sorted(server.get(f"/flows/{each['flow_id']}")["name"] for each in found)
        raise BadInput(f"Several flows have a deployment {name!r}: {', '.join(flows)}.", "Write FLOW/NAME.")
    return found[0]


def _in_pool(server: Server, pool: str, **which: Any) -> list[dict[str, Any]]:
    return list(server.page("/deployments/filter", work_pools={"name": {"any_": [pool]}}, **which))


def _parameters(deployment: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """`config.model` reaches inside `config`; what the deployment says of it otherwise stays."""
    schema = deployment.get("parameter_openapi_schema") or {}
    form = schema.get("properties") or {}
    parameters: dict[str, Any] = {}
    for path, value in given.items():
        top, *inside = path.split(".")
        if form and top not in form:
            top, inside = _inside_one(schema, form, path), path.split(".")
        if not inside:
            parameters[top] = value
            continue
        known = (deployment.get("parameters") or {}).get(top)
        place = parameters.setdefault(top, dict(known) if isinstance(known, dict) else {})
        for step in inside[:-1]:
            place = place.setdefault(step, {})
        place[inside[-1]] = value
    return parameters


def _inside_one(schema: dict[str, Any], form: dict[str, Any], path: str) -> str:
    """The one parameter that has a field of this name: `model` is `config.model`."""
    definitions = schema.get("definitions") or {}
    field = path.split(".")[0]
    holders = []
    for name, described in form.items():
        references = re.findall(r"#/definitions/([^'\"]+)", str(described))
        if any(field in (definitions.get(each) or {}).get("properties", {}) for each in references):
            holders.append(name)
    if len(holders) != 1:
        raise BadInput(f"The flow has no parameter {field!r}. It has: {', '.join(form)}.")
    return holders[0]


# -- running it -------------------------------------------------------------------------------

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
}
_REFUSAL = re.compile(
    r"Validation failed(?: for field '(?P<field>[^']+)')?\. Failure reason: (?P<why>.*)", re.S
)


def _create(
    server: Server,
    deployment: dict[str, Any],
    variables: dict[str, Any],
    parameters: dict[str, Any],
    name: str,
    user: str,
) -> dict[str, Any]:
    body = {
        "job_variables": variables,
        "parameters": parameters,
        "tags": [f"user:{user}"] if user else [],
        "idempotency_key": str(uuid.uuid4()),  # a busy server may have done what it says it could not
        **({"name": name} if name else {}),
    }
    try:
        return dict(server.post(f"/deployments/{deployment['id']}/create_flow_run", body))
    except Rejected as rejected:
        told = _REFUSAL.search(rejected.detail)
        if not told:
            raise
        field, why = told["field"] or "", told["why"].strip().rstrip(".")
        what = _FLAGS.get(field) or (f"parameter {field}" if field else "the parameters")
        raise BadInput(f"{what}: {why}.", "Nothing was submitted; see `gpu-flows submit --help`.") from None


def _tell(server: Server, deployment: dict[str, Any], run: dict[str, Any], quiet: bool) -> None:
    """A job in a pool that nobody serves would wait without a word."""
    pool = deployment.get("work_pool_name") or ""
    with suppress(Problem):
        if not quiet and not read_status(pool) and not server.workers(pool):
            parts.remark(f"No worker serves pool {pool!r} now; {run['name']} waits until one does.")


def _follow(server: Server, run: dict[str, Any], quiet: bool) -> dict[str, Any]:
    """Tell each new state on stderr, until the last one."""
    last = ""
    try:
        while True:
            state = run.get("state") or {}
            if state.get("id") != last and not quiet:
                last = state.get("id", "")
                clock = time.strftime("%H:%M:%S")
                parts.remark(f"{clock}  {state.get('name', '')}  {state.get('message') or ''}".rstrip())
            if run["state_type"] in FINAL:
                return run
            time.sleep(LOOK_EVERY_S)
            run = server.get(f"/flow_runs/{run['id']}")
    except KeyboardInterrupt:
        parts.remark(f"{run['name']} goes on without you; `gpu-flows why {run['id']}` tells of it.")
        raise typer.Exit(INTERRUPTED) from None


def _summary(run: dict[str, Any]) -> dict[str, Any]:
    state = run.get("state") or {}
    return {
        "run": run["name"],
        "id": run["id"],
        "state": state.get("name"),
        "message": state.get("message") or "",
        "ui": page_of_run(run["id"]),
    }
