"""Trains the network of the policy `rl` by masked PPO, and writes its weights.

Every seed trains a network of its own. From time to time the network decides without chance, as policy `rl`,
on workloads that are kept for this; the best one over all seeds and checkpoints is the result. The network
before training is among the candidates, so training makes nothing worse on those workloads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gymnasium import Env
from sb3_contrib import MaskablePPO
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from gpu_flows.learning.curriculum import CLUSTERS, WORKLOADS, Curriculum
from gpu_flows.learning.judging import Judge
from gpu_flows.learning.recording import Recording
from gpu_flows.learning.scoring_policy import ScoringPolicy
from gpu_flows.schedulers.learning.curve import LearningPoint
from gpu_flows.schedulers.learning.network import Network, make_network
from gpu_flows.schedulers.learning.weights import Header, Weights, save
from gpu_flows.schedulers.simulation.environment import SchedulingEnv

PLACEMENTS = ("pack", "spread")
ENVIRONMENTS = 8  # at once
STEPS_EACH = 512  # decisions of each environment in an update
JUDGED_EVERY = 12  # updates
STEPS = 400_000  # of each seed, if neither steps nor minutes are given

Progress = Callable[[int, LearningPoint], None]


@dataclass(frozen=True)
class Trained:
    """The outcome of a training."""

    weights: Weights
    """Those of the best seed and checkpoint."""
    ratio: float
    """Their turnaround on the workloads kept for the choice, as a part of the baseline's."""
    ratio_before: float
    """That of the network before training."""
    curves: dict[int, list[LearningPoint]]
    """By seed."""
    seconds: float


def train(
    *,
    output: Path,
    workloads: Sequence[str] = WORKLOADS,
    clusters: Sequence[str] = CLUSTERS,
    traces: Sequence[Path] = (),
    seeds: Sequence[int] = (0,),
    minutes: float | None = None,
    steps: int | None = None,
    processes: int = 1,
    reward: str = "turnaround",
    start: Network | None = None,
    command: str = "",
    progress: Progress | None = None,
) -> Trained:
    """Train one network for each seed, keep the best, and write it to `output`.

    `workloads` are specs of the generators, of which jobs and load are drawn anew for each episode; windows
    of the `traces` are half of the episodes if there are any. `minutes` or `steps` limit each seed; with
    `steps`, the same seed always gives the same weights. `start` is a network to train further. `progress`
    is called with the seed and a point of its learning curve after each update. Checkpoints are written
    beside `output`. With several `processes`, each environment has its own.
    """
    began = time.monotonic()
    torch.set_num_threads(1)  # more would not help so small a network, and take cores from the environments
    curriculum = Curriculum(tuple(workloads), tuple(clusters), tuple(traces))
    judge = Judge(replace(curriculum))
    best: Candidate | None = None
    curves: dict[int, list[LearningPoint]] = {}
    ratio_before = 0.0
    for seed in seeds:
        trainee = Trainee(seed, curriculum, judge, output, reward, processes, start, command, progress)
        found = trainee.train(steps if steps or minutes else STEPS, minutes)
        curves[seed] = trainee.recording.points
        ratio_before = trainee.ratio_before
        if best is None or found.ratio < best.ratio:
            best = found
    if best is None:
        raise ValueError("There is no seed to train with.")
    save(best.weights, output)
    return Trained(best.weights, best.ratio, ratio_before, curves, time.monotonic() - began)


@dataclass(frozen=True)
class Candidate:
    """Weights, and their turnaround on the workloads kept for the choice, as a part of the baseline's."""

    weights: Weights
    ratio: float


@dataclass
class Trainee:
    """The training of one seed."""

    seed: int
    curriculum: Curriculum
    judge: Judge
    output: Path
    reward: str
    processes: int
    start: Network | None
    command: str
    progress: Progress | None
    recording: Recording = field(default_factory=Recording)
    ratio_before: float = 0.0
    best: Candidate | None = None

    def train(self, steps: int | None, minutes: float | None) -> Candidate:
        """Train until the steps are done or the time is over, and return the best candidate."""
        ends = time.monotonic() + 60 * minutes if minutes else float("inf")
        per_update = ENVIRONMENTS * STEPS_EACH
        environments = self._make_environments()
        model = self._make_model(environments)
        update = 0
        try:
            self.judge_network(model, 0)
            self.ratio_before = self.best.ratio if self.best else 0.0
            self.recording.begin(model)
            while time.monotonic() < ends and (steps is None or update * per_update < steps):
                rate = 1 - update * per_update / steps if steps else 1 - _part_over(ends, minutes)
                model.lr_schedule = partial(_learning_rate, max(0.1, rate))
                model.learn(per_update, callback=self.recording, reset_num_timesteps=update == 0)
                update += 1
                point = self.recording.add_point(model)
                if self.progress:
                    self.progress(self.seed, point)
                if update % JUDGED_EVERY == 0:
                    self.judge_network(model, update * per_update)
            self.judge_network(model, update * per_update)
        finally:
            environments.close()
        assert self.best is not None
        # Before the first update no feature had been seen, so the first candidate did not know its ranges.
        low, high = self.recording.ranges()
        weights = self.best.weights
        header = replace(weights.header, low=low, high=high)
        return replace(self.best, weights=replace(weights, header=header))

    def judge_network(self, model: MaskablePPO, steps: int) -> None:
        """Write a checkpoint, and keep it if it is the best so far."""
        low, high = self.recording.ranges()
        header = Header(self.command, self.seed, steps, self.reward, PLACEMENTS, low, high)
        policy: Any = model.policy
        weights = Weights(header, policy.scorer.export())
        checkpoint = self.output.with_suffix(f".seed{self.seed}.npz")
        ratio = self.judge.ratio(weights, checkpoint)
        if self.best is None or ratio < self.best.ratio:
            self.best = Candidate(weights, ratio)
            save(weights, checkpoint)
        self.recording.judged = ratio

    def _make_model(self, environments: VecEnv) -> MaskablePPO:
        return MaskablePPO(
            ScoringPolicy,
            environments,
            learning_rate=LEARNING_RATE,
            n_steps=STEPS_EACH,
            batch_size=512,
            n_epochs=6,
            gamma=1.0,
            gae_lambda=0.97,
            clip_range=0.15,
            ent_coef=0.0,
            vf_coef=0.5,
            target_kl=0.03,
            max_grad_norm=0.5,
            seed=self.seed,
            policy_kwargs={
                "placements": len(PLACEMENTS),
                "network": self.start or make_network(len(PLACEMENTS), self.seed),
            },
            device="cpu",
        )

    def _make_environments(self) -> VecEnv:
        makers: list[Callable[[], Env[Any, Any]]] = [
            partial(_make_environment, self.curriculum, self.reward, 1_000 * self.seed + number)
            for number in range(ENVIRONMENTS)
        ]
        if self.processes <= 1:
            return DummyVecEnv(makers)
        return SubprocVecEnv(makers, start_method="forkserver")


LEARNING_RATE = 1e-3


def _learning_rate(part: float, _: float) -> float:
    return LEARNING_RATE * part


def _part_over(ends: float, minutes: float | None) -> float:
    return 1 - max(0.0, ends - time.monotonic()) / (60 * minutes) if minutes else 0.0


def _make_environment(curriculum: Curriculum, reward: str, seed: int) -> SchedulingEnv:
    return SchedulingEnv(replace(curriculum), reward=reward, placements=PLACEMENTS, seed=seed)
