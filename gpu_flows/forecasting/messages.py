"""What the worker tells the forecasting child. Its answers are JSON objects; see `child`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_flows.schedulers.forecast.pool_state import Costs
from gpu_flows.schedulers.mirror import Changes
from gpu_flows.schedulers.model import Action, Preempt, Start
from gpu_flows.schedulers.prediction.estimate import Estimate


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides how the pool goes on, besides its jobs and devices."""

    policy: str = "fifo"
    options: Mapping[str, Any] = field(default_factory=dict)
    network: str = ""  # the table in force
    costs: Costs = field(default_factory=Costs)
    typical: Estimate | None = None  # the duration of a job of which nothing is known
    shadows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # the options of each, by name
    saved: str = ""  # when the block was saved that names them
    no_forecast: str = ""  # why this policy is not to be simulated
    past: int = 0  # another number: the durations of all jobs may be other ones


@dataclass(frozen=True, slots=True)
class Decision:
    """What the pool's policy decided on the state that a message describes. Names only: the child makes the
    same moves on its own engine."""

    policy: str
    starts: tuple[tuple[str, tuple[str, ...]], ...]  # ids of jobs and of their devices
    preempts: tuple[str, ...]  # ids of jobs
    took_us: float = 0.0

    @classmethod
    def of(cls, policy: str, actions: list[Action], took_us: float = 0.0) -> Decision:
        starts = [(each.job.id, _ids(each)) for each in actions if isinstance(each, Start)]
        preempts = [each.running.job.id for each in actions if isinstance(each, Preempt)]
        return cls(policy, tuple(starts), tuple(preempts), took_us)

    def moved(self) -> set[str]:
        """Return the ids of the jobs that it moves."""
        return {*self.preempts, *(job_id for job_id, _ in self.starts)}


def _ids(start: Start) -> tuple[str, ...]:
    return tuple(device.id for device in start.devices)


@dataclass(slots=True)
class Message:
    """What has changed since the last message."""

    number: int
    changes: Changes
    durations: dict[str, Estimate | None] = field(default_factory=dict)  # in all, of the jobs that changed
    settings: Settings | None = None  # None: the same as before
    decision: Decision | None = None  # that followed from this state, if the message was made for one
    is_news: bool = True  # whether forecasts may change by it
    unseen: int = 0  # decisions before it of which the child is told nothing
