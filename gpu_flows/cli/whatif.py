"""`gpu-flows whatif`: recorded jobs under other policies or on other devices, beside reality."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from gpu_flows.cli import output
from gpu_flows.cli.errors import BadInput, CommandError
from gpu_flows.cli.escaping import escape
from gpu_flows.cli.options import DEFAULT_POOL, JsonOption, examples
from gpu_flows.cli.simulation.policy_choices import parse_choice, split_policies
from gpu_flows.cli.simulation.tables import format_value, show_table
from gpu_flows.common.quantities import parse_duration

if TYPE_CHECKING:
    from gpu_flows.analytics.whatif import Choice, Scenario, WhatIf

COLUMNS = {
    "makespan_s": "makespan",
    "avg_turnaround_s": "turnaround",
    "p50_turnaround_s": "p50",
    "p90_turnaround_s": "p90",
    "avg_queueing_s": "queueing",
    "allocation": "allocation",
    "preemptions": "preempted",
}
OPTIONAL_COLUMNS = ("p50", "allocation")  # left out where the terminal is too narrow
HIGHER_IS_BETTER = {"allocation"}
USERS_SHOWN = 10
MOST_ADDED = 100_000  # devices; more is a typing error, and would take for ever
NOISE = 0.0005  # a change that is not shown


@examples(
    "gpu-flows whatif --since 7d",
    "gpu-flows whatif --since 7d --policy srtf,tiresias --gpus +4",
    "gpu-flows whatif --since 1d --policy fifo:skip=true,fair_share --json",
    "gpu-flows whatif --database study.duckdb --experiment night --cluster 4x8:A100:80",
)
def whatif(
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Jobs submitted in the last 7d, 6h or 30m; default: all.")
    ] = "",
    until: Annotated[
        str, typer.Option(metavar="TIME", help="Only jobs submitted longer ago than this.")
    ] = "",
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="NAMES",
            help="Policies to try, separated by commas, each with options as in fifo:skip=true.",
        ),
    ] = None,
    gpus: Annotated[
        str, typer.Option(metavar="N", help="Devices to add, as in +4, or to take away, as in -2.")
    ] = "",
    cluster: Annotated[
        str, typer.Option(metavar="SPEC", help="Other nodes, as for `gpu-flows simulate`.")
    ] = "",
    experiment: Annotated[str, typer.Option(metavar="NAME", help="Only jobs of this experiment.")] = "",
    database: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A warehouse; default: that of the pool.")
    ] = None,
    pool: Annotated[
        str,
        typer.Option(
            "--pool",
            envvar="GPU_FLOWS_POOL",
            help=f"The work pool; default: {DEFAULT_POOL}, or the only one of FILE.",
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Replay recorded jobs under other policies or on other devices.

    The jobs enter the queue when they did, ask for what they asked for, and take as long as they took.
    Launching, stopping and restarting them takes what it took in this pool. `as recorded` is reality; the
    row below it is the replay of the policies that really decided, and shows how well the replay fits. The
    changes of the other rows are against that replay. Nothing is written.
    """
    from gpu_flows.analytics.whatif import NoRecord, replay

    choices = _parse_policies(policy or [])
    nodes = _read_cluster(cluster)
    changed = _parse_gpus(gpus)
    period = _parse_period(since, until)
    try:
        found = replay(
            database or _find_warehouse(pool or DEFAULT_POOL),
            pool if database else pool or DEFAULT_POOL,
            *period,
            policies=choices,
            gpus=changed,
            nodes=nodes,
            cluster=cluster,
            experiment=experiment,
        )
    except NoRecord as error:
        raise CommandError(str(error), "`gpu-flows history` lists the jobs that are recorded.") from None
    except ValueError as error:  # a policy that does not exist here, or too many devices to take away
        raise BadInput(str(error)) from None
    output.print_json(_to_json(found)) if as_json else _show(found)


# -- reading the options ----------------------------------------------------------------------


def _parse_policies(written: Sequence[str]) -> list[Choice]:
    from gpu_flows.analytics.whatif import Choice

    try:
        choices = [parse_choice(label) for label in split_policies(",".join(written))]
    except ValueError as error:
        raise BadInput(str(error)) from None
    labels = [choice.label for choice in choices]
    if twice := next((label for label in labels if labels.count(label) > 1), ""):
        raise BadInput(f"Policy {twice!r} is asked for twice.")
    return [Choice(choice.name, choice.options, choice.label) for choice in choices]


def _read_cluster(spec: str) -> list[Any]:
    from gpu_flows.schedulers.cluster.spec import declare

    try:
        return declare(spec) if spec else []
    except ValueError as error:
        raise BadInput(f"--cluster: {error}") from None


def _parse_gpus(text: str) -> int:
    try:
        changed = int(text or 0)
    except ValueError:
        raise BadInput(f"--gpus {text!r} is no number of devices.", "Write +4 or -2.") from None
    if changed > MOST_ADDED:
        raise BadInput(f"--gpus {text} is too many; add at most {MOST_ADDED:,} devices.")
    return changed


def _parse_period(since: str, until: str) -> tuple[float, float]:
    """Return the times that these ages mean."""
    now, ages = time.time(), {"--since": since, "--until": until}
    found: dict[str, float] = {}
    for option, text in ages.items():
        try:
            if text:
                found[option] = now - parse_duration(text)
        except ValueError as error:
            raise BadInput(f"{option}: {error}.") from None
    period = found.get("--since", 0.0), found.get("--until", math.inf)
    if period[0] >= period[1]:
        raise BadInput(f"--since {since} is later than --until {until}.", "Both count back from now.")
    return period


def _find_warehouse(pool: str) -> Path:
    from gpu_flows.cli.sql import find_warehouse

    return find_warehouse(pool)


# -- printing ---------------------------------------------------------------------------------


def _to_json(found: WhatIf) -> dict[str, Any]:
    values = asdict(found)
    for scenario, row in zip(
        [found.recorded, found.replayed, *found.alternatives],
        [values["recorded"], values["replayed"], *values["alternatives"]],
        strict=True,
    ):
        del row["jobs"]
        row["unfinished"] = [asdict(job) for job in scenario.unfinished]
    return values


def _show(found: WhatIf) -> None:
    scenarios = [found.recorded, found.replayed, *found.alternatives]
    jobs = found.recorded.figures.jobs
    period = f"{_format_time(found.since)} to {_format_time(found.until)}"
    print(escape(f"{jobs:,} jobs of pool {found.pool}, {period}; times in seconds."))
    if found.cluster:
        print(escape(f"The rows below the second are {found.cluster}."))
    print()
    columns = ["", "GPUs", *COLUMNS.values()]
    show_table(columns, [_draw_row(found, scenario) for scenario in scenarios], OPTIONAL_COLUMNS)
    if len({user.user for user in found.recorded.users}) > 1 and found.alternatives:
        _show_users(found)
    _show_unfinished(found)
    _show_notes("Known", found.known)
    _show_notes("Assumed", found.assumed)
    failed = [each for each in (found.replayed, *found.alternatives) if each.policy_error]
    if failed:
        raise CommandError(
            f"Policy {failed[0].label} failed: {failed[0].policy_error}",
            "From then on FIFO decided instead, so these figures are not the policy's own.",
        )


def _format_time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M}"


def _draw_row(found: WhatIf, scenario: Scenario) -> list[object]:
    label = f"{scenario.label} (replayed)" if scenario is found.replayed else scenario.label
    cells: list[object] = [label, str(scenario.devices)]
    is_alternative = scenario not in (found.recorded, found.replayed)
    for name in COLUMNS:
        value = getattr(scenario.figures, name)
        shown = f"{100 * value:.1f}%" if name == "allocation" else format_value(name, value)
        change = scenario.change.get(name)
        cells.append(_with_change(str(shown or "-"), change if is_alternative else None, name))
    return cells


def _with_change(shown: str, change: float | None, name: str) -> Text | str:
    if change is None or abs(change) < NOISE or not math.isfinite(change):
        return shown
    style = "green" if (change > 0) == (name in HIGHER_IS_BETTER) else "red"
    return Text.assemble(escape(shown), "  ", (f"{100 * change:+.1f}%", style))


def _show_users(found: WhatIf) -> None:
    """Print the mean turnaround of every user's jobs, and how it changes."""
    rows = []
    for effect in sorted(found.replayed.users, key=lambda effect: -effect.jobs):
        user = effect.user
        row: list[object] = [user or "-", f"{effect.jobs:,}", format_value("", effect.avg_turnaround_s)]
        for scenario in found.alternatives:
            own = {each.user: each for each in scenario.users}.get(user)
            base = effect.avg_turnaround_s
            change = own.change_s / base if own and own.change_s is not None and base else None
            shown = format_value("", own.avg_turnaround_s) if own else None
            row.append(_with_change(str(shown or "-"), change, "avg_turnaround_s"))
        rows.append(row)
    print("\nMean turnaround of each user's jobs")
    columns = ["user", "jobs", "replayed", *(scenario.label for scenario in found.alternatives)]
    output.show(output.make_table(columns, rows[:USERS_SHOWN], right=columns[1:]))
    if len(rows) > USERS_SHOWN:
        print(f"...  and {len(rows) - USERS_SHOWN} more users (--json has them all)")


def _show_unfinished(found: WhatIf) -> None:
    for scenario in (found.replayed, *found.alternatives):
        if missing := scenario.unfinished:
            first, count = missing[0], f"{len(missing):,} of {scenario.figures.jobs:,} jobs"
            print()
            print(escape(f"Not finished under {scenario.label}: {count}, such as {first.name}"))
            print(escape(f"({first.trouble}). The figures are of the others."))


def _show_notes(title: str, notes: Sequence[str]) -> None:
    print(f"\n{title}")
    for note in notes:
        print(escape(f"- {note}"))
