"""A memory bound that a pool can satisfy.

Only what the owner of a job states can make the job impossible. A bound of ours that is too large for the
pool means: the largest devices that the job may use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from gpu_flows.schedulers.model import Job


def fit_bound(job: Job, bound_mb: int, could_hold: Callable[[Job], bool], sizes: Iterable[int]) -> int:
    """Return the bound, or the most memory below it that the pool could give to the job; 0 if there is none.
    `sizes` are the memory sizes of the pool's devices."""
    if could_hold(replace(job, memory_mb=bound_mb)):
        return bound_mb
    smaller = sorted((size for size in set(sizes) if size < bound_mb), reverse=True)
    return next((size for size in smaller if could_hold(replace(job, memory_mb=size))), 0)
