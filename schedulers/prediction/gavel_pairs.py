"""What Gavel measured of pairs of jobs on one device: the first knowledge of interference.

The figures are in gavel_pairs.json, which `benchmarks/interference.py` makes from Gavel's throughputs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.prediction.interference import Interference, PairExcess


@cache
def gavel_pairs() -> tuple[PairExcess, ...]:
    """Return the measured pairs. Those that do not fit into a device together are missing."""
    from importlib.resources import files  # imported here because few policies ask for slowdowns

    content = json.loads(files(__package__).joinpath("gavel_pairs.json").read_text(encoding="utf-8"))
    kinds = content["kinds"]
    return tuple(
        PairExcess(model, kind, beside, slowdown - 1.0)
        for model, rows in content["slowdowns"].items()
        for kind, row in zip(kinds, rows, strict=True)
        for beside, slowdown in zip(kinds, row, strict=True)
        if slowdown is not None
    )


@cache
def _known() -> Interference:
    return Interference(gavel_pairs())


def gavel_slowdown(job: Job, others: Sequence[Job], model: str) -> float:
    """Return the slowdown of a job beside those others, by these pairs alone."""
    return _known().of_jobs(job, others, model)
