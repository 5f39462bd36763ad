"""`gpu-flows policy`: a pool's policy, which can change while jobs run, and its shadows."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from pydantic import ValidationError

from gpu_flows.cli import output
from gpu_flows.cli.benchmark_notice import describe_benchmark
from gpu_flows.cli.errors import BadInput
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
from gpu_flows.cli.scheduler_block import SchedulerBlock
from gpu_flows.cli.shadows import (
    BlockOption,
    draw_shadows,
    promote_shadow,
    rank_shadows,
    shadow,
    show_errors,
)
from gpu_flows.schedulers.policy import PolicyError, make_policy, policies
from gpu_flows.schedulers.policy_choice import describe_options, read_choice, write_choice
from gpu_flows.schedulers.protection import Protection
from gpu_flows.worker.status import read_status

policy = typer.Typer(rich_markup_mode=None, add_completion=False, help="Show or change the policy of a pool.")


@examples("gpu-flows policy show", "gpu-flows policy show --json")
def show(pool: PoolOption = DEFAULT_POOL, block: BlockOption = "", as_json: JsonOption = False) -> None:
    """Show the policy in force: its rule, its options, which jobs it may not stop, and why an edit was
    refused. What the block says is shown if it differs.

    The shadows are ranked by the mean turnaround that was projected under them: -20% is a fifth shorter than
    under the policy in force. `agrees` is the part of their moves in common.
    """
    client = PrefectClient()
    name = block or client.find_block_name(pool, "scheduler")
    document = client.read_block(SCHEDULER_BLOCK, name)
    status = read_status(pool)
    shadows = rank_shadows(pool, document["data"] if document else {}, status)
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
        "shadows": shadows,
        "shadows_error": status.policy.get("shadows_error", "") if status else "",
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
            ("shadows", found["shadows_error"]),
            ("benchmark", found["benchmark"]),
        )
    )
    if shadows:
        print()
        output.show(draw_shadows(shadows))
        show_errors(shadows)


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
    changed = SchedulerBlock(PrefectClient(), pool, block)
    saved = changed.content
    if protect is not None:
        saved = {**saved, "protection": {**(saved.get("protection") or {}), "min_run_seconds": protect}}
    changed.save(write_choice(saved, name, chosen), name)
    outcome = changed.wait_for_worker(
        lambda status: (status.policy["name"], status.policy["options"]) == (name, chosen)
    )
    if as_json:
        result = {"pool": pool, "block": changed.name, "policy": name, "options": chosen}
        output.print_json({**result, "in_force": outcome == "in force"})
    else:
        print(escape(changed.describe(outcome, f"Policy {name!r} is in force in pool {pool!r}.")))
        status = read_status(pool) if outcome == "in force" else None
        if status and (remark := status.policy.get("remark")):
            output.print_remark(remark)


# -- what the block has ----------------------------------------------------------------------


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
add_command(policy, "promote", promote_shadow)
policy.add_typer(shadow, name="shadow")
