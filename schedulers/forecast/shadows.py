"""Shadows: policies that plan on the state of a pool beside its own policy, without any effect.

Each shadow has an engine of its own that follows the state of the pool (see `mirror`). So its queue stays in
its own order, a decision costs it what it would cost it as the policy of the pool, and a shadow that breaks
off in the middle of a plan leaves nothing behind but an engine that is thrown away. After each plan its moves
are undone, and compared with what the pool decided.

A shadow that fails, or takes too long for one plan, is suspended until the block is saved again. One that
takes more than its share of the time is not asked about every decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from gpu_flows.schedulers.engine import FAILURES, Engine
from gpu_flows.schedulers.mirror import Changes, Original, apply
from gpu_flows.schedulers.model import Plan
from gpu_flows.schedulers.policy import Policy, PolicyError, make_policy

PLAN_WITHIN_S = 1.0
SHARE = 0.1  # of the time, in which each shadow may plan
AT_FIRST_S = 2.0  # that it may use before it has earned any

Guard = Callable[[str, float], AbstractContextManager[None]]
"""Is around each plan of the shadow of this name, and raises TookTooLong in it after so many seconds."""


class TookTooLong(BaseException):
    """A plan was broken off. No policy catches it together with its own errors."""


@dataclass(frozen=True, slots=True)
class Moves:
    """What a plan moves, by the ids of jobs and devices."""

    starts: Mapping[str, frozenset[str]]  # the devices of each job
    preempts: frozenset[str] = frozenset()

    @classmethod
    def of(cls, plan: Plan) -> Moves:
        started = {start.job.id: frozenset(device.id for device in start.devices) for start in plan.starts}
        return cls(started, frozenset(preempt.running.job.id for preempt in plan.preempts))

    def each(self) -> set[tuple[str, str]]:
        """Return the moves one by one. No policy decides about a job that asks for no device."""
        started = {("start", job_id) for job_id, devices in self.starts.items() if devices}
        return started | {("preempt", job_id) for job_id in self.preempts}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a shadow would have done instead of a decision of the pool."""

    shadow: str
    started: int = 0
    preempted: int = 0
    same_jobs: bool = False  # it would have started the same jobs
    same_devices: bool = False  # and these on the same devices
    agreement: float = 0.0  # the moves that both made, as a part of the moves that one of them made
    took_us: float = 0.0
    skipped: int = 0  # decisions before this one about which it was not asked, for lack of time
    error: str = ""  # why it is suspended


class Shadow:
    """One policy with its engine. Raises PolicyError if there is no such policy."""

    def __init__(self, policy: Policy, options: Mapping[str, Any], now: float) -> None:
        self.policy, self.options = policy, options
        self.error = ""  # why it is suspended
        self.skipped = 0
        self._engine: Engine | None = None  # None: it knows nothing of the pool yet
        self._since, self._used_s = now, 0.0

    @property
    def is_new(self) -> bool:
        return self._engine is None

    def follow(self, changes: Changes) -> None:
        """Bring its engine to the state of the pool."""
        if self._engine is None:
            self._engine = Engine((), self.policy, can_preempt=True)
        apply(changes, self._engine)
        self._raise_failure(self._engine)

    def plan(self, now: float) -> Plan:
        """Return its plan, which has no effect."""
        assert self._engine, "follow() comes first"
        plan = self._engine.rehearse(now)
        self._raise_failure(self._engine)
        return plan

    def _raise_failure(self, engine: Engine) -> None:
        if engine.policy_error:
            raise _Failed(engine.policy_error)

    def has_time(self, now: float) -> bool:
        """Whether it has used less than its share of the time."""
        return self._used_s < AT_FIRST_S + SHARE * (now - self._since)

    def charge(self, seconds: float) -> None:
        self._used_s += seconds

    def suspend(self, reason: str) -> None:
        self.error, self._engine = reason, None
        self.policy.close()


class _Failed(Exception):
    """A shadow's policy failed; the message says how."""


class Shadows:
    """The shadows of one pool."""

    def __init__(
        self,
        clock: Callable[[], float],
        open_policy: Callable[[str, dict[str, Any]], Policy] = make_policy,
        guard: Guard = lambda name, seconds: nullcontext(),
    ) -> None:
        self._clock, self._open_policy, self._guard = clock, open_policy, guard
        self._shadows: dict[str, Shadow] = {}
        self._refused: dict[str, str] = {}  # why there is no such shadow, by name
        self._original = Original()

    def choose(self, choices: Mapping[str, Mapping[str, Any]]) -> None:
        """Let these policies plan from now on. One that is suspended is tried again."""
        for name, shadow in list(self._shadows.items()):
            if shadow.error or choices.get(name) != shadow.options:
                shadow.policy.close()
                del self._shadows[name]
        self._refused.clear()
        for name, options in choices.items():
            if name not in self._shadows:
                try:
                    policy = self._open_policy(name, dict(options))
                except PolicyError as error:
                    self._refused[name] = str(error)
                else:
                    self._shadows[name] = Shadow(policy, options, self._clock())

    def errors(self) -> dict[str, str]:
        """Return why a shadow does not plan, by name; empty if it plans."""
        return {name: shadow.error for name, shadow in self._shadows.items()} | self._refused

    def active(self) -> dict[str, Mapping[str, Any]]:
        """Return the options of the shadows that plan, by name."""
        return {name: shadow.options for name, shadow in self._shadows.items() if not shadow.error}

    def observe(self, engine: Engine, decided: Moves, now: float) -> Iterator[Verdict]:
        """Let each shadow plan on the state of this engine, in which the pool decided so. Decisions in which
        neither of them moves anything are left out."""
        if not self.active():
            self._original = Original()
            return
        changes = self._original.changes(engine.look(now))
        for name, shadow in self._shadows.items():
            if not shadow.error:
                seen = Original().changes(engine.look(now)) if shadow.is_new else changes
                verdict = self._ask(name, shadow, seen, decided)
                if verdict:
                    yield verdict

    def skip(self) -> None:
        """Count a decision about which no shadow is asked."""
        for shadow in self._shadows.values():
            shadow.skipped += not shadow.error

    def close(self) -> None:
        for shadow in self._shadows.values():
            shadow.policy.close()

    def _ask(self, name: str, shadow: Shadow, changes: Changes, decided: Moves) -> Verdict | None:
        began = self._clock()
        try:
            with self._guard(name, PLAN_WITHIN_S):
                shadow.follow(changes)
                if not shadow.has_time(began):
                    shadow.skipped += 1
                    return None
                planning = self._clock()
                plan = shadow.plan(changes.now)
        except TookTooLong:
            return self._suspend(name, shadow, began, f"it did not plan within {PLAN_WITHIN_S:g} s")
        except _Failed as error:
            return self._suspend(name, shadow, began, str(error))
        except FAILURES as error:  # its rank raised while its moves were undone
            return self._suspend(name, shadow, began, f"{type(error).__name__}: {error}")
        finally:
            shadow.charge(self._clock() - began)
        took_s = self._clock() - planning
        if took_s > PLAN_WITHIN_S:
            return self._suspend(name, shadow, began, f"it did not plan within {PLAN_WITHIN_S:g} s")
        return self._judge(name, shadow, Moves.of(plan), decided, took_s * 1e6)

    def _judge(
        self, name: str, shadow: Shadow, mine: Moves, decided: Moves, took_us: float
    ) -> Verdict | None:
        if not (mine.each() or decided.each()):
            return None
        skipped, shadow.skipped = shadow.skipped, 0
        started = sum(bool(devices) for devices in mine.starts.values())
        return Verdict(name, started, len(mine.preempts), *compare(mine, decided), took_us, skipped)

    def _suspend(self, name: str, shadow: Shadow, began: float, reason: str) -> Verdict:
        skipped, shadow.skipped = shadow.skipped, 0
        shadow.suspend(reason)
        return Verdict(name, took_us=(self._clock() - began) * 1e6, skipped=skipped, error=reason)


def compare(mine: Moves, decided: Moves) -> tuple[bool, bool, float]:
    """Return whether both start the same jobs, whether on the same devices, and how much they agree."""
    same_devices = _placed(mine) == _placed(decided)
    same_jobs = same_devices or _placed(mine).keys() == _placed(decided).keys()
    either = mine.each() | decided.each()
    return same_jobs, same_devices, len(mine.each() & decided.each()) / len(either) if either else 1.0


def _placed(moves: Moves) -> dict[str, frozenset[str]]:
    return {job_id: devices for job_id, devices in moves.starts.items() if devices}
