"""`gpu-flows doctor`: check everything around, and tell how to fix what is found.

A check is a generator of findings. One that fails itself is a finding too, and stops no other.
"""

from __future__ import annotations

from collections.abc import Iterator

import typer
from rich.text import Text

from gpu_flows.cli import checks_docker, checks_here, checks_server, parts
from gpu_flows.cli.checkup import ERROR, WARN, Check, Finding, Surroundings
from gpu_flows.cli.parts import DEFAULT_POOL, JsonOption, PoolOption
from gpu_flows.cli.problem import FAILED, inert

# Those that wait for Prefect to be imported come last.
CHECKS: dict[str, Check] = {
    "packages": checks_here.packages,
    "server": checks_server.server,
    "clock": checks_server.clock,
    "worker": checks_server.worker,
    "blocks": checks_server.blocks,
    "warehouse": checks_here.warehouse,
    "disk": checks_here.disk,
    "gpus": checks_here.gpus,
    "docker": checks_docker.docker,
    "pool": checks_server.pool,
    "prefect": checks_here.private_names,
}
_STYLES = {"ok": "green", "info": "blue", "warn": "yellow", "error": "bold red"}


@parts.examples("gpu-flows doctor", "gpu-flows doctor --json | jq '.findings[].fix'")
def doctor(pool: PoolOption = DEFAULT_POOL, as_json: JsonOption = False) -> None:
    """Check the server, the pool, the worker, the warehouse, the Docker hosts and this machine.

    Every line says what was found and, where something is wrong, how to fix it. Exit code 1 if
    there is an error; a warning is none.
    """
    around = Surroundings(pool)
    found = []
    try:
        around.begin()
        for name, check in CHECKS.items():
            for finding in _run(check, around):
                found.append({"check": name, **finding.as_dict()})
                if not as_json:
                    _show(name, finding)
    finally:
        around.close()
    levels = [each["level"] for each in found]
    if as_json:
        parts.print_json({"ok": ERROR not in levels, "findings": found})
    else:
        print(f"\n{levels.count(ERROR)} errors, {levels.count(WARN)} warnings.")
    if ERROR in levels:
        raise typer.Exit(FAILED)


def _run(check: Check, around: Surroundings) -> Iterator[Finding]:
    try:
        yield from check(around)
    except Exception as error:
        what = f"This check itself failed: {type(error).__name__}: {error}"
        yield Finding(ERROR, what, "Please report it.")


def _show(name: str, finding: Finding) -> None:
    level = (f"{finding.level:<5}", _STYLES[finding.level])
    parts.show(Text.assemble(level, f"  {name:<9}  {inert(finding.what)}"))
    if finding.fix:
        parts.show(Text(f"{'':18}{inert(finding.fix)}", style="dim"))
