"""Finding the deployment that a run is created from, and building the run's parameters."""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from gpu_flows.cli.errors import BadInput
from gpu_flows.cli.prefect_client import NotFound, PrefectClient
from gpu_flows.common.suggestions import did_you_mean

COMMAND, CONTAINER = "command", "container"  # flows of this package
_WHAT_RUNS = {COMMAND: "commands", CONTAINER: "containers"}


def find_flow_deployment(client: PrefectClient, pool: str, flow: str) -> dict[str, Any]:
    """The pool's deployment of a flow of this package; of several, the one that is named like the flow."""
    found = _find_in_pool(client, pool, flows={"name": {"any_": [flow]}})
    named = [deployment for deployment in found if deployment["name"] == flow] or found
    if not named:
        client.read_pool(pool)  # raises a clearer error if the pool itself is missing
        raise NotFound(
            f"Pool {pool!r} has no deployment of the flow `{flow}`, which runs {_WHAT_RUNS[flow]}.",
            f"Create it with `gpu-flows up`, or `prefect deploy --name {flow}` in the project.",
        )
    return named[0]


def find_named_deployment(client: PrefectClient, pool: str, names: list[str]) -> dict[str, Any]:
    """The deployment NAME or FLOW/NAME, which must be the only name given."""
    if len(names) != 1:
        what = "More than one deployment is named." if names else "There is nothing to run."
        line = shlex.join(names) or "python train.py"
        raise BadInput(what, f"Name one deployment, or put -- before a command: gpu-flows submit -- {line}")
    flow, slash, name = names[0].rpartition("/")
    if slash:
        with suppress(NotFound):
            return dict(client.get(f"/deployments/name/{quote(flow, safe='')}/{quote(name, safe='')}"))
        found = []
    else:
        found = _find_in_pool(client, pool, deployments={"name": {"any_": [name]}})
    if not found:
        client.read_pool(pool)  # raises a clearer error if the pool itself is missing
        existing = sorted(each["name"] for each in _find_in_pool(client, pool))
        advice = f"To run a command, put -- before it: gpu-flows submit -- {shlex.join(names)}"
        raise NotFound(
            f"There is no deployment {names[0]!r}. Those of pool {pool!r}: {', '.join(existing) or 'none'}.",
            f"{did_you_mean(name, existing)} {advice}".strip(),
        )
    if len(found) > 1:
        flows = sorted(client.get(f"/flows/{deployment['flow_id']}")["name"] for deployment in found)
        raise BadInput(f"Several flows have a deployment {name!r}: {', '.join(flows)}.", "Write FLOW/NAME.")
    return found[0]


def _find_in_pool(client: PrefectClient, pool: str, **which: Any) -> list[dict[str, Any]]:
    return list(client.fetch_all("/deployments/filter", work_pools={"name": {"any_": [pool]}}, **which))


def build_parameters(deployment: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a run. `config.model` sets one field of `config` and keeps the deployment's other
    fields; `model` alone does the same if exactly one parameter has a field of that name."""
    schema = deployment.get("parameter_openapi_schema") or {}
    properties = schema.get("properties") or {}
    parameters: dict[str, Any] = {}
    for path, value in given.items():
        top, *inside = path.split(".")
        if properties and top not in properties:
            top, inside = _find_parameter_with_field(schema, properties, top), path.split(".")
        if not inside:
            parameters[top] = value
            continue
        default = (deployment.get("parameters") or {}).get(top)
        target = parameters.setdefault(top, dict(default) if isinstance(default, dict) else {})
        for step in inside[:-1]:
            target = target.setdefault(step, {})
        target[inside[-1]] = value
    return parameters


def _find_parameter_with_field(schema: dict[str, Any], properties: dict[str, Any], field: str) -> str:
    """The one parameter that has a field of this name. Raises BadInput if none or several have it."""
    fields = {name: _list_fields(schema, described) for name, described in properties.items()}
    found = [name for name, names in fields.items() if field in names]
    if len(found) == 1:
        return found[0]
    if found:
        choices = " or ".join(f"{name}.{field}" for name in found)
        raise BadInput(f"Several parameters have a field {field!r}.", f"Write {choices}.")
    known = [*properties, *(each for names in fields.values() for each in names)]
    listed = ", ".join(dict.fromkeys(known))
    raise BadInput(f"The flow has no parameter {field!r}. It has: {listed}.", did_you_mean(field, known))


def _list_fields(schema: dict[str, Any], described: dict[str, Any]) -> list[str]:
    """The fields of a parameter whose type is a model."""
    definitions = schema.get("definitions") or {}
    models = re.findall(r"#/definitions/([^'\"]+)", str(described))
    return [name for model in models for name in (definitions.get(model) or {}).get("properties", {})]
