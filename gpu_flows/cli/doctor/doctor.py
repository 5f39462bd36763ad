"""`gpu-flows doctor`: check the setup of a pool, and show how to fix what is wrong."""

from __future__ import annotations

from collections.abc import Iterator

import typer
from rich.text import Text

from gpu_flows.cli import output
from gpu_flows.cli.doctor import docker_checks, machine_checks, server_checks
from gpu_flows.cli.doctor.checks import ERROR, WARN, Check, CheckContext, Finding
from gpu_flows.cli.errors import FAILED
from gpu_flows.cli.escaping import escape
from gpu_flows.cli.options import DEFAULT_POOL, JsonOption, PoolOption, examples

# The checks that wait for the import of Prefect come last.
CHECKS: dict[str, Check] = {
    "packages": machine_checks.check_packages,
    "server": server_checks.check_server,
    "clock": server_checks.check_clock,
    "worker": server_checks.check_worker,
    "blocks": server_checks.check_blocks,
    "warehouse": machine_checks.check_warehouse,
    "disk": machine_checks.check_disk,
    "gpus": machine_checks.check_gpus,
    "docker": docker_checks.check_docker,
    "pool": server_checks.check_pool,
    "prefect": machine_checks.check_private_names,
}
_STYLES = {"ok": "green", "info": "blue", "warn": "yellow", "error": "bold red"}


@examples("gpu-flows doctor", "gpu-flows doctor --json | jq '.findings[].fix'")
def doctor(pool: PoolOption = DEFAULT_POOL, as_json: JsonOption = False) -> None:
    """Check the server, the pool, the worker, the warehouse, the Docker hosts and this machine.

    Each line states what was found and, where something is wrong, how to fix it. The exit code is 1 if there
    is an error; warnings do not change it.
    """
    context = CheckContext(pool)
    found = []
    try:
        context.start()
        for name, check in CHECKS.items():
            for finding in _run(check, context):
                found.append({"check": name, **finding.as_dict()})
                if not as_json:
                    _show(name, finding)
    finally:
        context.close()
    levels = [finding["level"] for finding in found]
    if as_json:
        output.print_json({"ok": ERROR not in levels, "findings": found})
    else:
        print(f"\n{_count(levels, ERROR, 'error')}, {_count(levels, WARN, 'warning')}.")
    if ERROR in levels:
        raise typer.Exit(FAILED)


def _count(levels: list[str], level: str, what: str) -> str:
    """`1 error`, `2 errors`."""
    number = levels.count(level)
    return f"{number} {what}{'' if number == 1 else 's'}"


def _run(check: Check, context: CheckContext) -> Iterator[Finding]:
    """Run a check. If the check itself fails, that is one more finding, and the other checks still run."""
    try:
        yield from check(context)
    except Exception as error:
        what = f"This check itself failed: {type(error).__name__}: {error}"
        yield Finding(ERROR, what, "Please report it.")


def _show(name: str, finding: Finding) -> None:
    level = (f"{finding.level:<5}", _STYLES[finding.level])
    output.show(Text.assemble(level, f"  {name:<9}  {escape(finding.what)}"))
    if finding.fix:
        output.show(Text(f"{'':18}{escape(finding.fix)}", style="dim"))
