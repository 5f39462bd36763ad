"""What a simulation is asked: the options of `simulate` and `compare`.

A study is what was typed, and nothing else: any process can be given all of it and reads the trace
by itself, which is quicker than being sent eighty thousand jobs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer


@dataclass(frozen=True, slots=True)
class Study:
    """The options of `simulate` and `compare`, as typed."""

    cluster: Annotated[
        str,
        typer.Option(
            metavar="SPEC", help="NODESxGPUS[:MODEL[:MEM_GB]], joined by +; or a YAML file with racks."
        ),
    ]
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Jobs: a trace, or a warehouse.")] = None
    workload: Annotated[
        str, typer.Option(metavar="SPEC", help="Jobs out of thin air, such as poisson:jobs=1000.")
    ] = ""
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            "--policies",
            metavar="NAMES",
            help="By commas, or several times. Options follow a colon, by commas too: "
            "fifo:skip=true,placement=best_fit,sjf are two policies. `all` are those that apply. "
            "By itself: fifo, and all of them in `compare`.",
            show_default=False,
        ),
    ] = None
    format: Annotated[
        str,
        typer.Option(metavar="NAME", help="The trace's format, perhaps with options: gavel:reference=p100."),
    ] = ""
    placement: Annotated[str, typer.Option(metavar="NAME", help="How devices are chosen.")] = ""
    sharing: Annotated[str, typer.Option(metavar="MODE", help="exclusive, or shared by memory.")] = ""
    span: Annotated[
        bool | None,
        typer.Option(
            "--span/--no-span",
            help="Whether jobs may span nodes. By itself: with placement `any`, or if none is large enough.",
            show_default=False,
        ),
    ] = None
    estimates: Annotated[
        str,
        typer.Option(
            metavar="HOW", help="What policies know of durations: oracle, stated, learned, noisy:0.5."
        ),
    ] = "oracle"
    seed: Annotated[int, typer.Option(metavar="N", help="Everything random follows from it.")] = 0
    since: Annotated[
        float | None, typer.Option(metavar="S", help="Jobs from this second of the trace on.")
    ] = None
    until: Annotated[float | None, typer.Option(metavar="S", help="Jobs before this second of it.")] = None
    sample: Annotated[float | None, typer.Option(metavar="N", help="A random part: 0.1, or 500 jobs.")] = None
    limit: Annotated[int | None, typer.Option(metavar="N", help="The first so many jobs.")] = None
    scale_load: Annotated[float | None, typer.Option(metavar="X", help="Arrivals so many times as fast.")] = (
        None
    )
    profile: Annotated[
        str,
        typer.Option(metavar="NAME", help="Speeds by kind and GPU model: none, schedulearn, or a JSON file."),
    ] = "none"
    tier_slowdown: Annotated[
        str,
        typer.Option(metavar="NODES,RACKS", help="How much slower across nodes and across racks: 1.2,1.5."),
    ] = ""
    interference: Annotated[
        float, typer.Option(min=0, metavar="X", help="Slowdown by each other job on a shared device.")
    ] = 0.0
    restart_seconds: Annotated[
        float, typer.Option(min=0, metavar="S", help="Until a stopped job gets on again.")
    ] = 0.0
    migration_seconds: Annotated[
        float, typer.Option(metavar="S", min=0, help="More of that, if it comes back on other nodes.")
    ] = 0.0
    checkpoint_seconds: Annotated[
        float, typer.Option(min=0, metavar="S", help="To save a job that is stopped.")
    ] = 0.0
    costs: Annotated[
        Path | None,
        typer.Option(
            metavar="WAREHOUSE", help="Take these three, where not given, from what a pool recorded."
        ),
    ] = None
    checkpoint_every: Annotated[
        float, typer.Option(min=0, metavar="S", help="The most that a breakdown costs; 0: nothing.")
    ] = 0.0
    node_mtbf_hours: Annotated[
        float, typer.Option(min=0, metavar="H", help="Mean time between failures of a node.")
    ] = 0.0
    device_mtbf_hours: Annotated[float, typer.Option(min=0, metavar="H", help="The same of a device.")] = 0.0
    repair_hours: Annotated[float, typer.Option(min=0.001, metavar="H", help="Mean time to repair.")] = 1.0
    optimum: Annotated[
        bool, typer.Option("--optimum", help="For a dozen jobs: find the best there is without preemption.")
    ] = False
    jobs_out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a row for every job: .csv or .json.")
    ] = None
    warehouse: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Add the facts to this DuckDB file, for `gpu-flows sql`."),
    ] = None
    charts: Annotated[Path | None, typer.Option(metavar="DIR", help="Draw charts, as SVG files.")] = None
    processes: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="How many policies at a time; by itself, one a core."),
    ] = None


def asks(command: Callable[..., None]) -> Callable[..., None]:
    """Turns `command(study, ...)` into a function with all the options of a study, as typer wants it."""
    hints = get_type_hints(Study, include_extras=True)
    names = [each.name for each in fields(Study)]
    _, *own = inspect.signature(command, eval_str=True).parameters.values()

    def typed(**values: Any) -> None:
        study = Study(**{name: values.pop(name) for name in names})
        command(study, **values)

    keyword = inspect.Parameter.KEYWORD_ONLY
    options = [
        inspect.Parameter(
            each.name,
            keyword,
            annotation=hints[each.name],
            default=inspect.Parameter.empty if each.name == "cluster" else each.default,
        )
        for each in fields(Study)
    ]
    options += [each.replace(kind=keyword) for each in own]
    setattr(typed, "__signature__", inspect.Signature(options))  # noqa: B010
    typed.__doc__ = command.__doc__
    return typed
