"""What a policy is, what it sees, and how policies are found by name.

A policy is one class in one file. Those in `schedulers/policies/` are found by themselves; one
from another package is an entry point in the group `gpu_flows.policies`. Names come from this
registry only: nothing here imports a dotted path that somebody typed into a form.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from gpu_flows.common.discovery import classes_in
from gpu_flows.common.validation import explain
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.draft import Draft
from gpu_flows.schedulers.model import Job, Plan, Progress, Running
from gpu_flows.schedulers.running_order import RunningOrder, RunningRank
from gpu_flows.schedulers.waiting_queue import WaitingQueue

ENTRY_POINTS = "gpu_flows.policies"

Speed = Callable[[Job, str, int], float]
"""How fast a job runs on so many devices of a model, measured by what it does on those it asks for."""


def linear(job: Job, model: str, gpus: int) -> float:
    """Nothing is known of the job: every device of any model does the same work."""
    return gpus / job.gpus if job.gpus else 1.0


@dataclass(slots=True)
class State:
    """What a policy looks at. Everything in it is live: read it, and change it by the draft only."""

    now: float
    queue: WaitingQueue  # the waiting jobs, in groups by what they ask for, in the policy's order
    running: Mapping[str, Running]
    running_order: RunningOrder  # the running jobs, in the policy's order
    cluster: Cluster
    draft: Draft  # where moves are made, one after the other
    can_preempt: bool = True
    speed: Speed = linear

    @property
    def waiting(self) -> Sequence[Job]:
        """In arrival order."""
        return self.queue.by_arrival

    def may_preempt(self, running: Running) -> bool:
        """Whether this running job may be stopped now. Trying it with one that is protected costs the
        policy its plan: it is asked again, as if nobody could be preempted."""
        return self.can_preempt and self.draft.may_preempt(running)

    def yielding(self) -> Iterator[tuple[Any, Running]]:
        """The running jobs that may be stopped, with their ranks, the one that is served last first."""
        may_preempt = self.draft.may_preempt
        return (each for each in self.running_order.last_first(self.now) if may_preempt(each[1]))


class Options(BaseModel):
    """A policy's options: the block's form, the CLI's flags and the docs' table are this model."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Promise = Literal["no starvation", "work conserving"]
"""No starvation: every job starts in the end, however many come after it. Work conserving: no job waits
while devices that it could use are idle."""


class Policy(ABC):
    """Decides. Pure but for small state of its own: no clock, no I/O, no unseeded randomness."""

    name: ClassVar[str]
    Options: ClassVar[type[Options]] = Options
    preempts: ClassVar[bool] = False
    moves_running: bool = False  # whether it plans also when nobody waits
    needs: ClassVar[tuple[str, ...]] = ()  # what it must know of a job beyond its size
    optimizes: ClassVar[str] = ""  # what it is good for, in a few words
    promises: ClassVar[tuple[Promise, ...]] = ()  # with its default options; tests hold it to them

    def __init__(self, **options: Any) -> None:
        self.options = self.Options(**options)

    def rank(self, job: Job, progress: Progress) -> Any:
        """What to sort waiting jobs by, lower first. Must not change while the job waits."""
        return job.order

    def group(self, job: Job) -> object:
        """Waiting jobs for which this is the same form a group of the line. They must share one ask."""
        return job.request

    def running_rank(self, running: Running) -> RunningRank | None:
        """Where a running job stands among the others, for policies that preempt by rank. Their ranks
        are tuples (line, value, submitted, id)."""
        return None

    @abstractmethod
    def plan(self, state: State) -> Plan:
        """Which waiting jobs start now, and where; which running ones make room."""

    @classmethod
    def rule(cls) -> str:
        """The rule in a sentence: the first line of the class's docstring."""
        return (cls.__doc__ or "").strip().split("\n")[0]


class PolicyError(ValueError):
    """No such policy, or an option it does not take; the message says which there are."""


@cache
def _built_in() -> dict[str, type[Policy]]:
    return {policy.name: policy for policy in classes_in("gpu_flows.schedulers.policies", Policy)}


def policies() -> dict[str, type[Policy]]:
    """Every policy there is, by name. A built-in one wins over an entry point of the same name."""
    found = dict(_built_in())
    importlib.invalidate_caches()  # a package installed a minute ago counts too
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name not in found:
            try:
                loaded = entry.load()
            except Exception:  # a broken plugin must not hide the others
                continue
            if isinstance(loaded, type) and issubclass(loaded, Policy):
                found[entry.name] = loaded
    return dict(sorted(found.items()))


def make_policy(name: str, options: Mapping[str, Any] | None = None) -> Policy:
    """The policy of that name with these options, or a PolicyError that tells what is wrong."""
    known = _built_in() if name in _built_in() else policies()
    if name not in known:
        raise PolicyError(_why_absent(name) or f"There is no policy {name!r}. There are: {', '.join(known)}.")
    try:
        return known[name](**dict(options or {}))
    except ValidationError as error:
        raise PolicyError(_explain(known[name], error)) from None
    except Exception as error:  # somebody else's policy may fail in any way it likes
        raise PolicyError(f"Policy {name!r} cannot be made: {type(error).__name__}: {error}") from error


def _why_absent(name: str) -> str:
    """A plugin of that name may be there and broken."""
    for entry in entry_points(group=ENTRY_POINTS, name=name):
        try:
            entry.load()
        except Exception as error:
            return f"Policy {name!r} cannot be loaded: {type(error).__name__}: {error}"
        return f"Policy {name!r} is not a subclass of Policy: {entry.value}"
    return ""


def _explain(policy: type[Policy], error: ValidationError) -> str:
    wrong = explain(error, whole="options")
    options = ", ".join(policy.Options.model_fields) or "none"
    return f"Policy {policy.name!r} does not take these options ({wrong}). Its options: {options}."
