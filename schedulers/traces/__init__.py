"""Trace files: one module per file format, and the code that reads any of them.

A module with a `Format` class adds a format; nothing else needs to change. Generated workloads do
not belong here; see `simulation.generators`.
"""

from gpu_flows.schedulers.traces.format import Format, formats
from gpu_flows.schedulers.traces.reading import Trace, TraceReader, load, read
from gpu_flows.schedulers.traces.table import TraceError

__all__ = ["Format", "Trace", "TraceError", "TraceReader", "formats", "load", "read"]
