"""Retraining of the policy `rl` on the jobs of a pool, and the judgement of the new weights.

The training continues from the current weights, with the earlier jobs of the pool. The latest jobs, which the
new weights have not seen, are simulated on the pool's devices under the new and the current weights and under
fifo. The new ones are kept only if the mean turnaround is lower than under the current ones, and the makespan
not much longer than under fifo.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from gpu_flows.analytics.recorded_cluster import load_nodes
from gpu_flows.analytics.recorded_trace import load as load_recorded
from gpu_flows.common.files import write_atomically
from gpu_flows.schedulers.learning.curve import LearningPoint
from gpu_flows.schedulers.learning.network import Network
from gpu_flows.schedulers.learning.weights import Weights, WeightsError, load, pretrained
from gpu_flows.schedulers.model import Node
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.simulation.simulator import simulate
from gpu_flows.schedulers.simulation.summary import summarize
from gpu_flows.schedulers.traces import TraceError
from gpu_flows.schedulers.workload import Arrival

LEAST_JOBS = 200
JUDGED = 0.2  # the part of the jobs, the latest, that judges
LONGEST_MAKESPAN = 1.1  # of fifo's

NEW, CURRENT, FIFO = "new weights", "current weights", "fifo"


class Train(Protocol):
    """What is used of `gpu_flows.learning.training.train`."""

    def __call__(
        self,
        *,
        output: Path,
        traces: Sequence[Path],
        seeds: Sequence[int],
        minutes: float | None,
        steps: int | None,
        processes: int,
        start: Network | None,
        command: str,
        progress: Callable[[int, LearningPoint], None] | None,
    ) -> Any: ...


@dataclass(frozen=True)
class Judgement:
    """How the judging jobs fared."""

    turnaround_s: float  # mean
    makespan_s: float
    error: str = ""  # why the policy failed


@dataclass(frozen=True)
class Retrained:
    """The outcome of a retraining."""

    reason: str
    """Why the weights were replaced, or why not."""
    weights: Path | None = None
    """The file of the new weights; None if they were not kept."""
    learned: int = 0
    judged: int = 0
    judgements: dict[str, Judgement] = field(default_factory=dict)


@dataclass(frozen=True)
class History:
    """The recorded jobs of a pool and its nodes."""

    arrivals: list[Arrival]
    nodes: list[Node]

    @classmethod
    def read(cls, database: Path, pool: str) -> History:
        """Read the warehouse. What it does not hold yet is empty. Raises QueryError if it cannot be read."""
        nodes = load_nodes(database, pool)
        try:
            return cls(load_recorded(database, pool).arrivals, nodes)
        except TraceError:  # no job has ended
            return cls([], nodes)


def retrain(
    history: History,
    output: Path,
    options: Mapping[str, Any] = {},
    *,
    train: Train,
    seeds: Sequence[int] = (0,),
    minutes: float | None = None,
    steps: int | None = None,
    processes: int = 1,
    progress: Callable[[int, LearningPoint], None] | None = None,
) -> Retrained:
    """Train on the earlier jobs, judge on the latest ones, and leave the new weights at `output` if they are
    better. `options` are those of the policy in the pool; without `weights` among them, the current weights
    are those of the package."""
    current = str(options.get("weights", ""))
    count = len(history.arrivals)
    if count < LEAST_JOBS:
        return Retrained(f"not trained: {count} jobs have ended in this pool, and {LEAST_JOBS} are needed")
    first = round((1 - JUDGED) * count)
    learned, judged = history.arrivals[:first], history.arrivals[first:]
    with TemporaryDirectory() as folder:
        trace, candidate = Path(folder) / "recorded.csv", Path(folder) / "weights.npz"
        write_trace(trace, learned)
        train(
            output=candidate,
            traces=[trace],
            seeds=seeds,
            minutes=minutes,
            steps=steps,
            processes=processes,
            start=read_weights(current).network,
            command=f"rl-retrain on {len(learned)} recorded jobs",
            progress=progress,
        )
        judgements = {
            NEW: judge("rl", {**options, "weights": str(candidate)}, judged, history.nodes),
            CURRENT: judge("rl", options, judged, history.nodes),
            FIFO: judge("fifo", {}, judged, history.nodes),
        }
        is_trained = load(candidate).header.steps > 0  # not the weights that it began with
        refused = find_objection(judgements) if is_trained else "the training found nothing better"
        if not refused:
            output.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(output, candidate.read_bytes())
    figures = (first, count - first, judgements)
    if refused:
        return Retrained(f"not replaced: {refused}", None, *figures)
    return Retrained("replaced: the mean turnaround is lower", output, *figures)


def read_weights(path: str) -> Weights:
    """Return the weights of a file, or those of the package if there is none that can be used."""
    try:
        return load(Path(path)) if path else pretrained()
    except WeightsError:
        return pretrained()


def judge(
    policy: str, options: Mapping[str, Any], arrivals: Sequence[Arrival], nodes: Sequence[Node]
) -> Judgement:
    found = summarize(simulate(arrivals, nodes, make_policy(policy, options)))
    return Judgement(found.avg_turnaround_s, found.makespan_s, found.policy_error)


def find_objection(judgements: dict[str, Judgement]) -> str:
    """Return why the new weights must not replace the current ones; empty if they may."""
    new, current, fifo = (judgements[name] for name in (NEW, CURRENT, FIFO))
    if new.error:
        return f"the policy failed with them: {new.error}"
    if not new.turnaround_s < current.turnaround_s:
        return f"the mean turnaround is {new.turnaround_s:,.1f} s, and {current.turnaround_s:,.1f} s before"
    if not new.makespan_s <= LONGEST_MAKESPAN * fifo.makespan_s:
        return f"the makespan is {new.makespan_s:,.0f} s, and {fifo.makespan_s:,.0f} s under fifo"
    return ""


def write_trace(path: Path, arrivals: Sequence[Arrival]) -> None:
    """Write jobs as a trace of the native format."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("job_id", "submit_time", "num_gpus", "duration", "model", "user"))
        for arrival in arrivals:
            job = arrival.job
            writer.writerow((job.id, job.submitted, job.gpus, arrival.duration_s, job.kind, job.user))
