"""`gpu-flows automations`: Prefect automations that tell of long waits, idle and sick GPUs, failed policies.

What they watch for is declared in `deployments/automations.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from typing import Annotated, Any

import typer

from gpu_flows.cli import output
from gpu_flows.cli.errors import BadInput
from gpu_flows.cli.options import (
    DEFAULT_POOL,
    JsonOption,
    PoolOption,
    add_command,
    examples,
    parse_assignments,
)
from gpu_flows.cli.prefect_client import NotFound, PrefectClient
from gpu_flows.common.quantities import parse_duration
from gpu_flows.common.suggestions import did_you_mean

LEAST_WITHIN_S = 10.0  # Prefect allows no shorter wait for something that does not happen

automations = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    help="Install Prefect automations that tell of long waits, idle and sick GPUs, and failed policies.",
)
OnlyOption = Annotated[
    list[str] | None, typer.Option("--only", metavar="NAME", help="Only this one; may be repeated.")
]


@examples(
    "gpu-flows automations install",
    "gpu-flows automations install --notify slack-webhook/my-block",
    "gpu-flows automations install --only waiting-long --within waiting-long=2h",
)
def install(
    pool: PoolOption = DEFAULT_POOL,
    notify: Annotated[
        str,
        typer.Option(
            metavar="TYPE/NAME", help="Send a notification with this block, slack-webhook/my-block."
        ),
    ] = "",
    only: OnlyOption = None,
    within: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TIME", help="How long an automation waits, such as waiting-long=2h."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Install the automations of a pool, or bring them up to date. One that was disabled stays so.

    Without --notify they do nothing but appear in the event feed when they are triggered.
    """
    chosen = _choose(only or [])
    _set_times(chosen, within or [])
    client = PrefectClient()
    client.read_pool(pool)
    block = _find_block(client, notify) if notify else None
    present = _find_present(client, pool)
    for definition in chosen:
        body = build_automation(definition, pool, block)
        if found := present.get(definition["name"]):
            client.put(f"/automations/{found['id']}", {**body, "enabled": found["enabled"]})
        else:
            client.post("/automations/", body)
    _show(client, pool, as_json)


@examples("gpu-flows automations list", "gpu-flows automations list --json")
def list_them(pool: PoolOption = DEFAULT_POOL, as_json: JsonOption = False) -> None:
    """List the automations that can be installed, and which of them the pool has."""
    _show(PrefectClient(), pool, as_json)


@examples("gpu-flows automations remove", "gpu-flows automations remove --only idle-gpu")
def remove(pool: PoolOption = DEFAULT_POOL, only: OnlyOption = None, as_json: JsonOption = False) -> None:
    """Remove the automations of a pool from the server."""
    names = [definition["name"] for definition in _choose(only or [])]
    client = PrefectClient()
    present = _find_present(client, pool)
    for name in names:
        if name in present:
            client.delete(f"/automations/{present[name]['id']}")
    _show(client, pool, as_json)


add_command(automations, "install", install)
add_command(automations, "list", list_them)
add_command(automations, "remove", remove)


def read_definitions() -> list[dict[str, Any]]:
    """Return what `deployments/automations.yaml` declares."""
    import yaml

    text = (files("gpu_flows") / "deployments" / "automations.yaml").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = yaml.safe_load(text)
    return found


def build_automation(definition: dict[str, Any], pool: str, block: str | None) -> dict[str, Any]:
    """Return the body with which Prefect's API creates an automation. `block` is the id of the block that it
    notifies."""
    filled = _fill(definition, pool)
    action = {"type": "do-nothing"}
    if block:
        texts = {"subject": filled["subject"], "body": filled["body"]}
        action = {"type": "send-notification", "block_document_id": block, **texts}
    return {
        "name": make_name(filled["name"], pool),
        "description": filled["description"],
        "enabled": True,
        "trigger": {"type": "event", "threshold": 1, "within": 0, **filled["trigger"]},
        "actions": [action],
    }


def make_name(name: str, pool: str) -> str:
    """Return the name of a pool's automation on the server."""
    return f"gpu-flows {name} ({pool})"


def _fill(value: Any, pool: str) -> Any:
    """Put the pool's name in place of `{pool}`, wherever it is."""
    match value:
        case str():
            return value.replace("{pool}", pool)
        case list():
            return [_fill(member, pool) for member in value]
        case dict():
            return {key: _fill(member, pool) for key, member in value.items()}
        case _:
            return value


def _choose(names: Iterable[str]) -> list[dict[str, Any]]:
    known = {definition["name"]: definition for definition in read_definitions()}
    for name in names:
        _check_name(name, known)
    return [definition for name, definition in known.items() if name in names or not names]


def _check_name(name: str, known: Iterable[str]) -> None:
    if name not in known:
        hint = did_you_mean(name, known) or f"There are: {', '.join(known)}."
        raise BadInput(f"No automation is called {name!r}.", hint)


def _set_times(chosen: list[dict[str, Any]], given: list[str]) -> None:
    """Replace how long the automations wait that can wait."""
    waiting = {d["name"]: d["trigger"] for d in chosen if d["trigger"]["posture"] == "Proactive"}
    for name, text in parse_assignments(given, "--within", str).items():
        _check_name(name, waiting)
        try:
            seconds = parse_duration(text)
        except ValueError as error:
            raise BadInput(f"--within {name}={text}: {error}.") from None
        if seconds < LEAST_WITHIN_S:
            raise BadInput(f"--within {name}={text} is too short; Prefect waits for at least 10 s.")
        waiting[name]["within"] = seconds


def _find_block(client: PrefectClient, notify: str) -> str:
    """Return the id of the notification block."""
    kind, _, name = notify.partition("/")
    if not kind or not name:
        raise BadInput(
            f"--notify {notify!r} is not of the form TYPE/NAME.", "Example: slack-webhook/my-block"
        )
    document = client.read_block(kind, name)
    if document is None:
        raise NotFound(
            f"The Prefect server has no block {notify!r}.", "Create it on the page Blocks of the UI."
        )
    if "notify" not in document["block_schema"]["capabilities"]:
        raise BadInput(
            f"Block {notify!r} cannot notify.", "Choose a notification block, such as Slack Webhook."
        )
    return str(document["id"])


def _find_present(client: PrefectClient, pool: str) -> dict[str, dict[str, Any]]:
    """Return the pool's automations on the server, by their names in the file."""
    names = {make_name(definition["name"], pool): definition["name"] for definition in read_definitions()}
    found = client.fetch_all("/automations/filter", automations={"name": {"any_": [*names]}})
    return {names[automation["name"]]: automation for automation in found}


def _show(client: PrefectClient, pool: str, as_json: bool) -> None:
    present = _find_present(client, pool)
    listed = [
        {
            "name": definition["name"],
            "state": _describe_state(present.get(definition["name"])),
            "description": definition["description"],
        }
        for definition in read_definitions()
    ]
    if as_json:
        output.print_json({"pool": pool, "automations": listed})
        return
    output.show(output.make_table(list(listed[0]), [list(row.values()) for row in listed]))


def _describe_state(automation: dict[str, Any] | None) -> str:
    if automation is None:
        return "not installed"
    if not automation["enabled"]:
        return "disabled"
    return "notifies" if automation["actions"][0]["type"] == "send-notification" else "event feed only"
