"""What the worker and the command line both know of runs, without importing Prefect, which takes seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

PAGE = 200  # the largest page that the server returns
FINAL_STATES = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}  # types of states that a run does not leave
WORKER_LOGGER = "gpu_flows.worker"  # under which the worker writes into the logs of a run
CONTAINER_FLOW = "gpu_flows.flows.container:container"  # the entrypoint that identifies the `container` flow
TRAIN_FLOW = "gpu_flows.flows.train:train"  # the entrypoint of the `train` flow
TRAIN_STEP = "gpu_flows.training.step:make_step"  # its training step, to predict its memory

PriorityClass = Literal["low", "normal", "high", "urgent"]


@dataclass(frozen=True, slots=True)
class Ownership:
    """What a run or a deployment says about whose it is."""

    job_variables: Mapping[str, Any] = field(default_factory=dict)
    tags: Iterable[str] = ()
    creator: str = ""  # an account in Prefect, an automation, or a schedule
    creator_type: str = ""

    @property
    def user(self) -> str:
        return _clean(self.job_variables.get("user")) or find_tag(self.tags, "user:")


def find_user(run: Ownership, deployment: Ownership, default: object) -> str:
    """Return who a run belongs to; empty if nothing says it. `default` is the pool's. A schedule counts
    last: its name, such as CronSchedule, says less than who created the deployment. Prefect gives every run
    the tags of its deployment; those are not the run's own."""
    run = replace(run, tags=set(run.tags) - set(deployment.tags))
    creators = sorted((run, deployment), key=lambda source: source.creator_type == "SCHEDULE")
    candidates = (run.user, deployment.user, default, *(source.creator for source in creators))
    return next(filter(None, map(_clean, candidates)), "")


def find_tag(tags: Iterable[str], prefix: str) -> str:
    """Return the rest of the first tag with this prefix."""
    return next((tag.removeprefix(prefix).strip() for tag in sorted(tags) if tag.startswith(prefix)), "")


def _clean(name: object) -> str:
    return str(name).strip() if name else ""
