"""How long the worker's own work on a long queue keeps its event loop busy.

    python benchmarks/queue_costs.py [--waiting 20000] [--runs 30]

Measures, with that many waiting jobs on a full cluster: the admission after a job ended (with and without
limits), counting the queue after a change, one round of looking for waiting notes, one round of the waiting
log, the reasons in one status, and the prediction of one job's memory and time. While a worker does one of
these, it can do nothing else. Goal: median under 5 ms each, except for the status, and under 1 ms for the
prediction. Exit code 1 if it is missed.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID, uuid4

from common import SPREAD_HEADING, Goal, Spread, make_parser, positive_int, report, run_benchmark
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import WorkPool, WorkQueue

from gpu_flows.prediction.declared import DeclaredFeatures
from gpu_flows.prediction.live import LivePrediction
from gpu_flows.prefect_api.admission import Admission
from gpu_flows.prefect_api.dependencies import Dependencies
from gpu_flows.prefect_api.job_builder import DueJob
from gpu_flows.prefect_api.waiting_log import WaitingLog
from gpu_flows.prefect_api.waiting_notes import MOST_LOOKED_AT, WaitingNotes
from gpu_flows.prefect_api.worker_log import WorkerLog
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.prediction.durations import DurationPredictor
from gpu_flows.schedulers.prediction.estimate import JobFeatures
from gpu_flows.schedulers.prediction.memory_history import MemoryHistory
from gpu_flows.worker.status_builder import MOST_LISTED

GOAL_MS = 5.0
DEVICES = 8
STATUS = f"reasons for the status ({MOST_LISTED:,} places)"  # once a second, without a goal
NO_CLIENT = cast(PrefectClient, None)


@dataclass
class Queue:
    """A full cluster with a long queue."""

    engine: Engine
    admission: Admission
    executing: set[str]
    active: bool = True

    @classmethod
    def of(cls, waiting: int, **settings: Any) -> Queue:
        pool = WorkPool(name="gpu", type="gpu", **settings)
        admission = Admission(pool, set(), Dependencies(NO_CLIENT))
        admission.set_work_queues([WorkQueue(name="default", work_pool_id=uuid4(), priority=1)])
        engine = Engine(declare(f"1x{DEVICES}"), make_policy("priority"), can_preempt=True)
        queue = cls(engine, admission, set())
        for number in range(waiting + DEVICES):
            gpus = 1 if number < DEVICES else 1 + number % 4
            job = Job(str(UUID(int=number)), float(number), gpus, priority=number % 3, name=f"job-{number}")
            admission.put(DueJob(job, "default"))
        queue.admit()
        queue.plan()
        return queue

    def plan(self) -> None:
        self.engine.tick(1e6)
        self.executing = set(self.engine.running)

    def admit(self) -> None:
        changes = self.admission.update(self.executing)
        for job_id in changes.withdraw:
            self.engine.withdraw(job_id)
        for job in changes.admit:
            self.engine.submit(job)

    def end_one(self) -> None:
        """Start what fits, and then end one job."""
        self.plan()
        ended = next(iter(self.engine.running))
        self.engine.ended(ended)
        self.executing.discard(ended)
        self.admission.discard(ended)

    def reasons(self, limit: int) -> Any:
        yield from self.engine.reasons(limit, 1e6)

    def waits(self, job_id: str) -> bool:
        return True


def measure(runs: int, prepare: Callable[[], object], work: Callable[[], object]) -> Spread:
    """Milliseconds of processor time that the work took, each time after some preparation."""
    took = []
    for _ in range(runs):
        prepare()
        began = time.thread_time()
        work()
        took.append((time.thread_time() - began) * 1e3)
    return Spread.of(took)


def end_and_plan(queue: Queue) -> Callable[[], None]:
    """Return a step after which everything that is kept about the queue is outdated."""

    def step() -> None:
        queue.end_one()
        queue.admit()
        queue.plan()

    return step


PREDICTION, PREDICTION_GOAL_MS = "the prediction of a job", 1.0
LEARNED = 5000  # jobs that the predictors know


def predict_jobs() -> Callable[[], object]:
    """Return a step that predicts the needs of a new job, of a flow that predictors know many jobs of."""
    history, durations, numbers = MemoryHistory(), DurationPredictor(), itertools.count()

    def make_features(number: int) -> JobFeatures:
        parameters = {
            "model": f"net-{number % 20}",
            "batch_size": 2 ** (number % 8),
            "epochs": number % 50 + 1,
        }
        return JobFeatures("train", "nightly", f"user-{number % 30}", 1, parameters)

    for number in range(LEARNED):
        history.learn(make_features(number), "T4", 1000.0 + number, is_least=False, device_mb=16_384)
        durations.learn(make_features(number), "T4", 1, 60.0 + number)
    prediction = LivePrediction(
        Cluster(declare("4x8:T4:16+4x8:A100:40")),
        lambda *facts: None,
        lambda job_id, text: None,
        lambda job_ids: None,
        history=history,
        durations=durations,
        features=DeclaredFeatures(),
    )

    def predict() -> object:
        number = next(numbers)
        return prediction.complete(Job(f"job-{number}"), make_features(number), "", {})

    return predict


def main() -> int:
    parser = make_parser(__doc__ or "", 30, "measurements of each")
    parser.add_argument("--waiting", type=positive_int, default=20_000, metavar="N", help="waiting jobs")
    asked = parser.parse_args()
    free, limited = Queue.of(asked.waiting), Queue.of(asked.waiting, concurrency_limit=100)
    notes, log = WaitingNotes(free, cast(Any, None)), WaitingLog(free, WorkerLog(NO_CLIENT))
    change = end_and_plan(free)
    measured = {
        "admission after an end": measure(asked.runs, free.end_one, free.admit),
        "admission after an end, with a limit": measure(asked.runs, limited.end_one, limited.admit),
        "counting the queue": measure(asked.runs, change, lambda: free.engine.waiting_count),
        f"looking for notes ({MOST_LOOKED_AT:,} places)": measure(asked.runs, change, notes._find_due),
        f"the waiting log ({MOST_LOOKED_AT:,} places)": measure(asked.runs, change, log.write_round),
        PREDICTION: measure(max(asked.runs, 200), lambda: None, predict_jobs()),
        STATUS: measure(asked.runs, change, lambda: list(free.reasons(MOST_LISTED))),
    }
    print(f"{asked.waiting:,} waiting jobs; milliseconds of the event loop")
    print(f"{'':<44}{SPREAD_HEADING}")
    for name, spread in measured.items():
        print(f"{name:<44}{spread.text()}")
    limits = {PREDICTION: PREDICTION_GOAL_MS}
    goals = [
        Goal(name, spread.median, limits.get(name, GOAL_MS), " ms")
        for name, spread in measured.items()
        if name != STATUS
    ]
    return report(goals, {"waiting": asked.waiting}, asked.json)


if __name__ == "__main__":
    run_benchmark(main)
