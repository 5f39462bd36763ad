"""Generates workloads from specs such as `poisson:jobs=1000,rate_per_hour=60`.

The same spec and seed always give the same jobs. `workloads` has the kinds of workloads; the fields
of a kind are the options of its spec.
"""

from __future__ import annotations

from random import Random

from pydantic import ValidationError

from gpu_flows.common.discovery import classes_in
from gpu_flows.common.validation import explain
from gpu_flows.schedulers.simulation.workloads.base import Workload
from gpu_flows.schedulers.workload import Arrival

_classes = classes_in("gpu_flows.schedulers.simulation.workloads", Workload)
WORKLOADS: dict[str, type[Workload]] = dict(sorted((workload.name, workload) for workload in _classes))


class WorkloadError(ValueError):
    """The workload or one of its options does not exist. The message lists those that do."""


def generate(spec: str, seed: int = 0) -> list[Arrival]:
    """Generate the jobs of a spec, in arrival order."""
    return parse(spec).arrivals(Random(seed))


def parse(spec: str) -> Workload:
    """Parse a spec. Raises WorkloadError if it is not valid."""
    name, _, written = (part.strip() for part in spec.partition(":"))
    if name not in WORKLOADS:
        raise WorkloadError(f"There is no workload {name!r}. There are: {', '.join(WORKLOADS)}.")
    options: dict[str, str] = {}
    for pair in filter(None, written.split(",")):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or key in options:
            wrong = "is given twice" if equals else "is not KEY=VALUE"
            raise WorkloadError(f"Workload {spec!r}: {pair.strip()!r} {wrong}. Write {name}:KEY=VALUE,...")
        options[key] = value
    try:
        return WORKLOADS[name].model_validate(options)
    except ValidationError as error:
        known = WORKLOADS[name].model_fields
        raise WorkloadError(
            f"Workload {name!r} cannot be made ({explain(error, depth=1, known=known)}). "
            f"Its options: {', '.join(known)}."
        ) from None
