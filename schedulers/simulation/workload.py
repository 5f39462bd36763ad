"""What the simulator is fed: jobs, and what of them only the world knows."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_flows.schedulers.model import Job


@dataclass(frozen=True, slots=True)
class Arrival:
    """One job of a trace. It arrives at `job.submitted`."""

    job: Job
    duration_s: float  # how long it runs on exactly the devices it asks for, alone and undisturbed
    utilization: float = 100.0  # how busy it keeps a device, in percent
