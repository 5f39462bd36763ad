"""Rl: jobs are served by a score that a network learned in the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from gpu_flows.schedulers.learning.features import LEASE_S, Floats, JobTable, View
from gpu_flows.schedulers.learning.weights import Weights, WeightsError, load, pretrained
from gpu_flows.schedulers.model import Device, Job, Progress, Running
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policy import Policy, State, is_built_in, make_policy
from gpu_flows.schedulers.policy_support.making_room import make_room
from gpu_flows.schedulers.policy_support.starting import (
    find_again_or_place,
    run_by_rank_on,
    start_in_order_on,
)
from gpu_flows.schedulers.running_order import RunningRank

NOTABLE = 0.01  # a smaller change of a score leaves the job where it is
LEASED = 1e6  # what a job has ahead of all others until its lease is over


def _check_fallback(name: str) -> str:
    if name == "rl":
        raise ValueError("the policy that decides in the place of rl must be another one, such as tiresias")
    if not is_built_in(name):  # that of another package must not plan in the worker's process
        raise ValueError("it must be a policy of gpu-flows, such as tiresias")
    return name


class RlOptions(PlacementOptions):
    weights: str = Field(default="", title="Weights")
    """A file that gpu-flows rl train wrote, on the worker's machine; empty for those of the package."""

    learned_placement: bool = Field(default=True, title="Learned placement")
    """Let the network choose between the placements that it was trained with, in place of the one above."""

    lease_s: float = Field(default=LEASE_S, ge=0, title="Lease (seconds)")
    """How long a job keeps its devices before a job with a better score may have them."""

    fallback: Annotated[str, AfterValidator(_check_fallback)] = Field(default="tiresias", title="Fallback")
    """The policy that decides where the network was not trained, or while its weights cannot be used."""


class Rl(Policy[RlOptions]):
    """The job with the best learned score runs first; jobs with a worse one are preempted for it.

    A small network scores each job by the service it has had, its devices, its wait, the state of the
    cluster, and what ended jobs of its user, kind and size tell about how long it may still take. It was
    trained in the simulator by masked PPO for mean turnaround (docs/rl.md). Nothing must be known about a
    job. The idea of a network that ranks a queue is that of RLScheduler (Zhang et al., SC 2020) and RLTune.

    Work conserving. A job with a bad score may starve while better ones keep arriving. Where the cluster
    or its jobs are unlike all that the network was trained on, the fallback policy decides.
    """

    name = "rl"
    preempts = True
    moves_running = True  # it learns from each job that ends
    running_first = True
    optimizes = "mean turnaround, without knowing durations"
    promises = ("work conserving",)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._table = JobTable()
        self._scores: dict[str, float] = {}  # by job id, as in the last plan
        self._places: dict[str, int] = {}  # by job id, the number of the placement that it prefers
        self._fallback = make_policy(self.options.fallback)
        self._uses_fallback = False
        self._weights: Weights | None = None
        self._unusable = ""
        self._now = 0.0
        try:
            self._weights = load(Path(self.options.weights)) if self.options.weights else pretrained()
        except WeightsError as error:
            self._unusable = str(error)
            self.remark = self._describe(self._unusable)
        self._margin = float(self._weights.network.margin[0]) if self._weights else 0.0
        self._leased: list[str] = []  # jobs whose leases were not over in the last plan
        placements = self._weights.header.placements if self._weights else ()
        self._choices = [self.options.model_copy(update={"placement": name}) for name in placements]
        if not self.options.learned_placement:
            self._choices = [self.options] * len(placements)

    # -- the order: the best score first ------------------------------------------------------

    def rank(self, job: Job, progress: Progress) -> Any:
        if self._uses_fallback:
            return self._fallback.rank(job, progress)
        return -self._scores.get(job.id, 0.0)  # the next plan scores a new job

    def running_rank(self, running: Running) -> RunningRank | None:
        if self._uses_fallback:
            return self._fallback.running_rank(running)
        if not running.devices or self._weights is None:
            return None
        ahead = self._margin if running.since + self.options.lease_s <= self._now else LEASED
        return RunningRank(-self._scores.get(running.job.id, 0.0) - ahead)

    def plan(self, state: State) -> None:
        table, self._now = self._table, state.now
        if self._weights is None:
            self._decide_who(state, self._unusable)
            return self._fallback.plan(state)
        table.learn_from_ended(state)
        view = table.view(state)
        self._decide_who(state, self._find_trouble(self._weights, view.rows))
        if self._uses_fallback:
            self._fallback.plan(state)
        elif view.waiting:
            self._score(state, view)
            self._run(state)
            lease_s = self.options.lease_s
            self._leased = [id for id, each in state.running.items() if each.since + lease_s > state.now]
            if len(state.queue):
                state.draft.wake_at(table.next_review(state, lease_s))
        table.remember_running(state)

    def _score(self, state: State, view: View) -> None:
        """Score all jobs, and rank those again whose score has changed."""
        assert self._weights is not None
        outputs = self._weights.network.evaluate(view.rows)
        ids = [job.id for job in view.waiting] + [each.job.id for each in view.running]
        self._places = dict(zip(ids, outputs[:, 1:].argmax(axis=1).tolist(), strict=True))
        before, rerank = self._scores, state.draft.rerank
        self._scores = dict(zip(ids, outputs[:, 0].tolist(), strict=True))
        for job_id, score in self._scores.items():
            known = before.get(job_id)
            if known is not None and abs(known - score) < NOTABLE:
                self._scores[job_id] = known
            else:
                rerank(job_id)
        for job_id in self._leased:
            if job_id in state.running:
                rerank(job_id)

    def _run(self, state: State) -> None:
        """Start jobs in order, and preempt running ones with a worse score for them."""

        def find_devices(job: Job) -> tuple[Device, ...]:
            return find_again_or_place(state, self._options_for(job), job)

        if state.can_preempt:
            run_by_rank_on(
                state,
                find_devices,
                lambda job: make_room(state, self._options_for(job), job),
                self.options,
            )
        else:
            start_in_order_on(state, find_devices, self.options)

    def _options_for(self, job: Job) -> RlOptions:
        return self._choices[self._places.get(job.id, 0)]

    # -- where the network does not decide ----------------------------------------------------

    def _find_trouble(self, weights: Weights, rows: Floats) -> str:
        """Return why the network must not decide now; empty if it may."""
        strange = weights.find_strange(rows)
        return f"the network was trained on other values of {strange!r} than now" if strange else ""

    def _decide_who(self, state: State, trouble: str) -> None:
        """Let the network or the fallback policy decide from now on."""
        self.remark = self._describe(trouble)
        if bool(trouble) != self._uses_fallback:
            self._uses_fallback = bool(trouble)
            self._scores.clear()
            state.draft.rerank_all()

    def _describe(self, trouble: str) -> str:
        return f"{self._fallback.name} decides in its place: {trouble.rstrip('.')}." if trouble else ""

    def why_waiting(self, job: Job) -> str:
        return self._fallback.why_waiting(job) if self._uses_fallback else ""
