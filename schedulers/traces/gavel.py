"""Gavel (OSDI 2020): TAB-separated traces without a header that count training steps, not seconds.

Gavel's throughput tables (JSON) state how long steps take: GPU model -> ('job type', GPUs) -> steps
a second. The reader computes durations on one reference model; the simulator knows the others.
"""

from __future__ import annotations

import json
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.traces.format import Format, FormatOptions
from gpu_flows.schedulers.traces.table import Table, TraceError, is_number
from gpu_flows.schedulers.workload import Arrival

_LAYOUTS = {  # by number of columns: the newer layout and the older one
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
    """Parse the speeds of jobs alone on their devices; 0 means that the job does not fit. Raises many
    kinds of errors if the tables are not Gavel's."""
    found: Throughputs = {}
    for model, measured in tables.items():
        for job, rates in measured.items():
            kind, gpus = literal_eval(job)
            found.setdefault((kind, model), {})[gpus] = float(rates["null"])
    return found


class GavelOptions(FormatOptions):
    throughputs: Path | None = None
    """Gavel's simulation_throughputs.json or physical_cluster_throughputs.json."""
    reference: str = Field("v100", title="Reference GPU")
    """The GPU model, as named in the throughputs, on which a job's duration is computed."""


class Gavel(Format):
    """Gavel traces of 7 or 10 TAB-separated columns; needs throughputs=FILE to know durations.

    A job is left out if its type was not measured on its number of GPUs of the reference model.
    """

    name = "gavel"
    columns = ("job_type", "total_steps", "scale_factor", "arrival_time")
    delimiter = "\t"
    Options = GavelOptions
    options: GavelOptions

    @classmethod
    def column_names(cls, first_row: list[str]) -> Sequence[str] | None:
        names = _LAYOUTS.get(len(first_row))
        return names if names and is_number(first_row[names.index("total_steps")]) else None

    def arrivals(self, table: Table) -> Iterator[Arrival]:
        speeds = self._read_throughputs(table)
        job_type, total_steps, scale_factor, arrival_time = table.positions(*self.columns)
        weight, slo = table.positions("priority_weight", "SLO") if "SLO" in table else (None, None)
        for number, row in enumerate(table, start=1):
            gpus = table.integer(row, scale_factor, least=1)
            speed = speeds.get((row[job_type], self.options.reference), {}).get(gpus, 0.0)
            if not speed:
                table.skip(f"no measured speed on {gpus} x {self.options.reference}")
                continue
            arrival, duration = table.time(row, arrival_time), table.number(row, total_steps) / speed
            allowed = table.time(row, slo) if slo is not None else -1.0  # in durations; -1: no deadline
            job = Job(
                f"{number:06d}",
                arrival,
                gpus,
                kind=row[job_type],
                priority=round(table.number(row, weight)) if weight is not None else 0,
                deadline=arrival + allowed * duration if allowed > 0 else None,
                may_span_nodes=gpus > 1,
            )
            yield Arrival(job, duration)

    def _read_throughputs(self, table: Table) -> Throughputs:
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
            raise TraceError(f"Throughputs {path} have no model {model!r}. They have: {', '.join(known)}.")
        return measured
