"""The base class of generated workloads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from random import Random
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from gpu_flows.common.forms import Form
from gpu_flows.schedulers.workload import Arrival

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]


class Workload(Form, ABC):
    """A kind of workload. Its fields are its options; an instance is ready to generate jobs."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    name: ClassVar[str]

    @abstractmethod
    def arrivals(self, random: Random) -> list[Arrival]:
        """Return the jobs in arrival order, the first at second 0."""


def job_ids(count: int) -> list[str]:
    """Return ids whose alphabetical order, which breaks ties between jobs, is the order of arrival."""
    width = len(str(count))
    return [f"job-{number:0{width}d}" for number in range(1, count + 1)]
