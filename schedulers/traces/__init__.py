"""Traces: the jobs of real clusters and of your own, one file format a file.

A new file here with a `Format` in it is a new format: nothing else needs to know.
"""

from gpu_flows.schedulers.traces.reading import Format, Reading, Trace, formats, load, read
from gpu_flows.schedulers.traces.table import TraceError

__all__ = ["Format", "Reading", "Trace", "TraceError", "formats", "load", "read"]
