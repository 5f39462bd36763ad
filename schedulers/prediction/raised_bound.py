"""The memory bound of a job that ran out of memory: how far it is raised, and how often.

The live scheduler and the simulator follow the same rule, so a simulated OOM costs what a real one does. The
last raise gives the job the largest device that it may use for itself: if that is too small, no bound helps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.prediction.fitting_bound import fit_bound

MOST_RAISES = 2  # a job that runs out of memory after that has failed
RAISE_FACTOR = 1.5


def find_next_bound(
    job: Job, raised_mb: int, raises: int, could_hold: Callable[[Job], bool], sizes: Collection[int]
) -> int:
    """Return the new bound of a job that ran out of memory after so many raises: the raised one (see
    `raise_bound`) or all of the largest device, as far as the pool can give it. `sizes` are the memory sizes
    of the pool's devices. If the bound is not above what the job had, the pool has no more for it."""
    is_last = raises + 1 >= MOST_RAISES
    return fit_bound(job, max(sizes) if is_last else raised_mb, could_hold, sizes)


def raise_bound(bound_mb: int, device_mb: int, peak_mb: float | None = None) -> int:
    """Return the new bound of a job that ran out of memory on a device with `device_mb`.

    The bound was too low, so it grows by half. If the peak of the attempt is not known, nobody knows by how
    much it was too low, so the new bound is at least all that the device has: the job gets it for itself.
    If the peak is known, it grows by half instead of the bound where it is higher; as long as it is below
    the device's memory, a device like this is enough.
    """
    if not peak_mb:
        return max(math.ceil(bound_mb * RAISE_FACTOR), device_mb)
    needed = max(float(bound_mb), peak_mb)
    raised = math.ceil(needed * RAISE_FACTOR)
    return min(raised, device_mb) if needed < device_mb else raised
