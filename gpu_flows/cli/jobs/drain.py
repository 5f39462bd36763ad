"""`gpu-flows drain`: start no more jobs on a node."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpu_flows.cli import output
from gpu_flows.cli.errors import BadInput, CommandError
from gpu_flows.cli.escaping import escape
from gpu_flows.cli.jobs.runs import name_run
from gpu_flows.cli.options import DEFAULT_POOL, JsonOption, PoolOption, examples
from gpu_flows.cli.prefect_client import CLUSTER_BLOCK, PrefectClient
from gpu_flows.common.suggestions import did_you_mean
from gpu_flows.worker.status import Status, read_status

MOST_LISTED = 20  # nodes; of more, only those with a similar name are listed
DRAINED = "drained"  # the field of the GPU Cluster block
NodesArgument = Annotated[
    list[str], typer.Argument(metavar="NODE", help="Names of nodes; `gpu-flows gpus` lists them.")
]


@examples("gpu-flows drain node-2", "gpu-flows drain gpu1 gpu2 --pool lab")
def drain(nodes: NodesArgument, pool: PoolOption = DEFAULT_POOL, as_json: JsonOption = False) -> None:
    """Start no more jobs on a node, for example before its maintenance. Jobs that run there go on.

    The node is entered in the pool's GPU Cluster block. `gpu-flows undrain` takes it back into service.
    """
    status = read_status(pool)
    _check_nodes(nodes, status)
    drained = edit_drained(pool, lambda before: [*before, *(node for node in nodes if node not in before)])
    remaining = {node: _find_jobs_on(node, status) for node in nodes}
    if as_json:
        output.print_json({"pool": pool, DRAINED: drained, "running": remaining})
        return
    for node in nodes:
        print(escape(f"{node} is drained: no job starts there until `gpu-flows undrain {node}`."))
        if jobs := remaining[node]:
            print(escape(f"Still running there: {', '.join(map(name_run, jobs))}."))


def edit_drained(pool: str, edit: Any) -> list[str]:
    """Change the list of drained nodes in the pool's cluster block, and return it."""
    client = PrefectClient()
    name = client.find_block_name(pool, "cluster")
    document = client.read_block(CLUSTER_BLOCK, name)
    if document is None:
        raise CommandError(
            f"Pool {pool!r} has no GPU Cluster block {name!r}, which would name the drained nodes.",
            "`gpu-flows up` creates it, or create it in the UI under Blocks.",
        )
    drained = list(edit(list(document["data"].get(DRAINED) or [])))
    data = {**document["data"], DRAINED: drained}
    client.patch(f"/block_documents/{document['id']}", {"data": data, "merge_existing_data": False})
    return drained


def _check_nodes(nodes: list[str], status: Status | None) -> None:
    """Refuse a name that no node has, as far as the nodes are known here."""
    known = sorted({device["node"] for device in status.devices}) if status else []
    for node in nodes:
        if known and node not in known:
            fix = f"Nodes: {', '.join(known)}." if len(known) <= MOST_LISTED else did_you_mean(node, known)
            raise BadInput(f"There is no node {node!r}.", fix)


def _find_jobs_on(node: str, status: Status | None) -> list[dict[str, Any]]:
    running = status.running if status else []
    return [{"id": job["id"], "name": job["name"]} for job in running if node in job["nodes"]]
