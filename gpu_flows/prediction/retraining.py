"""Retrains the predictors on the warehouse, and replaces the current ones only by better ones.

There are three parts: memory from declared features, memory from recorded peaks, and time. Each part is
judged by itself, on the last ended jobs, which neither it nor its predecessor has learned:

1. The candidate learns all jobs before those.
2. Candidate and predecessor predict them. The candidate wins if its error is not larger and its upper bound
   holds as often as it promises.
3. A winner then learns the judged jobs too, and becomes current in a new version.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from gpu_flows.prediction.declared import DeclaredFeatures, find_features
from gpu_flows.prediction.memory_fitting import MeasuredJob, fit
from gpu_flows.prediction.memory_profile import default_jobs, default_model
from gpu_flows.prediction.predictor_store import Predictors, PredictorStore
from gpu_flows.prediction.warehouse_rows import EndedJob, read_ended_jobs
from gpu_flows.schedulers.prediction.durations import DurationPredictor
from gpu_flows.schedulers.prediction.estimate import Estimate
from gpu_flows.schedulers.prediction.memory_features import MemoryModel
from gpu_flows.schedulers.prediction.memory_history import MemoryHistory

JUDGED_SHARE = 0.2  # of all jobs
FEWEST_JUDGED = 10
# How often a bound may be exceeded: as Estimate and DurationPredictor promise.
MEMORY_BROKEN, TIME_BROKEN = 0.02, 0.10
# Memory has no tolerance. Durations are kept in bins, so that a bound may be low by half of one.
MEMORY_TOLERANCE, TIME_TOLERANCE = 0.0, 0.05

Jobs = Sequence[EndedJob]
Say = Callable[[str], None]


class Judgement(NamedTuple):
    """How well a predictor did on jobs that it had not learned."""

    jobs: int
    answered: int
    median_error: float | None  # relative
    broken: int  # upper bounds that were exceeded
    score: float  # the mean logarithm of the ratio to the truth, at most 1; 1 where it does not answer

    @classmethod
    def of(cls, pairs: Sequence[tuple[Estimate | None, float]], tolerance: float) -> Judgement:
        """Judge pairs of an estimate and the truth. A bound that is exceeded by the tolerance still holds."""
        answered = [(estimate, truth) for estimate, truth in pairs if estimate]
        errors = [abs(estimate.value / truth - 1) for estimate, truth in answered]
        scores = [_score(estimate, truth) for estimate, truth in pairs]
        return cls(
            len(pairs),
            len(answered),
            median(errors) if errors else None,
            sum(truth > estimate.upper * (1 + tolerance) for estimate, truth in answered),
            fmean(scores) if scores else 1.0,
        )


def _score(estimate: Estimate | None, truth: float) -> float:
    if estimate is None or estimate.value <= 0:
        return 1.0
    return min(1.0, abs(math.log(estimate.value / truth)))


@dataclass(frozen=True, slots=True)
class Part:
    """A kind of predictor: which jobs it learns, how it learns them, and how it predicts one."""

    field: str  # of Predictors
    title: str
    broken_at_most: float
    tolerance: float
    suits: Callable[[EndedJob], bool]
    learn: Callable[[Jobs], Any]
    predict: Callable[[Any, EndedJob], Estimate | None]
    truth: Callable[[EndedJob], float]
    initial: Callable[[], Any] = lambda: None  # what predicts before anything was learned


class Verdict(NamedTuple):
    """What became of a part."""

    part: str
    replaced: bool
    reason: str
    new: Judgement | None = None
    old: Judgement | None = None


class Retrained(NamedTuple):
    """The outcome of a retraining. `predictors` is None if the current ones stay."""

    predictors: Predictors | None
    verdicts: list[Verdict]


def retrain_and_store(
    database: Path, store: PredictorStore, now: float, *, fresh: bool = False, say: Say = print
) -> Retrained:
    """Retrain on the warehouse and store what is better. Raises QueryError, or StoreError where the current
    predictors cannot be read; `fresh` ignores them."""
    current = None if fresh else store.load_current()
    done = retrain(read_ended_jobs(database), current, store.new_version(now), now, say)
    if done.predictors:
        store.save(done.predictors)
    return done


def retrain(jobs: Jobs, current: Predictors | None, version: str, now: float, say: Say = print) -> Retrained:
    """Retrain every part on ended jobs, in the order of their ends. Nothing is stored."""
    base = current or Predictors()
    changes: dict[str, Any] = {}
    verdicts = []
    for part in PARTS:
        suited = [job for job in jobs if part.suits(job)]
        say(f"{part.title}: {len(suited)} jobs")
        learned, until = getattr(base, part.field), base.learned_until.get(part.field, 0.0)
        try:
            verdict = _judge(part, suited, learned or part.initial(), until)
            if verdict.replaced:
                changes[part.field] = part.learn(suited)
        except ModuleNotFoundError as error:  # scikit-learn, which the other parts do without
            verdict = Verdict(part.field, False, f"not replaced: {error}; pip install 'gpu-flows[predict]'")
        say(f"{part.title}: {verdict.reason}")
        verdicts.append(verdict)
    if not changes:
        return Retrained(None, verdicts)
    predictors = replace(
        base,
        version=version,
        created=now,
        learned_from=jobs[0].ended,
        learned_until={**base.learned_until, **dict.fromkeys(changes, jobs[-1].ended)},
        figures={verdict.part: describe_verdict(verdict) for verdict in verdicts},
        **changes,
    )
    return Retrained(predictors, verdicts)


def _judge(part: Part, jobs: Jobs, predecessor: Any, learned_until: float) -> Verdict:
    """Decide whether a predictor that learned these jobs replaces its predecessor."""
    new_jobs = sum(job.ended > learned_until for job in jobs)
    judged = min(round(JUDGED_SHARE * len(jobs)), new_jobs // 2)
    if judged < FEWEST_JUDGED:
        fewest = max(round(FEWEST_JUDGED / JUDGED_SHARE), 2 * FEWEST_JUDGED)
        reason = f"too little history: {len(jobs)} jobs, {new_jobs} of them new"
        needs = f"it takes {fewest}, {2 * FEWEST_JUDGED} of them new"
        return Verdict(part.field, False, f"{reason}; {needs}")
    earlier, later = jobs[:-judged], jobs[-judged:]
    new = _judge_predictor(part, part.learn(earlier), later)
    old = _judge_predictor(part, predecessor, later) if predecessor else None
    if new.broken > _most_broken(part.broken_at_most, new.jobs):
        reason = f"not replaced: {new.broken} of {new.jobs} upper bounds were exceeded"
        return Verdict(part.field, False, reason, new, old)
    if old and new.score > old.score + 1e-9:
        reason = f"not replaced: a mean error of {new.score:.1%} against {old.score:.1%} of the current one"
        return Verdict(part.field, False, reason, new, old)
    than = f", {old.score:.1%} before" if old else ""
    return Verdict(part.field, True, f"replaced: a mean error of {new.score:.1%}{than}", new, old)


def _most_broken(share: float, jobs: int) -> int:
    """How many bounds of so many may be exceeded by chance where a share is promised: two standard deviations
    above the mean."""
    return math.floor(share * jobs + 2 * math.sqrt(share * (1 - share) * jobs))


def _judge_predictor(part: Part, predictor: Any, jobs: Jobs) -> Judgement:
    complete = [job for job in jobs if job.is_complete]  # what the others needed is not known
    pairs = [(part.predict(predictor, job), part.truth(job)) for job in complete]
    return Judgement.of(pairs, part.tolerance)


def describe_verdict(verdict: Verdict) -> dict[str, Any]:
    """The verdict as a JSON object."""
    return {
        "replaced": verdict.replaced,
        "reason": verdict.reason,
        "new": verdict.new._asdict() if verdict.new else None,
        "old": verdict.old._asdict() if verdict.old else None,
    }


# -- the parts --------------------------------------------------------------------------------


def _peak(job: EndedJob) -> float:
    return job.peak_mib or 0.0


def _learn_features(jobs: Jobs) -> MemoryModel:
    measured = [
        MeasuredJob(features, features.family or job.features.flow, _peak(job))
        for job in jobs
        if (features := find_features(job.features.parameters, job.gpu_model))
    ]
    source = f"fitted on {len(measured)} jobs of this warehouse and SchedTune's profile"
    return fit([*default_jobs(), *measured], source)


def _learn_history(jobs: Jobs) -> MemoryHistory:
    history = MemoryHistory()
    for job in jobs:
        history.learn(job.features, job.gpu_model, _peak(job), not job.is_complete, job.device_mib)
    return history


def _learn_durations(jobs: Jobs) -> DurationPredictor:
    durations = DurationPredictor()
    for job in jobs:
        durations.learn(job.features, job.gpu_model, job.gpus, job.seconds)
    return durations


def _has_features(job: EndedJob) -> bool:
    if not (job.is_complete and job.peak_mib):
        return False
    features = find_features(job.features.parameters, job.gpu_model)
    return features is not None and features.gpu is not None


PARTS = (
    Part(
        "memory_features",
        "memory from declared features",
        MEMORY_BROKEN,
        MEMORY_TOLERANCE,
        _has_features,
        _learn_features,
        lambda model, job: DeclaredFeatures(model).estimate(job.features, job.gpu_model),
        _peak,
        default_model,
    ),
    Part(
        "memory_history",
        "memory from recorded peaks",
        MEMORY_BROKEN,
        MEMORY_TOLERANCE,
        lambda job: _peak(job) > 0,
        _learn_history,
        lambda predictor, job: predictor.estimate(job.features, job.gpu_model),
        _peak,
    ),
    Part(
        "durations",
        "time",
        TIME_BROKEN,
        TIME_TOLERANCE,
        lambda job: job.is_complete and job.seconds > 0,
        _learn_durations,
        lambda predictor, job: predictor.estimate(job.features, job.gpu_model, job.gpus),
        lambda job: job.seconds,
    ),
)
