"""`gpu-flows undrain`: take a drained node back into service."""

from __future__ import annotations

from gpu_flows.cli import output
from gpu_flows.cli.errors import CommandError
from gpu_flows.cli.escaping import escape
from gpu_flows.cli.jobs.drain import DRAINED, NodesArgument, edit_drained
from gpu_flows.cli.options import DEFAULT_POOL, JsonOption, PoolOption, examples


@examples("gpu-flows undrain node-2")
def undrain(nodes: NodesArgument, pool: PoolOption = DEFAULT_POOL, as_json: JsonOption = False) -> None:
    """Let jobs start again on nodes that `gpu-flows drain` has taken out of service."""

    def remove(before: list[str]) -> list[str]:
        for node in nodes:
            if node not in before:
                listed = ", ".join(before) or "none"
                raise CommandError(f"{node!r} is not drained. Drained nodes of pool {pool!r}: {listed}.")
        return [node for node in before if node not in nodes]

    drained = edit_drained(pool, remove)
    if as_json:
        output.print_json({"pool": pool, DRAINED: drained})
    else:
        for node in nodes:
            print(escape(f"{node} is in service again."))
