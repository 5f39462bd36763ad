"""`gpu-flows policy shadow` and `policy promote`: policies that plan beside a pool's own."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from gpu_flows.analytics.query_runner import QueryError, run_query
from gpu_flows.cli import output
from gpu_flows.cli.errors import BadInput
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
from gpu_flows.cli.prefect_client import PrefectClient
from gpu_flows.cli.scheduler_block import SchedulerBlock
from gpu_flows.cli.sql import find_warehouse
from gpu_flows.common.suggestions import did_you_mean
from gpu_flows.schedulers.policy import PolicyError, make_policy
from gpu_flows.schedulers.policy_choice import describe_options, promote, read_choice, read_shadows
from gpu_flows.worker.status import Status, read_status

DEFAULT_POLICY = "fifo"  # of a block that does not exist yet
_FIGURES = (
    *("rank", "decisions", "agreement_percent", "turnaround_percent", "makespan_percent", "projections"),
    *("avg_us", "p99_us", "errors", "skipped"),
)

shadow = typer.Typer(
    rich_markup_mode=None, add_completion=False, help="Let policies plan beside the pool's, without effect."
)
BlockOption = Annotated[
    str, typer.Option("--block", help="The GPU Scheduler block; default: the pool's own.")
]
NameArgument = Annotated[
    str, typer.Argument(metavar="POLICY", help="The policy; `gpu-flows policies` lists them.")
]


@examples(
    "gpu-flows policy shadow add srtf",
    "gpu-flows policy shadow add tiresias --option quantum=600",
)
def add(
    name: NameArgument,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", metavar="K=V", help="An option of the policy.")
    ] = None,
    block: BlockOption = "",
    pool: PoolOption = DEFAULT_POOL,
    as_json: JsonOption = False,
) -> None:
    """Let a policy plan at every decision of the pool, without any effect. Its plans are compared with the
    decisions, and the turnaround under it is projected; `gpu-flows policy show` ranks the shadows.

    Options that are not given get their defaults.
    """
    options = parse_assignments(option or [], "--option", parse_json_or_text)
    try:
        chosen = make_policy(name, options).options.model_dump(mode="json")
    except PolicyError as error:
        raise BadInput(str(error)) from None
    changed = SchedulerBlock(PrefectClient(), pool, block)
    content = {"policy": DEFAULT_POLICY, **changed.content}
    if _read_name(content) == name:
        raise BadInput(f"Policy {name!r} decides in this pool; a shadow is another one.")
    names = [each for each in _read_names(content) if each != name]
    sections = content.get("options")
    kept = sections if isinstance(sections, dict) else {}
    changed.save({**content, "shadows": [*names, name], "options": {**kept, name: chosen}}, name)
    _report(changed, pool, [*names, name], f"{name} plans beside the policy of pool {pool!r}.", as_json)


@examples("gpu-flows policy shadow remove srtf")
def remove(
    name: NameArgument,
    block: BlockOption = "",
    pool: PoolOption = DEFAULT_POOL,
    as_json: JsonOption = False,
) -> None:
    """Let a shadow plan no more. What was recorded of it stays, and so do its options in the block."""
    changed = SchedulerBlock(PrefectClient(), pool, block)
    names = _read_names(changed.content)
    if name not in names:
        raise _unknown(name, names)
    names.remove(name)
    changed.save({**changed.content, "shadows": names})
    _report(changed, pool, names, f"{name} no longer plans beside the policy of pool {pool!r}.", as_json)


@examples("gpu-flows policy shadow list", "gpu-flows policy shadow list --json")
def list_shadows(pool: PoolOption = DEFAULT_POOL, as_json: JsonOption = False) -> None:
    """List the shadows of a pool, the best one first, with what was recorded beside the present policy."""
    status = read_status(pool)
    block = SchedulerBlock(PrefectClient(), pool)
    found = rank_shadows(pool, block.content, status)
    if as_json:
        output.print_json(found)
    elif found:
        output.show(draw_shadows(found))
        show_errors(found)
    else:
        print(f"Pool {escape(pool)!r} has no shadows. Add one: gpu-flows policy shadow add POLICY")


@examples("gpu-flows policy promote srtf")
def promote_shadow(
    name: NameArgument,
    block: BlockOption = "",
    pool: PoolOption = DEFAULT_POOL,
    as_json: JsonOption = False,
) -> None:
    """Let a shadow decide from now on, and the policy be a shadow in its place. Both keep their options, and
    running jobs are not touched."""
    changed = SchedulerBlock(PrefectClient(), pool, block)
    content = {"policy": DEFAULT_POLICY, **changed.content}
    names = _read_names(content)
    if name not in names or name == _read_name(content):
        raise _unknown(name, names)
    try:
        promoted = promote(content, name)
        make_policy(*read_choice(promoted))
    except (ValueError, PolicyError) as error:
        raise BadInput(f"The block {changed.name!r} cannot be changed so: {error}") from None
    changed.save(promoted, name)
    outcome = changed.wait_for_worker(lambda status: status.policy["name"] == name)
    if as_json:
        result = {"pool": pool, "block": changed.name, "policy": name, "shadows": promoted["shadows"]}
        output.print_json({**result, "in_force": outcome == "in force"})
    else:
        before = _read_name(content)
        in_force = f"Policy {name!r} is in force in pool {pool!r}; {before} plans beside it."
        print(escape(changed.describe(outcome, in_force)))


def _read_name(content: dict[str, Any]) -> str:
    try:
        return read_choice(content)[0]
    except ValueError:
        return ""


def _read_names(content: dict[str, Any]) -> list[str]:
    """Return the names of the shadows that the block has; none if it has something else there."""
    saved = content.get("shadows")
    return [name for name in saved if isinstance(name, str)] if isinstance(saved, list) else []


def _unknown(name: str, names: list[str]) -> BadInput:
    there_are = f"It has: {', '.join(names)}." if names else "It has none."
    hint = f"{there_are} {did_you_mean(name, names)}".strip()
    return BadInput(f"The pool has no shadow {name!r}.", f"{hint} Add it: gpu-flows policy shadow add {name}")


def _report(block: SchedulerBlock, pool: str, names: list[str], in_force: str, as_json: bool) -> None:
    """Wait until the worker has the shadows, and tell so, with the errors of those that do not plan."""

    def is_applied(status: Status) -> bool:
        wanted = set(names) - {status.policy["name"]}
        known = {each["name"]: each for each in status.policy.get("shadows", [])}
        return known.keys() == wanted and all(each["plans"] or each["error"] for each in known.values())

    outcome = block.wait_for_worker(is_applied)
    status = read_status(pool) if outcome == "in force" else None
    errors = (
        {each["name"]: each["error"] for each in status.policy["shadows"] if each["error"]} if status else {}
    )
    if as_json:
        result = {"pool": pool, "block": block.name, "shadows": names, "errors": errors}
        output.print_json({**result, "in_force": outcome == "in force"})
        return
    print(escape(block.describe(outcome, in_force)))
    for name, error in errors.items():
        output.print_remark(f"{name} does not plan: {error}")


# -- what was recorded of them ----------------------------------------------------------------


def rank_shadows(pool: str, content: dict[str, Any], status: Status | None) -> list[dict[str, Any]]:
    """Return the shadows that the block has, the best one first: their options, why they do not plan, and
    what was recorded of them beside the policy in force."""
    policy = status.policy["name"] if status else _read_name(content)
    try:
        shadows = read_shadows(content)
    except ValueError:
        shadows = {}
    if not shadows:
        return []
    recorded = _read_ranking(pool, policy)
    errors = {each["name"]: each["error"] for each in status.policy.get("shadows", [])} if status else {}
    found = [
        {
            "shadow": name,
            "options": options,
            "beside": policy,
            **{figure: recorded.get(name, {}).get(figure) for figure in _FIGURES},
            "error": errors.get(name, ""),
        }
        for name, options in shadows.items()
    ]
    return sorted(found, key=lambda each: (each["rank"] is None, each["rank"] or 0))


def _read_ranking(pool: str, policy: str) -> dict[str, dict[str, Any]]:
    try:
        found = run_query(find_warehouse(pool), "shadows", {"pool": pool})
    except QueryError as error:
        output.print_remark(f"What was recorded of the shadows cannot be read: {error}")
        return {}
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
    return {row["shadow"]: row for row in rows if row["policy"] == policy}


def draw_shadows(found: list[dict[str, Any]]) -> Table:
    """A row for each shadow, the best one first."""
    columns = ("shadow", "turnaround", "agrees", "decisions", "mean", "p99", "failed", "skipped", "options")
    rows = [
        (
            each["shadow"],
            _format(each["turnaround_percent"], "+.1f", "%"),
            _format(each["agreement_percent"], ".0f", "%"),
            each["decisions"] or 0,
            _format(each["avg_us"], ",.0f", " us"),
            _format(each["p99_us"], ",.0f", " us"),
            each["errors"] or 0,
            each["skipped"] or 0,
            _describe_changed(each["shadow"], each["options"]),
        )
        for each in found
    ]
    return output.make_table(columns, rows, right=columns[1:-1])


def _describe_changed(name: str, options: dict[str, Any]) -> str:
    """Return the options that are not the defaults, because a table has no room for all of them."""
    try:
        defaults = make_policy(name).options.model_dump(mode="json")
    except PolicyError:  # it does not exist, or has options without defaults
        defaults = {}
    changed = {key: value for key, value in options.items() if defaults.get(key, ...) != value}
    return describe_options(changed) if changed else "defaults"


def show_errors(found: list[dict[str, Any]]) -> None:
    for each in found:
        if each["error"]:
            print(escape(f"{each['shadow']} does not plan: {each['error']}"))


def _format(figure: float | None, how: str, unit: str) -> str | None:
    return None if figure is None else f"{figure:{how}}{unit}"


add_command(shadow, "add", add)
add_command(shadow, "remove", remove)
add_command(shadow, "list", list_shadows)
