"""Which deployment a run is made of, and with which parameters."""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from gpu_flows.cli.problem import BadInput
from gpu_flows.cli.server import NotFound, Server

COMMAND, CONTAINER = "command", "container"  # flows of ours
RUNS = {COMMAND: "command lines", CONTAINER: "containers"}


def deployment_of(server: Server, pool: str, flow: str) -> dict[str, Any]:
    """The pool's deployment of a flow of ours; of several, the one of the same name."""
    found = _in_pool(server, pool, flows={"name": {"any_": [flow]}})
    named = [each for each in found if each["name"] == flow] or found
    if not named:
        server.pool(pool)  # if the pool is missing, that is the news
        raise NotFound(
            f"Pool {pool!r} has no deployment of the flow `{flow}`, which runs {RUNS[flow]}.",
            f"Put it there with `gpu-flows up`, or `prefect deploy --name {flow}` in the project.",
        )
    return named[0]


def deployment_named(server: Server, pool: str, words: list[str]) -> dict[str, Any]:
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


def parameters_of(deployment: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
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
