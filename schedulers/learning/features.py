"""What the network sees of a job: one row of numbers for each waiting or running job.

All are free of scale, so that the same weights serve queues and clusters of any size, and jobs of minutes or
days: times are relative to the mean run time of the jobs that ended, numbers of devices to the cluster.
Nothing that its owner states about a job's duration is used. The last columns are the same for all jobs of a
plan: they tell how the cluster stands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpu_flows.schedulers.learning.lifetimes import Lifetimes
from gpu_flows.schedulers.model import Job, Progress, Running
from gpu_flows.schedulers.policy import State

Floats = NDArray[np.float32]

OF_JOB = (
    "attained",  # time on devices so far
    "service",  # the same times devices
    "devices",  # logarithm of the number of devices
    "share",  # part of the cluster
    "waited",  # time in the queue, over all attempts
    "runs",  # 1 for a running job
    "preemptions",
    "left",  # time it still takes, as far as all earlier jobs tell
    "rate",  # the best chance of an end per second, as far as all earlier jobs tell
    "left_like",  # the same by earlier jobs of its user, kind and size
    "rate_like",
    "outlasted",  # the part of those jobs that took no longer than it has run
    "known_like",  # how many of those there were
    "stopping",  # of a running job: what a stop would cost it, relative to the time it still takes
)
OF_CLUSTER = (
    "pressure",  # devices that waiting jobs ask for, relative to all
    "queue",  # waiting jobs per device
    "idle",  # part of the devices that no job holds
    "known",  # how many jobs have ended
    "width",  # mean logarithm of the devices that waiting jobs ask for
)
NAMES = (*OF_JOB, *OF_CLUSTER)
LIMIT = 10.0  # features are cut off here

ENOUGH = 5  # ended jobs that make a narrower group of jobs known
MOST_GROUPS = 4_096
WELL_KNOWN = 64  # ended jobs of a group; more of them change nothing
RESTART_S = 30.0  # what a preemption is assumed to cost a job
LEASE_S = 120.0  # a job keeps its devices for this long
REVIEW_GROWTH = 0.3  # a running job is judged again when it has run this much longer,
REVIEW_SHARE = 0.05  # or for this part of the mean run time, if that is more, but at least for a lease

# Columns of the raw table, from which the features are computed for all jobs at once.
_ATTAINED, _BORN, _GPUS, _PREEMPTIONS, _LEFT, _RATE, _LEFT_LIKE, _RATE_LIKE, _ALIVE, _KNOWN, _RUNS = range(11)


class View(NamedTuple):
    """The features of all jobs at a plan: first the waiting ones, then the running ones."""

    waiting: Sequence[Job]
    running: Sequence[Running]
    rows: Floats  # a row for each job, the columns are NAMES


class _Entry:
    """What is kept of a job from plan to plan: its row of the raw table, and what the row was made of."""

    __slots__ = ("like", "like_version", "progress", "row", "version")

    def __init__(self, row: int) -> None:
        self.row = row
        self.version = self.like_version = -1
        self.progress: Progress | None = None  # None while it runs
        self.like: Lifetimes | None = None


class JobTable:
    """Follows the jobs from plan to plan, and learns from those that end."""

    def __init__(self) -> None:
        self.all = Lifetimes()
        self._groups: dict[object, Lifetimes] = {}
        self._held: dict[str, Running] = {}
        self._entries: dict[str, _Entry] = {}
        self._raw = np.zeros((64, 11))
        self._free = list(range(63, -1, -1))

    def learn_from_ended(self, state: State) -> None:
        """Add the run times of the jobs that ended since the last plan. Call it first in each plan."""
        running, held = state.running, self._held
        if held.keys() != running.keys():
            for job_id in sorted(held.keys() - running.keys()):
                gone = held.pop(job_id)
                if job_id not in state.queue:
                    self._learn(gone.job, gone.before.ran_s + state.now - gone.since)
                    self._forget(job_id)
        if len(self._entries) > 2 * (len(running) + len(state.queue)) + 64:  # some were cancelled
            for job_id in [each for each in self._entries if each not in running and each not in state.queue]:
                self._forget(job_id)

    def remember_running(self, state: State) -> None:
        """Note which jobs run now. Call it last in each plan."""
        self._held = {job_id: each for job_id, each in state.running.items() if each.devices}

    def view(self, state: State, waiting: Sequence[Job] | None = None) -> View:
        """Return the features of the waiting jobs, or some of them, and of all running jobs."""
        waiting = list(state.queue.unordered()) if waiting is None else waiting
        running = [each for each in state.running.values() if each.devices]
        progress = state.queue.progress
        rows = [self._row_of_waiting(job, progress(job.id)) for job in waiting]
        rows += [self._row_of_running(each, state.now) for each in running]
        devices = max(1, len(state.cluster.devices))
        raw = self._raw[rows]
        wanted = raw[: len(waiting), _GPUS]
        situation = (
            math.log1p(float(wanted.sum()) / devices),
            math.log1p(len(wanted) / devices),
            state.cluster.idle / devices,
            math.log1p(min(self.all.count, WELL_KNOWN)) / math.log1p(WELL_KNOWN),
            float(np.log(np.maximum(wanted, 1)).sum()) / max(1, len(wanted)),
        )
        return View(waiting, running, self._scale(raw, devices, state.now, situation))

    def next_review(self, state: State, lease_s: float = LEASE_S) -> float:
        """Return when a running job will have run so much longer that it should be judged again."""
        now, least = state.now, max(1.0, lease_s, REVIEW_SHARE * self.all.mean_s)
        ran = min((_ran(each, now) for each in state.running.values() if each.devices), default=math.inf)
        return now + max(REVIEW_GROWTH * ran, least)

    # -- the raw table ------------------------------------------------------------------------

    def _row_of_waiting(self, job: Job, progress: Progress) -> int:
        entry = self._entries.get(job.id) or self._enter(job)
        like = entry.like
        if (
            entry.progress is not progress
            or entry.version != self.all.version
            or like is None
            or (entry.like_version != like.version)
        ):
            self._fill(entry, job, progress.ran_s, progress.preemptions, 0.0)
            entry.progress = progress
        return entry.row

    def _row_of_running(self, running: Running, now: float) -> int:
        job = running.job
        entry = self._entries.get(job.id) or self._enter(job)
        self._fill(entry, job, _ran(running, now), running.before.preemptions, 1.0)
        entry.progress = None
        return entry.row

    def _fill(self, entry: _Entry, job: Job, attained_s: float, preemptions: int, runs: float) -> None:
        if entry.version != self.all.version or entry.like is None:
            entry.like, entry.version = self._find_like(job), self.all.version
        like = entry.like
        entry.like_version = like.version
        left, rate, _ = self.all.outlook(attained_s)
        left_like, rate_like, alive = like.outlook(attained_s)
        self._raw[entry.row] = (
            attained_s,
            job.submitted + attained_s,
            job.gpus,
            preemptions,
            left,
            rate,
            left_like,
            rate_like,
            alive,
            like.count,
            runs,
        )

    def _scale(
        self, raw: NDArray[np.float64], devices: int, now: float, situation: tuple[float, ...]
    ) -> Floats:
        """Turn rows of the raw table into features."""
        mean = self.all.mean_s
        attained, gpus = raw[:, _ATTAINED] / mean, raw[:, _GPUS]
        rows = np.empty((len(raw), len(NAMES)), np.float32)
        rows[:, 0] = np.log1p(attained)
        rows[:, 1] = np.log1p(attained * gpus)
        rows[:, 2] = np.log(np.maximum(gpus, 1))
        rows[:, 3] = gpus / devices
        rows[:, 4] = np.log1p(np.maximum(0.0, now - raw[:, _BORN]) / mean)
        rows[:, 5] = raw[:, _RUNS]
        rows[:, 6] = np.log1p(raw[:, _PREEMPTIONS])
        rows[:, 7] = np.log(np.maximum(raw[:, _LEFT] / mean, 1e-4))
        rows[:, 8] = np.log(np.maximum(raw[:, _RATE] * mean, 1e-4))
        rows[:, 9] = np.log(np.maximum(raw[:, _LEFT_LIKE] / mean, 1e-4))
        rows[:, 10] = np.log(np.maximum(raw[:, _RATE_LIKE] * mean, 1e-4))
        rows[:, 11] = 1 - raw[:, _ALIVE]
        rows[:, 12] = np.log1p(np.minimum(raw[:, _KNOWN], WELL_KNOWN)) / math.log1p(WELL_KNOWN)
        rows[:, 13] = raw[:, _RUNS] * np.log1p(RESTART_S * raw[:, _RATE_LIKE])
        rows[:, len(OF_JOB) :] = situation
        np.clip(rows, -LIMIT, LIMIT, out=rows)
        return rows

    def _enter(self, job: Job) -> _Entry:
        if not self._free:
            size = len(self._raw)
            self._raw = np.concatenate((self._raw, np.zeros_like(self._raw)))
            self._free = list(range(2 * size - 1, size - 1, -1))
        entry = self._entries[job.id] = _Entry(self._free.pop())
        return entry

    def _forget(self, job_id: str) -> None:
        entry = self._entries.pop(job_id, None)
        if entry:
            self._free.append(entry.row)

    # -- what ended jobs teach ----------------------------------------------------------------

    def _learn(self, job: Job, ran_s: float) -> None:
        self.all.learn(ran_s)
        groups = self._groups
        for key in _groups(job):
            group = groups.pop(key) if key in groups else Lifetimes()
            groups[key] = group  # those of the latest jobs are last
            group.learn(ran_s)
        while len(groups) > MOST_GROUPS:
            del groups[next(iter(groups))]

    def _find_like(self, job: Job) -> Lifetimes:
        """Return the run times of the narrowest group of the job that is known well enough."""
        for key in _groups(job):
            group = self._groups.get(key)
            if group is not None and group.count >= ENOUGH:
                return group
        return self.all


def _groups(job: Job) -> tuple[object, ...]:
    """Return the groups of jobs that are like this one, the narrowest first."""
    return ((job.user, job.kind, job.gpus), (job.kind, job.gpus), job.gpus)


def _ran(running: Running, now: float) -> float:
    return running.before.ran_s + max(0.0, now - running.since)
