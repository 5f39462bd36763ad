"""What a policy is, what it sees, and how policies are found by name.

A policy is one class in one file. Those in `schedulers/policies/` are found automatically; a policy of
another package is an entry point in the group `gpu_flows.policies`. Names come from this registry
only: a name typed into a form is never imported as a dotted path.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import Any, ClassVar, Generic, Literal, cast, get_args, get_origin

from pydantic import ConfigDict, ValidationError
from typing_extensions import TypeVar

from gpu_flows.common.discovery import classes_in, summary
from gpu_flows.common.forms import Form
from gpu_flows.common.suggestions import did_you_mean
from gpu_flows.common.validation import explain
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Job, Offer, Progress, Running
from gpu_flows.schedulers.network.shape import NetworkSlowdown, no_slowdown
from gpu_flows.schedulers.offer_log import OfferLog
from gpu_flows.schedulers.plan_draft import Draft
from gpu_flows.schedulers.prediction.gavel_pairs import gavel_slowdown
from gpu_flows.schedulers.running_order import RunningJobs, RunningRank
from gpu_flows.schedulers.waiting_queue import WaitingJobs

ENTRY_POINTS = "gpu_flows.policies"

Speed = Callable[[Job, str, int], float]
"""How fast a job runs on this many devices of a model, relative to the number of devices it asks for."""


def linear(job: Job, model: str, gpus: int) -> float:
    """Return the speed of a job of which nothing is known: every device of any model does the same work."""
    return gpus / job.gpus if job.gpus else 1.0


Slowdown = Callable[[Job, Sequence[Job], str], float]
"""How many times as long a job takes on a device of a model that it shares with those others. It depends on
the kinds of all these jobs alone."""


@dataclass(slots=True)
class State:
    """What a policy sees. It is live: every move on the draft shows here. Only the draft changes it."""

    now: float
    queue: WaitingJobs  # in the policy's order, in groups of jobs with the same request
    running: Mapping[str, Running]
    running_order: RunningJobs
    cluster: Cluster
    draft: Draft
    can_preempt: bool = True
    speed: Speed = linear
    slowdown: Slowdown = gavel_slowdown
    network: NetworkSlowdown = no_slowdown
    offer_log: OfferLog = field(default_factory=OfferLog)

    @property
    def waiting(self) -> Sequence[Job]:
        """The waiting jobs in arrival order."""
        return self.queue.by_arrival

    def declined(self, job_id: str) -> Offer | None:
        """Return the last offer, noted in an earlier plan, that a waiting job declined."""
        declined = self.offer_log.declined(job_id)
        return declined.offer if declined else None

    def may_preempt(self, running: Running) -> bool:
        """Return whether this running job may be preempted now. If a policy preempts a protected job all
        the same, its plan is discarded and it plans again as if no job could be preempted."""
        return self.can_preempt and self.draft.may_preempt(running)

    def preemptible(self) -> Iterator[tuple[Any, Running]]:
        """Iterate over the running jobs that may be preempted, with their ranks, the last in order first."""
        may_preempt = self.draft.may_preempt
        return (each for each in self.running_order.last_first(self.now) if may_preempt(each[1]))


class Options(Form):
    """A policy's options. This model makes the block's form, the CLI's flags and the table in the docs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @property
    def use_utilization(self) -> bool:
        """Whether plans with these options depend on the measured utilization of devices."""
        return False


Promise = Literal["no starvation", "work conserving"]
"""No starvation: every job starts eventually, however many arrive after it. Work conserving: no job waits
while devices that it could use are idle."""

OptionsT = TypeVar("OptionsT", bound=Options, default=Options, covariant=True)


class Policy(ABC, Generic[OptionsT]):
    """Decides which jobs run where. `Policy[SomeOptions]` states the model of its options.

    A policy may keep small state of its own, but uses no clock, no I/O and no unseeded randomness.
    """

    name: ClassVar[str]
    Options: ClassVar[type[Options]] = Options  # the model given in the brackets
    options: OptionsT
    preempts: ClassVar[bool] = False
    moves_running: bool = False  # whether it plans also while no job waits; the option `elastic` turns it on
    uses_utilization: bool = False  # whether it plans again when the measured utilization of a device changes
    shares_devices: bool = False  # whether it gives several jobs their shares of a device
    running_first: ClassVar[bool] = False  # among jobs of equal rank, a running job keeps its devices
    needs: ClassVar[tuple[str, ...]] = ()  # what must be known about a job beyond its size
    uses_priority: ClassVar[bool] = False  # whether the priority of a job matters to it
    optimizes: ClassVar[str] = ""  # what it is good for, in a few words
    promises: ClassVar[tuple[Promise, ...]] = ()  # with its default options; tests check them
    remark: str = ""  # what users should know of its last plan, such as that another policy made it

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        for base in cls.__dict__.get("__orig_bases__", ()):
            origin = get_origin(base)
            if isinstance(origin, type) and issubclass(origin, Policy):
                (model,) = get_args(base)
                if isinstance(model, type):  # not the type variable of a generic subclass
                    cls.Options = model

    def __init__(self, **options: Any) -> None:
        self.options = cast(OptionsT, self.Options(**options))
        if getattr(self.options, "elastic", False):
            self.moves_running = True  # a running job may grow while no job waits
        if getattr(self.options, "sharing", "exclusive") == "shared":
            self.shares_devices = True
        if self.options.use_utilization:
            self.uses_utilization = True

    def rank(self, job: Job, progress: Progress) -> Any:
        """Return the value that orders waiting jobs, lower first. The engine compares queue priorities
        before it, and submit times and ids after it; the default is arrival order.

        The value must not change while the job waits, unless the policy calls `state.draft.rerank`."""
        return 0

    def running_rank(self, running: Running) -> RunningRank | None:
        """Return the value that orders a running job among all jobs, for policies that preempt by rank.
        It compares with `rank`. None leaves the job out."""
        return None

    def group(self, job: Job) -> object:
        """Return the key of the job's group in the queue. Jobs of one group must have the same request."""
        return job.request

    def why_waiting(self, job: Job) -> str:
        """Say in a clause why the last plan left this job waiting although devices with enough free memory
        exist; empty if nothing but the order of the queue keeps it waiting."""
        return ""

    @abstractmethod
    def plan(self, state: State) -> None:
        """Decide which waiting jobs start and where, and which running ones are preempted, by moves on
        `state.draft`. To be called again at a certain time, call `state.draft.wake_at`."""

    def close(self) -> None:
        """Release what the policy holds. It plans no more."""

    @classmethod
    def rule(cls) -> str:
        """Return the rule in a sentence: the first line of the class's docstring."""
        return summary(cls)


class PolicyError(ValueError):
    """There is no such policy, or it does not take an option; the message lists what there is."""


class PolicyFailed(RuntimeError):
    """A policy failed in a process of its own. The message is complete: what happened, and where."""


@cache
def _built_in() -> dict[str, type[Policy]]:
    found: Iterator[type[Policy]] = classes_in("gpu_flows.schedulers.policies", Policy)
    return {policy.name: policy for policy in found}


def is_built_in(name: str) -> bool:
    """Return whether the policy is part of gpu-flows. Any other comes from an entry point."""
    return name in _built_in()


def policies() -> dict[str, type[Policy]]:
    """Return every policy by name. A built-in one wins over an entry point of the same name."""
    found = dict(_built_in())
    importlib.invalidate_caches()  # finds packages installed after this process started
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name not in found:
            try:
                loaded = entry.load()
            except (Exception, SystemExit):  # a broken plugin must not hide the others
                continue
            if isinstance(loaded, type) and issubclass(loaded, Policy):
                found[entry.name] = loaded
    return dict(sorted(found.items()))


def make_policy(name: str, options: Mapping[str, Any] | None = None) -> Policy:
    """Return the policy of that name with these options, or raise a PolicyError that explains why not."""
    known = _built_in() if name in _built_in() else policies()
    if name not in known:
        hint = f"{did_you_mean(name, known)} There are: {', '.join(known)}.".strip()
        raise PolicyError(_why_absent(name) or f"There is no policy {name!r}. {hint}")
    try:
        return known[name](**dict(options or {}))
    except ValidationError as error:
        raise PolicyError(_explain(known[name], error)) from None
    except (Exception, SystemExit) as error:  # the constructor of a plugin may raise anything
        raise PolicyError(f"Policy {name!r} cannot be made: {type(error).__name__}: {error}") from error


def _why_absent(name: str) -> str:
    """Explain why a plugin of that name, if there is one, was not listed."""
    for entry in entry_points(group=ENTRY_POINTS, name=name):
        try:
            entry.load()
        except (Exception, SystemExit) as error:
            return f"Policy {name!r} cannot be loaded: {type(error).__name__}: {error}"
        return f"Policy {name!r} is not a subclass of Policy: {entry.value}"
    return ""


def _explain(policy: type[Policy], error: ValidationError) -> str:
    wrong = explain(error, whole="options", known=policy.Options.model_fields)
    options = ", ".join(policy.Options.model_fields) or "none"
    return f"Policy {policy.name!r} does not take these options ({wrong}). Its options: {options}."
