"""Gavel (OSDI 2020): TAB-separated traces without a header that count training steps, not seconds.

How long steps take is in Gavel's throughput tables (JSON): GPU model -> ('job type', GPUs) -> steps
a second. A job's duration is told for one reference model; other models are the simulator's physics.
"""

from __future__ import annotations

import json
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.traces.reading import Format, Options
from gpu_flows.schedulers.traces.table import Table, TraceError, is_number
from gpu_flows.schedulers.workload import Arrival

_LAYOUTS = {  # by number of columns: the newer and the older one
    10: (
        *("job_type", "command", "working_directory", "num_steps_arg", "needs_data_dir"),
        *("total_steps", "scale_factor", "priority_weight", "SLO", "arrival_time"),
    ),
    7: (
        *("job_type", "command", "num_steps_arg", "needs_data_dir"),
        *("total_steps", "arrival_time", "scale_factor"),
    ),
}


Throughputs = dict[tuple[str, str], dict[int, float]]  # (kind, GPU model) -> GPUs -> steps a second


def throughputs(tables: Mapping[str, Any]) -> Throughputs:
    """Gavel's tables, of which we want jobs alone on their devices: 0 where they do not fit. Raises
    anything that comes of a file that is none of Gavel's."""
    found: Throughputs = {}
    for model, measured in tables.items():
        for job, rates in measured.items():
            kind, gpus = literal_eval(job)
            found.setdefault((kind, model), {})[gpus] = float(rates["null"])
    return found


class GavelOptions(Options):
    throughputs: Path | None = Field(
        default=None,
        title="Throughputs",
        description="Gavel's simulation_throughputs.json or physical_cluster_throughputs.json.",
    )
    reference: str = Field(
        default="v100",
        title="Reference GPU",
        description="The GPU model, as the throughputs name it, whose speed gives a job's duration.",
    )


class Gavel(Format):
    """Gavel traces of 7 or 10 TAB-separated columns; needs throughputs=FILE to know durations.

    A job whose type was never measured on so many GPUs of the reference model is left out.
    """

    name = "gavel"
    columns = ("job_type", "total_steps", "scale_factor", "arrival_time")
    delimiter = "\t"
    Options = GavelOptions
    options: GavelOptions

    @classmethod
    def names(cls, first: list[str]) -> Sequence[str] | None:
        names = _LAYOUTS.get(len(first))
        return names if names and is_number(first[names.index("total_steps")]) else None

    def arrivals(self, table: Table) -> Iterator[Arrival]:
        speeds = self._speeds(table)
        job_type, total_steps, scale_factor, arrival_time = table.at(*self.columns)
        weight, slo = table.at("priority_weight", "SLO") if "SLO" in table else (None, None)
        for number, row in enumerate(table, start=1):
            gpus = table.whole(row, scale_factor, least=1)
            speed = speeds.get((row[job_type], self.options.reference), {}).get(gpus, 0.0)
            if not speed:
                table.skip(f"no measured speed on {gpus} x {self.options.reference}")
                continue
            arrival, duration = table.time(row, arrival_time), table.number(row, total_steps) / speed
            in_time = table.time(row, slo) if slo is not None else -1.0  # times its duration; -1: whenever
            job = Job(
                f"{number:06d}",
                arrival,
                gpus,
                kind=row[job_type],
                priority=round(table.number(row, weight)) if weight is not None else 0,
                deadline=arrival + in_time * duration if in_time > 0 else None,
                may_span_nodes=gpus > 1,
            )
            yield Arrival(job, duration)

    def _speeds(self, table: Table) -> Throughputs:
        path, model = self.options.throughputs, self.options.reference
        if path is None:
            raise TraceError(
                f"Trace {table.path} counts training steps, not seconds. Give throughputs=FILE with "
                "Gavel's simulation_throughputs.json or physical_cluster_throughputs.json; "
                "on the command line: --profile FILE (or --format gavel:throughputs=FILE)."
            )
        try:
            measured = throughputs(json.loads(path.read_bytes()))
        except OSError as error:
            raise TraceError(f"Throughputs {path} cannot be read: {error.strerror}.") from error
        except (ValueError, TypeError, AttributeError, KeyError, SyntaxError):
            raise TraceError(f"Throughputs {path} are not one of Gavel's throughput files.") from None
        known = list(dict.fromkeys(gpu for _, gpu in measured))
        if model not in known:
            raise TraceError(f"Throughputs {path} do not know {model!r}. They know: {', '.join(known)}.")
        return measured
