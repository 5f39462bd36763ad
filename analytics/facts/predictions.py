"""Facts about what was predicted of jobs, and what it can be compared with."""

from __future__ import annotations

from gpu_flows.analytics.facts.base import AttemptFact, Fact, in_table


@in_table("job_features")
class FeaturesSeen(Fact):
    """What is known of a job before it runs."""

    job_id: str
    kind: str
    parameters: str
    """A JSON object: those of its run, flat and without secrets."""
    predicted: str
    """A JSON list: what the owner of the job did not state."""


@in_table("predictions")
class Predicted(Fact):
    """A need of a job was predicted."""

    job_id: str
    time: float
    quantity: str
    """memory_mb or seconds."""
    device_model: str
    """Empty for any."""
    value: float
    upper: float
    how: str
    version: str = ""
    detail: str = ""


@in_table("memory_peaks")
class MemoryPeak(AttemptFact):
    """The most memory that an attempt used on a device."""

    device_id: str
    peak_mb: float
    source: str
    """nvml or reported."""


@in_table("progress_reports")
class ProgressReported(AttemptFact):
    """The output of an attempt told how far it is."""

    time: float
    fraction: float
    remaining_s: float
    source: str
