"""`gpu-flows policy show` and `policy set`: a pool's policy, which can change while jobs run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from gpu_flows.cli import output
from gpu_flows.cli.benchmark_notice import describe_benchmark
from gpu_flows.cli.errors import BadInput, CommandError
from gpu_flows.cli.escaping import escape
from gpu_flows.cli.options import (
    DEFAULT_POOL,
    JsonOption,
    PoolOption,
    add_command,
    duration_option,
    examples,
    parse_assignments,
    parse_json_or_text,
)
from gpu_flows.cli.prefect_client import SCHEDULER_BLOCK, PrefectClient
from gpu_flows.common.retry import wait_until
from gpu_flows.schedulers.policy import PolicyError, make_policy, policies
from gpu_flows.schedulers.policy_choice import describe_options, read_choice, write_choice
from gpu_flows.schedulers.protection import Protection
from gpu_flows.worker.status import Status, read_status

TIMEOUT_S = 30.0  # a worker applies a change within a second of its event, or else at its next poll

policy = typer.Typer(rich_markup_mode=None, add_completion=False, help="Show or change the policy of a pool.")
BlockOption = Annotated[
    str, typer.Option("--block", help="The GPU Scheduler block; default: the pool's own.")
]


@examples("gpu-flows policy show", "gpu-flows policy show --json")
def show(pool: PoolOption = DEFAULT_POOL, block: BlockOption = "", as_json: JsonOption = False) -> None:
    """Show the policy in force: its rule, its options, which jobs it may not stop, and why an edit was
    refused. What the block says is shown if it differs."""
    client = PrefectClient()
    name = block or client.find_block_name(pool, "scheduler")
    document = client.read_block(SCHEDULER_BLOCK, name)
    status = read_status(pool)
    says = _read_choice(document) if document else None
    in_force = {"name": status.policy["name"], **status.policy["options"]} if status else None
    protection = _read_protection(document)
    found = {
        "pool": pool,
        "block": name,
        "says": says,
        "in_force": status.policy["name"] if status else None,
        "options": status.policy["options"] if status else None,
        "rule": _find_rule(in_force or says),
        "protection": protection.model_dump() if protection else None,
        "serving": status.policy["serving"] if status else None,
        "error": status.policy["error"] if status else "",
        "remark": status.policy.get("remark", "") if status else "",
        "benchmark": describe_benchmark(client, pool),
    }
    if as_json:
        output.print_json(found)
        return
    in_block = _describe(says) if document else "nothing: the block does not exist yet"
    differs = in_force is None or says is None or _complete(says) != in_force
    unknown = "unknown: no worker serves the pool on this machine"
    failed = found["serving"] != found["in_force"]
    output.show(
        output.make_value_list(
            ("pool", pool),
            ("block", name),
            ("in block", in_block if differs else ""),
            ("in force", _describe(in_force) if in_force else unknown),
            ("rule", found["rule"]),
            ("protection", protection.describe() if protection else "invalid in the block"),
            ("serving", f"{found['serving']}, until the policy is corrected" if failed else ""),
            ("error", found["error"]),
            ("remark", found["remark"]),
            ("benchmark", found["benchmark"]),
        )
    )


@examples(
    "gpu-flows policy set round_robin",
    "gpu-flows policy set round_robin --option wait_for_turn=true",
    "gpu-flows policy set priority --protect 5m",
    "gpu-flows policy set fifo --option sharing=shared --option utilization_threshold=80",
)
def set_policy(
    name: Annotated[
        str, typer.Argument(metavar="POLICY", help="The policy; `gpu-flows policies` lists them.")
    ],
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", metavar="K=V", help="An option of the policy.")
    ] = None,
    protect: Annotated[
        float | None,
        duration_option(
            "Do not stop a job in favour of others before it has run this long. Default: as it is."
        ),
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
        chosen = _fill_options(name, options)
    except PolicyError as error:
        raise BadInput(str(error)) from None
    client = PrefectClient()
    used = client.find_block_name(pool, "scheduler")
    target = block or used
    document = client.read_block(SCHEDULER_BLOCK, target)
    saved = document["data"] if document else {}
    if protect is not None:
        saved = {**saved, "protection": {**(saved.get("protection") or {}), "min_run_seconds": protect}}
    if not (document and _save_in_place(client, document, saved, name, chosen)):
        _save_with_prefect(saved, target, name, chosen)
    outcome = _wait_for_worker(client, pool, used, name, chosen) if target == used else "other"
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
        status = read_status(pool) if outcome == "in force" else None
        if status and (remark := status.policy.get("remark")):
            output.print_remark(remark)


# -- saving -----------------------------------------------------------------------------------


def _save_in_place(
    client: PrefectClient,
    document: dict[str, Any],
    saved: dict[str, Any],
    name: str,
    options: dict[str, Any],
) -> bool:
    """Change an existing block, if the schema it was saved with has this policy. What else is in `saved`
    stays."""
    schemas = document["block_schema"]["fields"].get("definitions", {})
    known = name in schemas.get("PolicyOptions", {}).get("properties", {})
    if not known or not options.keys() <= schemas.get(name, {}).get("properties", {}).keys():
        return False
    data = write_choice(saved, name, options)
    client.patch(f"/block_documents/{document['id']}", {"data": data, "merge_existing_data": False})
    return True


def _save_with_prefect(saved: dict[str, Any], block: str, name: str, options: dict[str, Any]) -> None:
    """Create the block, or update its schema. This takes the seconds that the import of Prefect takes."""
    from gpu_flows.blocks import GpuScheduler

    try:
        GpuScheduler(**saved).use(name, **options).save(block, overwrite=True)
    except Exception as error:
        raise CommandError(f"The block {block!r} could not be saved: {error}") from None


# -- waiting for the worker -------------------------------------------------------------------


def _wait_for_worker(client: PrefectClient, pool: str, block: str, name: str, options: dict[str, Any]) -> str:
    """Wait until the worker has applied the policy. Raises an error if the policy does not work."""
    document = client.read_block(SCHEDULER_BLOCK, block)
    saved = datetime.fromisoformat(document["updated"]) if document else datetime.min.replace(tzinfo=UTC)

    def is_applied(status: Status) -> bool:
        """Whether this status has seen the save. Before it, the pool may have had the same policy, and an
        error."""
        seen = status.policy.get("saved")
        has_seen = seen is not None and datetime.fromisoformat(seen) >= saved
        return has_seen and (status.policy["name"], status.policy["options"]) == (name, options)

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


def _read_choice(document: dict[str, Any]) -> dict[str, Any] | None:
    """Return the name and options that the block has, or None if it names no policy."""
    try:
        name, options = read_choice(document["data"])
    except ValueError:
        return None
    return {"name": name, **options}


def _complete(choice: dict[str, Any]) -> dict[str, Any]:
    """Add the defaults of the options that the block leaves out."""
    options = {key: value for key, value in choice.items() if key != "name"}
    try:
        return {"name": choice["name"], **_fill_options(choice["name"], options)}
    except PolicyError:
        return choice


def _fill_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    return make_policy(name, options).options.model_dump(mode="json")


def _find_rule(choice: dict[str, Any] | None) -> str:
    known = policies().get(choice["name"]) if choice else None
    return known.rule() if known else ""


def _read_protection(document: dict[str, Any] | None) -> Protection | None:
    """Return the protection that the block has, or None if it is invalid."""
    try:
        return Protection.model_validate((document or {"data": {}})["data"].get("protection") or {})
    except ValidationError:
        return None


def _describe(policy: dict[str, Any] | None) -> str:
    """`round_robin (sharing=exclusive, wait_for_turn=true)`."""
    if policy is None:
        return "no policy"
    options = {name: value for name, value in policy.items() if name != "name"}
    return f"{policy['name']} ({describe_options(options)})" if options else str(policy["name"])


add_command(policy, "show", show)
add_command(policy, "set", set_policy)
