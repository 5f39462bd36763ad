"""The options that `simulate` and `compare` share.

They are kept as typed, so that any process can be given all of them and read the trace itself. That is
faster than sending eighty thousand jobs to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

Number = float | None


def _option(metavar: str, help: str) -> Any:
    return typer.Option(metavar=metavar, help=help)


def _seconds(help: str) -> Any:
    return typer.Option(min=0, metavar="S", help=help)


def _hours(help: str, least: float = 0) -> Any:
    return typer.Option(min=least, metavar="H", help=help)


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """The workload, the cluster, the policies, the assumptions and the outputs of a simulation."""

    cluster: Annotated[
        str,
        _option("SPEC", "The cluster: NODESxGPUS[:MODEL[:MEM_GB]][@RACKSIZE], joined by +; or a YAML file."),
    ]
    trace: Annotated[Path | None, _option("FILE", "Take the jobs from a trace or a warehouse.")] = None
    workload: Annotated[str, _option("SPEC", "Generate the jobs, for example poisson:jobs=1000.")] = ""
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            "--policies",
            metavar="NAMES",
            help="Policies, separated by commas; may be repeated. Options follow a colon: "
            "fifo:skip=true,placement=best_fit,sjf are two policies. "
            "`all` means every policy that applies to the workload. "
            "Default: fifo in `simulate`, all in `compare`.",
            show_default=False,
        ),
    ] = None
    format: Annotated[str, _option("NAME", "Format of the trace, with options: gavel:reference=p100.")] = ""
    placement: Annotated[
        str, _option("NAME", "How devices are chosen, for policies that let you choose.")
    ] = ""
    sharing: Annotated[str, _option("MODE", "How jobs use devices: exclusive, or shared by memory.")] = ""
    span: Annotated[
        bool | None,
        typer.Option(
            "--span/--no-span",
            help="Whether jobs may span nodes. "
            "Default: they may with placement `any`, or if no node is large enough.",
            show_default=False,
        ),
    ] = None
    estimates: Annotated[
        str, _option("HOW", "What policies know of durations: oracle, stated, learned, noisy:0.5.")
    ] = "oracle"
    seed: Annotated[int, _option("N", "Seed of everything random.")] = 0
    since: Annotated[Number, _option("S", "Only jobs from this second of the trace on.")] = None
    until: Annotated[Number, _option("S", "Only jobs before this second of the trace.")] = None
    sample: Annotated[
        Number, _option("N", "A random sample: a fraction such as 0.1, or a number of jobs.")
    ] = None
    limit: Annotated[int | None, _option("N", "Only the first N jobs.")] = None
    scale_load: Annotated[Number, _option("X", "Make jobs arrive X times as fast.")] = None
    profile: Annotated[
        str, _option("NAME", "Speed by kind of job and GPU model: none, schedulearn, or a JSON file.")
    ] = "none"
    tier_slowdown: Annotated[
        str, _option("NODES,RACKS", "Slowdown of jobs across nodes and across racks: 1.2,1.5.")
    ] = ""
    network: Annotated[
        str,
        _option(
            "TABLE",
            "What communication across nodes and racks costs: `realistic` (NVLink, 100 Gb/s between nodes), "
            "`dally` (latency decides, as in its paper), or your own YAML file.",
        ),
    ] = ""
    congestion: Annotated[
        Number,
        typer.Option(
            min=1,
            metavar="X",
            help="Traffic of others: divides bandwidth and multiplies latency of the network between nodes.",
        ),
    ] = None
    interference: Annotated[
        str,
        _option(
            "X", "Slowdown by each other job on a shared device, such as 0.3; `gavel`: by kinds, as measured."
        ),
    ] = "0"
    restart_seconds: Annotated[float, _seconds("Time to restart a stopped job.")] = 0.0
    migration_seconds: Annotated[float, _seconds("Further time if it restarts on other nodes.")] = 0.0
    checkpoint_seconds: Annotated[float, _seconds("Time to save a job that is stopped.")] = 0.0
    costs: Annotated[
        Path | None,
        _option(
            "WAREHOUSE", "Take the restart, migration and checkpoint times not given from a pool's records."
        ),
    ] = None
    checkpoint_every: Annotated[
        float, _seconds("Interval of checkpoints: the most work that a failure loses. 0: no work is lost.")
    ] = 0.0
    node_mtbf_hours: Annotated[float, _hours("Mean time between failures of a node; 0: none fails.")] = 0.0
    device_mtbf_hours: Annotated[float, _hours("Mean time between failures of a device; 0: none fails.")] = (
        0.0
    )
    repair_hours: Annotated[float, _hours("Mean time to repair.", least=0.001)] = 1.0
    optimum: Annotated[
        bool, typer.Option("--optimum", help="For up to 15 jobs: find the best schedule without preemption.")
    ] = False
    jobs_out: Annotated[Path | None, _option("FILE", "Write a row for every job: .csv or .json.")] = None
    warehouse: Annotated[
        Path | None, _option("FILE", "Add the facts to this DuckDB file, for `gpu-flows sql`.")
    ] = None
    charts: Annotated[Path | None, _option("DIR", "Write a page of figures, simulation.html.")] = None
    processes: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Policies to run in parallel; default: one per core."),
    ] = None
