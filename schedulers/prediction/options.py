"""What a pool predicts of its jobs, as a part of its GPU Scheduler block."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from gpu_flows.common.forms import Form


class PredictionOptions(Form):
    """What is predicted of jobs whose owners do not state it."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="Prediction")

    enabled: bool = Field(default=True, title="Predict memory and time")
    """Predict the GPU memory and the duration of jobs that do not state them. A predicted memory lets a job
    share a device where the policy allows sharing, and avoids devices that are too small. It never makes a
    job impossible."""

    wait_seconds: float = Field(default=20, ge=0, le=600, title="Wait for a prediction (seconds)")
    """How long a job waits for the trace of its training step. After that it asks for whole devices."""
