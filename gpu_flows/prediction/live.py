"""Completes jobs before they enter the queue: predicts memory and time where their owners do not state them.

The memory comes from recorded peaks of like jobs, else from a trace of the training step that the job names,
else from its declared features; the time comes from earlier jobs. `complete` answers at once from what is in
memory. A trace runs in the background. The job waits for it, for a limited time and only if its bound can
change where it runs; without a bound it asks for whole devices.

`Job.predicted` names what was predicted, so that nobody mistakes it for a request: a predicted bound that is
too large for the pool means its largest devices, and never refuses a job.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Container, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from gpu_flows.analytics.facts import Fact, FeaturesSeen, Predicted
from gpu_flows.prediction.trace_queue import Step, TraceQueue
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Device, Job
from gpu_flows.schedulers.prediction.estimate import Estimate, JobFeatures
from gpu_flows.schedulers.prediction.fitting_bound import fit_bound
from gpu_flows.schedulers.prediction.options import PredictionOptions
from gpu_flows.schedulers.prediction.run_parameters import flatten
from gpu_flows.schedulers.prediction.work_amount import find_model

MOST_KNOWN = 50_000  # jobs whose needs are remembered
MOST_ENDS = 1000  # latest ends, which new predictors may not have learned
STATED, RAISED, TRACED, HISTORY = "stated", "raised", "traced", "history"
PROGRESS = "progress"
LEARNED = ("features", HISTORY)  # how a learned predictor answers
KEEP_DEADLINE_S = 600.0  # after it has passed; the job was cancelled, or is completed at once
NOTICEABLE = 0.1  # change of an estimate, as a part of it
MEMORY, TIME = "memory_mb", "expected_s"  # names of fields of a job


class MemoryPredictor(Protocol):
    """Predicts the memory of a job on each device, in MiB."""

    def estimate(self, features: JobFeatures, gpu_model: str) -> Estimate | None: ...


class MemoryHistory(MemoryPredictor, Protocol):
    """Predicts the memory of jobs that were seen before."""

    def learn(
        self, features: JobFeatures, gpu_model: str, peak_mb: float, is_least: bool, device_mb: float
    ) -> None:
        """Learn the peak of a job. `is_least`: it needs at least so much, because it did not complete.
        `device_mb` is the memory that it could use."""
        ...

    def find_enough(self, features: JobFeatures) -> float:
        """Return the memory of the smallest device on which like jobs completed; 0 if not known."""
        ...


class TimePredictor(Protocol):
    """Predicts the time of a job on its devices, in seconds."""

    def estimate(
        self, features: JobFeatures, gpu_model: str, gpus: int, ran_s: float = 0.0
    ) -> Estimate | None: ...

    def learn(self, features: JobFeatures, gpu_model: str, gpus: int, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Needs:
    """What is known of the memory and time of a job, and how."""

    features: JobFeatures
    memory: Estimate | None = None
    time: Estimate | None = None


@dataclass(frozen=True, slots=True)
class Completed:
    """A completed job. `is_pending`: a trace is under way that may still find its memory."""

    job: Job
    is_pending: bool = False


@dataclass(eq=False)
class LivePrediction:
    cluster: Cluster
    record: Callable[..., None]
    tell: Callable[[str, str], None]  # writes into the log of a job's run
    on_ready: Callable[[set[str]], None]  # the jobs with these ids can be completed now
    raised_bound: Callable[[str], int] = lambda job_id: 0  # of a job that ran out of memory, in MiB
    shares_devices: Callable[[], bool] = lambda: True  # whether the pool's policy gives out devices in shares
    options: PredictionOptions = field(default_factory=PredictionOptions)
    traces: TraceQueue | None = None
    history: MemoryHistory | None = None
    features: MemoryPredictor | None = None
    durations: TimePredictor | None = None
    version: str = ""  # of the learned predictors
    _needs: dict[str, Needs] = field(default_factory=dict, init=False)
    _deadlines: dict[str, float] = field(default_factory=dict, init=False)
    _latest_ends: deque[_End] = field(default_factory=lambda: deque(maxlen=MOST_ENDS), init=False)
    _failures: dict[str, str] = field(default_factory=dict, init=False)  # of traces, told to each job's owner
    _devices: _LargestDevices = field(init=False)

    def __post_init__(self) -> None:
        self._devices = _LargestDevices(self.cluster)

    @property
    def basis(self) -> tuple[object, ...]:
        """What all predictions rest on besides the job. If it changes, waiting jobs are completed anew."""
        return (self.cluster.service_version, self.options)

    # -- complete -----------------------------------------------------------------------------

    def complete(self, job: Job, features: JobFeatures, step: str, options: Mapping[str, Any]) -> Completed:
        """Return the job with the memory and time that it will probably need. `step` is the training step
        that it names, if any, and `options` what the step is called with."""
        if not job.gpus:
            return Completed(job)
        job = replace(job, kind=job.kind or find_kind(features))
        device = self._devices.find(job)
        gpu, size_mb = (device.model, device.memory_mb) if device else ("", 0)
        traced_step = Step(step, options, gpu, size_mb) if step else None
        memory, is_pending = self._predict_memory(job, features, gpu, traced_step)
        if is_pending:
            return Completed(job, True)
        before = self._needs.get(job.id) or Needs(features)
        memory = keep_estimate(before.memory, memory)
        needs = Needs(features, memory, keep_estimate(before.time, self._predict_time(job, features, gpu)))
        completed = self._apply(job, needs)
        self._remember(completed, needs, gpu)
        return Completed(completed)

    def foresee(self, job: Job, features: JobFeatures) -> tuple[Job, Estimate | None]:
        """Return what `complete` would make of a job that nobody has submitted, and how long it takes.
        Nothing is recorded, remembered or traced."""
        if not job.gpus:
            return job, None
        job = replace(job, kind=job.kind or find_kind(features))
        device = self._devices.find(job)
        gpu = device.model if device else ""
        memory, _ = self._predict_memory(job, features, gpu, None)
        needs = Needs(features, memory, self._predict_time(job, features, gpu))
        return self._apply(job, needs), needs.time

    def _predict_memory(
        self, job: Job, features: JobFeatures, gpu: str, step: Step | None
    ) -> tuple[Estimate | None, bool]:
        """Return the memory, and whether a trace may still find it."""
        if (raised_mb := self.raised_bound(job.id)) > job.memory_mb:
            return _describe_raised(raised_mb), False
        if job.memory_mb:
            return Estimate(job.memory_mb, job.memory_mb, STATED), False
        if not self.options.enabled:
            return None, False
        found = self._ask_history(features, gpu)
        if found is None and step and self.traces:
            traced = self.traces.find(step, job.id)
            known = self._needs.get(job.id)
            if traced:
                found = traced.estimate
                self._tell_failure(job.id, step.name, traced.error)
            elif known:  # it is in the queue and stays there, with its bound, while its step is traced anew
                found = known.memory if known.memory and known.memory.how == TRACED else None
            elif self._bound_matters() and self._may_wait(job.id):
                return None, True
        if found is None and self.features:
            found = self.features.estimate(features, gpu)
        return found, False

    def _tell_failure(self, job_id: str, step: str, error: str) -> None:
        """Tell the owner of a job, once, that its step cannot be traced."""
        if error and self._failures.get(job_id) != error:
            self._failures[job_id] = error
            if len(self._failures) > MOST_KNOWN:
                del self._failures[next(iter(self._failures))]
            self.tell(job_id, f"The memory of step {step} cannot be predicted: {error}")

    def _ask_history(self, features: JobFeatures, gpu: str) -> Estimate | None:
        """Return what earlier peaks say, and no more than a device has on which like jobs completed."""
        found = self.history.estimate(features, gpu) if self.history else None
        enough_mb = self.history.find_enough(features) if self.history and found else 0.0
        if found is None or not 0 < enough_mb < found.upper:
            return found
        return replace(found, value=min(found.value, enough_mb), upper=enough_mb)

    def _bound_matters(self) -> bool:
        """Return whether a memory bound can change where a job runs: not on whole devices of one size."""
        return self.shares_devices() or len(self._devices.sizes()) > 1

    def _may_wait(self, job_id: str) -> bool:
        """Return whether the job still waits for its trace. It is completed at its deadline at the latest."""
        now = time.monotonic()
        if job_id not in self._deadlines:
            self._forget_deadlines(now - KEEP_DEADLINE_S)
            wait_s = self.options.wait_seconds
            self._deadlines[job_id] = now + wait_s
            asyncio.get_running_loop().call_later(wait_s + 0.01, self.on_ready, {job_id})
        return now < self._deadlines[job_id]

    def _forget_deadlines(self, before: float) -> None:
        """Forget deadlines of jobs that nobody has asked for since: they were cancelled."""
        while self._deadlines and self._deadlines[oldest := next(iter(self._deadlines))] < before:
            del self._deadlines[oldest]

    def _predict_time(self, job: Job, features: JobFeatures, gpu: str) -> Estimate | None:
        if job.expected_s:
            return Estimate(job.expected_s, job.expected_s, STATED)
        if not self.options.enabled or self.durations is None:
            return None
        return self.durations.estimate(features, gpu, job.gpus)

    def _apply(self, job: Job, needs: Needs) -> Job:
        predicted = set(job.predicted)
        if needs.memory and needs.memory.how != STATED:
            bound = self._fit(job, needs.memory)
            job = replace(job, memory_mb=bound)
            predicted |= {MEMORY} if bound else set()
        if needs.time and needs.time.how != STATED:
            job = replace(job, expected_s=needs.time.value)
            predicted.add(TIME)
        return replace(job, predicted=tuple(sorted(predicted))) if predicted else job

    def _fit(self, job: Job, memory: Estimate) -> int:
        """Return the bound that the pool can satisfy, if possible with devices that are in service. Smaller
        ones than predicted are tried too, unless like jobs, or this one, are known to have used more."""
        upper_mb, sizes = max(1, round(memory.upper)), self._devices.sizes()
        if memory.how != RAISED:
            bound = fit_bound(job, upper_mb, self.cluster.could_hold_now, sizes)
            if bound and (memory.how != HISTORY or bound >= memory.value):
                return bound
        return fit_bound(job, upper_mb, self.cluster.could_hold, sizes)

    def predict_longer(self, job: Job, devices: tuple[Device, ...], ran_s: float) -> Estimate | None:
        """Return the whole time of a job that has run longer than expected: that of like jobs which took
        longer too."""
        needs = self._needs.get(job.id)
        if needs is None or not devices or not self.options.enabled or self.durations is None:
            return None
        return self.durations.estimate(needs.features, devices[0].model, len(devices), ran_s)

    # -- record -------------------------------------------------------------------------------

    def _remember(self, job: Job, needs: Needs, gpu: str) -> None:
        """Record what is new, and tell the owner of the job what was predicted."""
        before = self._needs.get(job.id)
        if before == needs:
            return
        self._deadlines.pop(job.id, None)
        self._needs[job.id] = needs
        if len(self._needs) > MOST_KNOWN:
            for job_id in list(self._needs)[: MOST_KNOWN // 2]:
                del self._needs[job_id]
        self.record(*_describe(job, needs, gpu, before, self.version))
        if before is None and job.predicted:
            self.tell(job.id, describe_needs(needs))

    def describe(self, job: Job) -> dict[str, dict[str, Any] | None]:
        """Return what is known of the memory and the time of a job, and how, for those who show it."""
        memory, seconds = self.memory(job), self.duration(job)
        return {
            "memory": {**asdict(memory), "unit": "MiB"} if memory else None,
            "time": {**asdict(seconds), "unit": "s"} if seconds else None,
        }

    def memory(self, job: Job) -> Estimate | None:
        """Return what is known of the memory of a job on each device."""
        needs = self._needs.get(job.id)
        if needs and needs.memory:
            return needs.memory
        # an earlier worker completed it
        return Estimate(job.memory_mb, job.memory_mb, _how(job, MEMORY)) if job.memory_mb else None

    def duration(self, job: Job) -> Estimate | None:
        """Return what is known of the time of a job on its devices, in all."""
        needs = self._needs.get(job.id)
        if needs and needs.time:
            return needs.time
        if not job.expected_s:
            return None
        # Nothing was known before it ran, so what is known now was told by its output.
        return Estimate(job.expected_s, job.expected_s, PROGRESS if needs else _how(job, TIME))

    def typical_duration(self) -> Estimate | None:
        """Return the time of a job of which nothing is known."""
        is_on = self.options.enabled and self.durations
        return self.durations.estimate(JobFeatures(), "", 1) if is_on and self.durations else None

    # -- learn --------------------------------------------------------------------------------

    def learn(
        self,
        job: Job,
        devices: tuple[Device, ...],
        outcome: str,
        ran_s: float,
        peak_mb: float = 0.0,
        least_mb: float = 0.0,
    ) -> None:
        """Learn from an ended attempt. `peak_mb` is what it used at most, `least_mb` what a job that ran out
        of memory needs at least; 0 if unknown."""
        self._latest_ends.append(_End(job, devices, outcome, ran_s, peak_mb, least_mb))
        needs, is_complete = self._needs.get(job.id), outcome == "completed"
        if needs is None or not devices:
            return
        if outcome == "out_of_memory" and (raised_mb := self.raised_bound(job.id)):
            self._remember(job, replace(needs, memory=_describe_raised(raised_mb)), "")
        model, used_mb = devices[0].model, peak_mb if is_complete else max(peak_mb, least_mb)
        if used_mb and self.history:
            room_mb = min(device.memory_mb for device in devices)
            if not is_complete and job.memory_mb and self.shares_devices():
                room_mb = min(room_mb, job.memory_mb)  # it had a share, and may have run out of that
            self.history.learn(needs.features, model, used_mb, not is_complete, room_mb)
        if is_complete and self.durations:
            self.durations.learn(needs.features, model, len(devices), ran_s)

    def learn_again(self, known: Container[str]) -> None:
        """Let new predictors learn the latest ends, but for those of known jobs, which they have learned."""
        ends = [end for end in self._latest_ends if end.job.id not in known]
        self._latest_ends.clear()
        for end in ends:
            self.learn(*end)

    async def close(self) -> None:
        if self.traces:
            await self.traces.close()


class _End(NamedTuple):
    """The arguments of `learn`."""

    job: Job
    devices: tuple[Device, ...]
    outcome: str
    ran_s: float
    peak_mb: float
    least_mb: float


class _LargestDevices:
    """The largest device that a job accepts. Jobs with the same constraints share an answer."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._nodes: object = None  # of the cluster when the answers were found
        self._found: dict[object, Device | None] = {}
        self._sizes: set[int] = set()

    def find(self, job: Job) -> Device | None:
        self._refresh()
        key = (job.nodes, job.models)
        if key not in self._found:
            free = replace(job, memory_mb=0)
            accepted = (s.device for s in self._cluster.devices.values() if free.accepts(s.device))
            self._found[key] = max(accepted, key=lambda device: device.memory_mb, default=None)
        return self._found[key]

    def sizes(self) -> set[int]:
        self._refresh()
        return self._sizes

    def _refresh(self) -> None:
        if self._nodes is not self._cluster.nodes:  # the cluster replaces them when its devices change
            self._nodes, self._found = self._cluster.nodes, {}
            self._sizes = {state.device.memory_mb for state in self._cluster.devices.values()}


def keep_estimate(before: Estimate | None, after: Estimate | None) -> Estimate | None:
    """Return the earlier estimate of a waiting job unless the new one is noticeably different: predictors
    learn all the time, and the queue need not follow every small change."""
    if before is None or after is None or before.how != after.how:
        return after
    pairs = ((before.value, after.value), (before.upper, after.upper))
    return before if all(abs(new - old) <= NOTICEABLE * old for old, new in pairs) else after


def _describe_raised(bound_mb: int) -> Estimate:
    return Estimate(bound_mb, bound_mb, RAISED, "it ran out of memory")


def _how(job: Job, name: str) -> str:
    return "predicted" if name in job.predicted else STATED


def _describe(job: Job, needs: Needs, gpu: str, before: Needs | None, version: str) -> list[Fact]:
    """Return the facts about a completed job: its features once, and each need that is new."""
    facts: list[Fact] = []
    if before is None:
        parameters = json.dumps(dict(needs.features.parameters), default=str, sort_keys=True)
        facts.append(FeaturesSeen(job.id, job.kind, parameters, json.dumps(job.predicted)))
    known = (before.memory, before.time) if before else (None, None)
    for quantity, estimate, old in zip(
        ("memory_mb", "seconds"), (needs.memory, needs.time), known, strict=True
    ):
        if estimate and estimate != old:
            known_version = version if estimate.how in LEARNED else ""
            facts.append(
                Predicted(
                    job.id,
                    time.time(),
                    quantity,
                    gpu,
                    estimate.value,
                    estimate.upper,
                    estimate.how,
                    known_version,
                    estimate.detail,
                )
            )
    return facts


def find_kind(features: JobFeatures) -> str:
    """Return the kind of a job: its flow and the network that it trains. Jobs of one kind run alike."""
    return " ".join(filter(None, (features.flow, find_model(flatten(features.parameters)))))


def describe_needs(needs: Needs) -> str:
    """Return what was predicted of a job and how, as a line for its log."""
    parts = []
    if needs.memory:
        bound = f", at most {needs.memory.upper / 1024:.3g} GB" if needs.memory.how != STATED else ""
        parts.append(f"GPU memory {needs.memory.value / 1024:.3g} GB{bound} ({_origin(needs.memory)})")
    if needs.time:
        parts.append(f"time {needs.time.value:,.0f} s ({_origin(needs.time)})")
    return f"Expected: {'; '.join(parts)}."


def _origin(estimate: Estimate) -> str:
    if estimate.how in (STATED, RAISED):
        return estimate.how
    return f"predicted, {estimate.how}" + (f": {estimate.detail}" if estimate.detail else "")
