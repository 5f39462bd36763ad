"""The workloads that `gpu-flows rl` trains and evaluates on, as given on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpu_flows.cli.errors import BadInput
from gpu_flows.learning.curriculum import CLUSTERS, WORKLOADS, Curriculum
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.simulation.generators import WorkloadError, parse

WorkloadOption = Annotated[
    list[str] | None,
    typer.Option(
        "--workload", metavar="SPEC", help="A generated workload, such as bursty:sigma=2; repeatable."
    ),
]
TraceOption = Annotated[
    list[Path] | None,
    typer.Option("--trace", metavar="FILE", help="A trace to take windows from; repeatable."),
]
ClusterOption = Annotated[
    list[str] | None, typer.Option("--cluster", metavar="SPEC", help="A cluster, such as 4x8; repeatable.")
]


def make_curriculum(
    workloads: list[str] | None, traces: list[Path] | None, clusters: list[str] | None
) -> Curriculum:
    """Return what episodes are drawn from. Without workloads and traces, it is that of the package."""
    specs = tuple(workloads or (() if traces else WORKLOADS))
    try:
        for spec in specs:
            parse(spec)
        for cluster in clusters or ():
            declare(cluster)
        for trace in traces or ():
            if not trace.is_file():
                raise BadInput(f"There is no trace {trace}.")
    except (WorkloadError, ValueError) as error:
        raise BadInput(str(error)) from None
    return Curriculum(specs, tuple(clusters or CLUSTERS), tuple(traces or ()))


def parse_seeds(text: str) -> list[int]:
    """Parse `1,2,5`."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(f"--seeds {text!r} is not a list of whole numbers such as 1,2.") from None
