"""What jobs truly need of a device's memory, and what happens if that is more than the device has.

The job that came last to an overfull device runs out of memory: it loses the work of its attempt and waits
again with a raised bound (`prediction.raised_bound`). After the last raise, or if no device that it
may use has more memory than it had, it has failed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import takewhile

from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job, Reason, Running
from gpu_flows.schedulers.prediction.raised_bound import MOST_RAISES, find_next_bound, raise_bound
from gpu_flows.schedulers.workload import Arrival


class TrueMemory:
    """What every job truly needs on each of its devices, and how often its bound was raised."""

    def __init__(self, arrivals: Iterable[Arrival]) -> None:
        arrivals = list(arrivals)
        self.matters = any(arrival.memory_mb for arrival in arrivals)  # else every job needs what it states
        self._needs = {arrival.job.id: arrival.true_memory_mb for arrival in arrivals} if self.matters else {}
        self._raises: dict[str, int] = {}  # job id -> how often

    def find_overfull(self, running: Running, cluster: Cluster) -> Device | None:
        """Return a device on which the job and those that came before it need more memory than there is."""
        needed = self._needs[running.job.id]
        for device in running.devices:
            if self._taken_before(running.job, device, cluster) + needed > device.memory_mb:
                return device
        return None

    def _taken_before(self, job: Job, device: Device, cluster: Cluster) -> int:
        """Return what the holders need that came to the device before the job. Holders are in that order."""
        earlier = takewhile(lambda job_id: job_id != job.id, cluster.devices[device.id].holders)
        return sum(self._needs[job_id] for job_id in earlier)

    def raise_bound(self, running: Running, device: Device, cluster: Cluster) -> Job | Reason:
        """Return the job with a raised bound after it ran out of memory on this device, which it still
        holds, or the reason why it has failed."""
        job = running.job
        peak = max(0, min(self._needs[job.id], device.memory_mb - self._taken_before(job, device, cluster)))
        raises = self._raises.get(job.id, 0)
        if raises < MOST_RAISES:
            raised_mb = raise_bound(job.memory_mb, device.memory_mb, peak)
            bound = find_next_bound(job, raised_mb, raises, cluster.could_hold, cluster.memory_sizes)
            if bound > max(job.memory_mb, peak):
                self._raises[job.id] = raises + 1
                return replace(job, memory_mb=bound)
            limit = f"no device that it may use has more than {max(job.memory_mb, peak) / 1024:.3g} GB"
        else:
            limit = f"its bound was raised {raises} times"
        return Reason("out_of_memory", f"It ran out of memory on {device.id} ({device.model}), and {limit}.")
