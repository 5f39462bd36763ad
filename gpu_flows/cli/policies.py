"""`gpu-flows policies`: every policy there is, with its rule and its options."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from gpu_flows.cli import parts
from gpu_flows.cli.parts import DEFAULT_POOL, JsonOption, PoolOption
from gpu_flows.cli.problem import inert
from gpu_flows.schedulers.policy import Policy
from gpu_flows.schedulers.policy import policies as all_policies
from gpu_flows.worker.status import read_status

_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


@parts.examples("gpu-flows policies", "gpu-flows policies --json | jq '.policies[].name'")
def policies(pool: PoolOption = DEFAULT_POOL, as_json: JsonOption = False) -> None:
    """List the policies there are: their rule, their options, and which one is in force."""
    status = read_status(pool)
    in_force = status.policy["name"] if status else None

    def look() -> dict[str, Any]:
        listed = [{**describe(each), "in_force": each.name == in_force} for each in all_policies().values()]
        return {"pool": pool, "in_force": in_force, "policies": listed}

    parts.present(look, _draw, as_json, watch=False)


def describe(policy: type[Policy]) -> dict[str, Any]:
    """A policy as data."""
    return {
        "name": policy.name,
        "rule": policy.rule(),
        "preempts": policy.preempts,
        "needs": list(policy.needs),
        "optimizes": policy.optimizes,
        "promises": list(policy.promises),
        "options": [
            {
                "name": name,
                "default": field.get("default"),
                "allowed": allowed(field),
                "description": field.get("description", ""),
            }
            for name, field in policy.Options.model_json_schema().get("properties", {}).items()
        ],
    }


def allowed(field: dict[str, Any]) -> str:
    """What an option may be, in a few characters: `exclusive | shared`, `number, > 0, <= 100`."""
    if "enum" in field:
        return " | ".join(map(str, field["enum"]))
    if "anyOf" in field:
        return " or ".join(allowed(each) for each in field["anyOf"])
    kind = "true | false" if field.get("type") == "boolean" else str(field.get("type", "any"))
    bounds = [f"{sign} {field[bound]:g}" for bound, sign in _BOUNDS.items() if bound in field]
    return ", ".join([kind, *bounds])


def _draw(found: dict[str, Any]) -> Group:
    shown: list[Any] = []
    for policy in found["policies"]:
        mark = " (in force)" if policy["in_force"] else ""
        shown.append(Text.assemble((policy["name"], "bold"), (mark, "green"), f"  {inert(policy['rule'])}"))
        facts = [f"for {policy['optimizes']}"] if policy["optimizes"] else []
        resizes = any(option["name"] == "elastic" for option in policy["options"])
        gently = "preempts only to resize (elastic)" if resizes else "never preempts"
        facts += ["preempts" if policy["preempts"] else gently]
        facts += [f"needs {', '.join(policy['needs'])}"] if policy["needs"] else []
        facts += [f"promises {' and '.join(policy['promises'])}"] if policy["promises"] else []
        shown.append(Padding(Text("; ".join(facts), style="dim"), (0, 0, 0, 2), expand=False))
        rows = [
            [each["name"], _value(each["default"]), each["allowed"], each["description"]]
            for each in policy["options"]
        ]
        if rows:
            columns = ["option", "default", "may be", "what it does"]
            shown.append(Padding(parts.table(columns, rows), (0, 0, 0, 2), expand=False))
        shown.append(Text())
    if found["in_force"] is None:
        shown.append(
            Text(f"No worker serves pool {found['pool']!r} on this machine, so none is in force here.", "dim")
        )
    return Group(*shown)


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
