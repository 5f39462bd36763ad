"""`gpu-flows policies`: every available policy, with its rule and its options."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from gpu_flows.cli import output
from gpu_flows.cli.escaping import escape
from gpu_flows.cli.options import DEFAULT_POOL, JsonOption, PoolOption, examples
from gpu_flows.schedulers.policy import Policy
from gpu_flows.schedulers.policy import policies as all_policies
from gpu_flows.worker.status import read_status

LEAST_TEXT = 30  # characters for the description of an option
_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


@examples("gpu-flows policies", "gpu-flows policies --json | jq '.policies[].name'")
def policies(pool: PoolOption = DEFAULT_POOL, as_json: JsonOption = False) -> None:
    """List the available policies: their rules, their options, and which one is in force."""
    status = read_status(pool)
    in_force = status.policy["name"] if status else None

    def read() -> dict[str, Any]:
        listed = [
            {**_describe(policy), "in_force": policy.name == in_force} for policy in all_policies().values()
        ]
        return {"pool": pool, "in_force": in_force, "policies": listed}

    output.show_or_watch(read, _draw, as_json, watch=False)


def _describe(policy: type[Policy]) -> dict[str, Any]:
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
                "allowed": _describe_values(field),
                "description": field.get("description", ""),
            }
            for name, field in policy.Options.model_json_schema().get("properties", {}).items()
        ],
    }


def _describe_values(field: dict[str, Any]) -> str:
    """The values that an option accepts, in short: `exclusive | shared`, `number, > 0, <= 100`."""
    if "enum" in field:
        return " | ".join(map(str, field["enum"]))
    if "anyOf" in field:
        return " or ".join(map(_describe_values, field["anyOf"]))
    kind = "true | false" if field.get("type") == "boolean" else str(field.get("type", "any"))
    bounds = [f"{sign} {field[bound]:g}" for bound, sign in _BOUNDS.items() if bound in field]
    return ", ".join([kind, *bounds])


def _draw(found: dict[str, Any]) -> Group:
    shown: list[Any] = []
    for policy in found["policies"]:
        mark = " (in force)" if policy["in_force"] else ""
        shown.append(Text.assemble((policy["name"], "bold"), (mark, "green"), f"  {escape(policy['rule'])}"))
        shown.append(Padding(Text("; ".join(_list_traits(policy)), style="dim"), (0, 0, 0, 2), expand=False))
        rows = [
            [option["name"], _format_value(option["default"]), option["allowed"], option["description"]]
            for option in policy["options"]
        ]
        if rows:
            shown.append(Padding(_draw_options(rows), (0, 0, 0, 2), expand=False))
        shown.append(Text())
    if found["in_force"] is None:
        shown.append(
            Text(f"No worker serves pool {found['pool']!r} on this machine, so none is in force here.", "dim")
        )
    return Group(*shown)


def _draw_options(rows: list[list[str]]) -> RenderableType:
    """A table, or a list where the terminal is too narrow for it: the last column must have some room."""
    columns = ["option", "default", "may be", "what it does"]
    without_text = [[*row[:-1], "x" * LEAST_TEXT] for row in rows]
    if output.fits(Padding(output.make_table(columns, without_text), (0, 0, 0, 2), expand=False)):
        return output.make_table(columns, rows)
    return output.make_value_list(
        *((name, f"{default} ({allowed})\n{text}".strip()) for name, default, allowed, text in rows)
    )


def _list_traits(policy: dict[str, Any]) -> list[str]:
    traits = [f"for {policy['optimizes']}"] if policy["optimizes"] else []
    if policy["preempts"]:
        traits += ["preempts"]
    elif any(option["name"] == "elastic" for option in policy["options"]):
        traits += ["preempts only to resize (elastic)"]
    else:
        traits += ["never preempts"]
    traits += [f"needs {', '.join(policy['needs'])}"] if policy["needs"] else []
    traits += [f"promises {' and '.join(policy['promises'])}"] if policy["promises"] else []
    return traits


def _format_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
