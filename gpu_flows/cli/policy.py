"""`gpu-flows policy show` and `policy set`: a pool's policy, which can change while jobs run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpu_flows.cli import output
from gpu_flows.cli.errors import BadInput, CommandError
from gpu_flows.cli.escaping import escape
from gpu_flows.cli.options import (
    DEFAULT_POOL,
    JsonOption,
    PoolOption,
    add_command,
    examples,
    parse_assignments,
    parse_json_or_text,
)
from gpu_flows.cli.prefect_client import SCHEDULER_BLOCK, PrefectClient
from gpu_flows.common.retry import wait_until
from gpu_flows.schedulers.policy import PolicyError, make_policy
from gpu_flows.worker.status import Status, read_status

TIMEOUT_S = 10.0  # a worker applies a change within a second of its event, or else at its next poll

policy = typer.Typer(rich_markup_mode=None, add_completion=False, help="Show or change the policy of a pool.")
BlockOption = Annotated[
    str, typer.Option("--block", help="The GPU Scheduler block; default: the pool's own.")
]


@examples("gpu-flows policy show", "gpu-flows policy show --json")
def show(pool: PoolOption = DEFAULT_POOL, block: BlockOption = "", as_json: JsonOption = False) -> None:
    """Show the policy in the block, the policy in force, and why an edit was refused."""
    client = PrefectClient()
    name = block or client.find_block_name(pool, "scheduler")
    document = client.read_block(SCHEDULER_BLOCK, name)
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
        output.print_json(found)
        return
    unknown = "unknown: no worker serves the pool on this machine"
    failed = found["serving"] != found["in_force"]
    output.show(
        output.make_value_list(
            ("pool", pool),
            ("block", name),
            ("in block", _describe(found["says"]) if document else "nothing: the block does not exist yet"),
            ("in force", _describe_in_force(status) if status else unknown),
            ("serving", f"{found['serving']}, until the policy is corrected" if failed else ""),
            ("error", found["error"]),
        )
    )


@examples(
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
    """Save the policy in the pool's scheduler block. Running jobs are not touched.

    Options that are not given get their defaults. The command waits until the worker applies the change.
    """
    options = parse_assignments(option or [], "--option", parse_json_or_text)
    try:
        chosen = make_policy(name, options).options.model_dump(mode="json")
    except PolicyError as error:
        raise BadInput(str(error)) from None
    client = PrefectClient()
    used = client.find_block_name(pool, "scheduler")
    target = block or used
    document = client.read_block(SCHEDULER_BLOCK, target)
    if not (document and _save_in_place(client, document, name, chosen)):
        _save_with_prefect(document, target, name, chosen)
    outcome = _wait_for_worker(pool, name, chosen) if target == used else "other"
    if as_json:
        result = {"pool": pool, "block": target, "policy": name, "options": chosen}
        output.print_json({**result, "in_force": outcome == "in force"})
    else:
        messages = {
            "in force": f"Policy {name!r} is in force in pool {pool!r}.",
            "no worker": f"Saved. No worker serves pool {pool!r} on this machine; the next one will use it.",
            "late": f"Saved. The worker of pool {pool!r} has not applied it within {TIMEOUT_S:g} s;"
            " see `gpu-flows policy show`.",
            "other": f"Saved in block {target!r}; pool {pool!r} uses block {used!r}, so its policy stays.",
        }
        print(escape(messages[outcome]))


# -- saving -----------------------------------------------------------------------------------


def _save_in_place(
    client: PrefectClient, document: dict[str, Any], name: str, options: dict[str, Any]
) -> bool:
    """Change an existing block, if the schema it was saved with has this policy. Its protection stays."""
    schemas = document["block_schema"]["fields"].get("definitions", {})
    if not options.keys() <= schemas.get(name, {}).get("properties", {}).keys():
        return False
    data = {**document["data"], "policy": {**options, "name": name}}
    client.patch(f"/block_documents/{document['id']}", {"data": data, "merge_existing_data": False})
    return True


def _save_with_prefect(
    document: dict[str, Any] | None, block: str, name: str, options: dict[str, Any]
) -> None:
    """Create the block, or update its schema. This takes the seconds that the import of Prefect takes."""
    from gpu_flows.blocks import GpuScheduler

    try:
        protection = document["data"].get("protection") if document else None
        scheduler = GpuScheduler(protection=protection) if protection else GpuScheduler()
        scheduler.use(name, **options).save(block, overwrite=True)
    except Exception as error:
        raise CommandError(f"The block {block!r} could not be saved: {error}") from None


# -- waiting for the worker -------------------------------------------------------------------


def _wait_for_worker(pool: str, name: str, options: dict[str, Any]) -> str:
    """Wait until the worker has applied the policy. Raises an error if the policy does not work."""

    def is_applied(status: Status) -> bool:
        return (status.policy["name"], status.policy["options"]) == (name, options)

    def is_settled() -> bool:
        status = read_status(pool)
        return status is None or is_applied(status)

    wait_until(is_settled, TIMEOUT_S)
    status = read_status(pool)
    if status is None:
        return "no worker"
    if not is_applied(status):
        return "late"
    if status.policy["error"]:
        raise CommandError(f"Saved, but the policy does not work: {status.policy['error']}")
    return "in force"


def _describe_in_force(status: Status) -> str:
    return _describe({"name": status.policy["name"], **status.policy["options"]})


def _describe(policy: Any) -> str:
    """`round_robin (sharing=exclusive, wait_for_turn=True)`."""
    if not isinstance(policy, dict):
        return str(policy)
    options = ", ".join(f"{name}={value}" for name, value in policy.items() if name != "name")
    return f"{policy.get('name')} ({options})" if options else str(policy.get("name"))


add_command(policy, "show", show)
add_command(policy, "set", set_policy)
