"""`gpu-flows policy show` and `set`: the policy that decides for a pool, while its jobs run."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from gpu_flows.cli import parts
from gpu_flows.cli.parts import DEFAULT_POOL, JsonOption, PoolOption
from gpu_flows.cli.problem import BadInput, Problem, inert
from gpu_flows.cli.server import SCHEDULER, Server
from gpu_flows.schedulers.policy import PolicyError, make_policy
from gpu_flows.worker.status import Status, read_status

PATIENCE_S = 10.0  # a worker follows within a second when it hears of the change, at its poll otherwise

policy = typer.Typer(
    rich_markup_mode=None, add_completion=False, help="Show or change the policy that decides for a pool."
)
BlockOption = Annotated[
    str, typer.Option("--block", help="The GPU Scheduler block; the pool's own, if not said.")
]


@parts.examples("gpu-flows policy show", "gpu-flows policy show --json")
def show(pool: PoolOption = DEFAULT_POOL, block: BlockOption = "", as_json: JsonOption = False) -> None:
    """Show what the block says, what is in force, and why an edit was refused."""
    server = Server()
    name = block or server.block_name(pool, "scheduler")
    document = server.block(SCHEDULER, name)
    status = read_status(pool)
    found = {
        "pool": pool,
        "block": name,
        "says": document["data"].get("policy") if document else None,
        "in_force": status.policy["name"] if status else None,
        "options": status.policy["options"] if status else None,
        "serving": status.policy["serving"] if status else None,
        "error": status.policy["error"] if status else "",
    }
    if as_json:
        parts.print_json(found)
        return
    nobody = "unknown: no worker serves the pool on this machine"
    aside = found["serving"] != found["in_force"]
    parts.show(
        parts.lines(
            ("pool", pool),
            ("block", name),
            ("it says", _words(found["says"]) if document else "nothing: there is no such block yet"),
            ("in force", _in_force(status) if status else nobody),
            ("serving", f"{found['serving']}, until the policy is mended" if aside else ""),
            ("error", found["error"]),
        )
    )


@parts.examples(
    "gpu-flows policy set round_robin",
    "gpu-flows policy set round_robin --option wait_for_turn=true",
    "gpu-flows policy set fifo --option sharing=shared --option utilization_threshold=80",
)
def set_policy(
    name: Annotated[
        str, typer.Argument(metavar="POLICY", help="The policy; `gpu-flows policies` lists them.")
    ],
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", metavar="K=V", help="An option of the policy.")
    ] = None,
    block: BlockOption = "",
    pool: PoolOption = DEFAULT_POOL,
    as_json: JsonOption = False,
) -> None:
    """Save the policy in the pool's scheduler block. Jobs that run are not touched.

    Options that are not given get their defaults. Waits until the worker follows.
    """
    options = parts.assignments(option or [], "--option", parts.json_or_text)
    try:
        chosen = make_policy(name, options).options.model_dump(mode="json")
    except PolicyError as error:
        raise BadInput(str(error)) from None
    server = Server()
    used = server.block_name(pool, "scheduler")
    target = block or used
    document = server.block(SCHEDULER, target)
    if not (document and _save_in_place(server, document, name, chosen)):
        _save_with_prefect(document, target, name, chosen)
    outcome = _await(pool, name, chosen) if target == used else "other"
    if as_json:
        result = {"pool": pool, "block": target, "policy": name, "options": chosen}
        parts.print_json({**result, "in_force": outcome == "in force"})
    else:
        words = {
            "in force": f"Policy {name!r} is in force in pool {pool!r}.",
            "no worker": f"Saved. No worker serves pool {pool!r} on this machine; it counts when one does.",
            "late": f"Saved. The worker of pool {pool!r} has not followed within {PATIENCE_S:g} s;"
            " `gpu-flows policy show` tells.",
            "other": f"Saved in block {target!r}; pool {pool!r} uses block {used!r} and goes on as before.",
        }
        print(inert(words[outcome]))


# -- saving -----------------------------------------------------------------------------------


def _save_in_place(server: Server, document: dict[str, Any], name: str, options: dict[str, Any]) -> bool:
    """Change a block that is there, if the form it was saved with has this policy. Its protection stays."""
    forms = document["block_schema"]["fields"].get("definitions", {})
    if not options.keys() <= forms.get(name, {}).get("properties", {}).keys():
        return False
    data = {**document["data"], "policy": {**options, "name": name}}
    server.patch(f"/block_documents/{document['id']}", {"data": data, "merge_existing_data": False})
    return True


def _save_with_prefect(
    document: dict[str, Any] | None, block: str, name: str, options: dict[str, Any]
) -> None:
    """Make the block, or bring its form up to date; takes the seconds that Prefect needs to load."""
    from gpu_flows.blocks import GpuScheduler

    try:
        said = {"protection": document["data"].get("protection")} if document else {}
        before = GpuScheduler(**{key: value for key, value in said.items() if value})
        before.use(name, **options).save(block, overwrite=True)
    except Exception as error:
        raise Problem(f"The block {block!r} could not be saved: {error}") from None


# -- following --------------------------------------------------------------------------------


def _await(pool: str, name: str, options: dict[str, Any]) -> str:
    """Until the worker says that it follows; raises when it says that it does not."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        status = read_status(pool)
        if status is None:
            return "no worker"
        if (status.policy["name"], status.policy["options"]) == (name, options):
            if status.policy["error"]:
                raise Problem(f"Saved, but it does not work: {status.policy['error']}")
            return "in force"
        if time.monotonic() > deadline:
            return "late"
        time.sleep(0.1)


def _in_force(status: Status) -> str:
    return _words({"name": status.policy["name"], **status.policy["options"]})


def _words(said: Any) -> str:
    """`round_robin (sharing=exclusive, wait_for_turn=True)`."""
    if not isinstance(said, dict):
        return str(said)
    options = ", ".join(f"{name}={value}" for name, value in said.items() if name != "name")
    return f"{said.get('name')} ({options})" if options else str(said.get("name"))


parts.add(policy, "show", show)
parts.add(policy, "set", set_policy)
