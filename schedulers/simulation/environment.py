"""A Gymnasium environment in which a policy is learned: the simulator, which asks for each decision.

    simulator: next event --> features of all jobs --> decision --> plan of the engine --> ...

`learning.decisions` describes the decisions. The features stay as they are until the next event, as in the
policy `rl`, which scores all jobs once for each plan. Only decisions that are possible are unmasked; no job
waits while it fits on idle devices, so whatever is learned uses the devices. Any other decision counts as
the first one that is possible.

The observation has a part that no policy can know, `outlook`: how much work is to come. Only the estimate of
an episode's value may use it, in training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, SupportsInt

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from gpu_flows.schedulers.learning.decisions import Decisions, Start, Stop
from gpu_flows.schedulers.learning.features import LIMIT, NAMES, Floats
from gpu_flows.schedulers.policy import make_policy
from gpu_flows.schedulers.simulation.decided_policy import DecidedPolicy
from gpu_flows.schedulers.simulation.episode import Episode
from gpu_flows.schedulers.simulation.rewards import Baseline, RewardMeter, parse_reward
from gpu_flows.schedulers.simulation.simulator import Run
from gpu_flows.schedulers.simulation.summary import turnarounds_s

Observation = dict[str, Floats]
NODES = 16  # that an observation shows
OF_NODE = 3  # idle devices, devices, and whether there is such a node
OF_OUTLOOK = 6  # see `_foresee`


class SchedulingEnv(gym.Env[Any, Any]):
    """Episodes are drawn by `episodes`; `waiting` and `running` are the sizes of the windows."""

    metadata = {"render_modes": []}

    def __init__(
        self,
        episodes: Callable[[Random], Episode],
        *,
        reward: str = "turnaround",
        placements: Sequence[str] = ("pack", "spread"),
        waiting: int = 32,
        running: int = 32,
        baseline: str = "tiresias",
        seed: int = 0,
    ) -> None:
        self.decisions = Decisions(waiting, running, len(placements))
        self._episodes, self._placements, self._baseline = episodes, tuple(placements), baseline
        self._reward = parse_reward(reward)
        self._random = Random(seed)
        shapes = {
            "waiting": (waiting, len(NAMES)),
            "running": (running, len(NAMES)),
            "nodes": (NODES, OF_NODE),
            "shown": (waiting + running,),
            "target": (waiting,),
            "outlook": (OF_OUTLOOK,),
        }
        self.observation_space = spaces.Dict(
            {name: spaces.Box(-LIMIT, LIMIT, shape, np.float32) for name, shape in shapes.items()}
        )
        self.action_space = spaces.Discrete(self.decisions.total)
        self._shapes = shapes
        self._mask = np.zeros(self.decisions.total, bool)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._random = Random(seed)
        while True:
            self._begin(self._episodes(self._random))
            if self._advance():
                return self._observe(), {}

    def step(self, action: SupportsInt) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        number = int(action)
        if not self._mask[number]:
            number = int(self._mask.argmax())
        self._cost = 0.0
        goes_on = self._decide(self.decisions.decode(number)) or self._advance()
        info = {} if goes_on else self._summarize()
        return self._observe(), -self._cost, not goes_on, False, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Return which decisions are possible."""
        return self._mask

    # -- the simulation -----------------------------------------------------------------------

    def _begin(self, episode: Episode) -> None:
        self.baseline = Baseline.of(episode.simulate(make_policy(self._baseline)))
        self._policy = DecidedPolicy(self.decisions, self._placements)
        self._run = Run(episode.arrivals, episode.nodes, self._policy, episode.conditions)
        durations = {arrival.job.id: arrival.duration_s for arrival in episode.arrivals}
        self._meter = RewardMeter(self._reward, self.baseline, durations, self._run.engine)
        self._service = {each.job.id: each.duration_s * each.job.gpus for each in episode.arrivals}
        self._all_service = max(1e-3, sum(self._service.values()))
        self._events: Iterator[float] = self._run.events()
        self._now, self._cost = 0.0, 0.0

    def _advance(self) -> bool:
        """Go on to the next moment at which there is something to decide. Return whether there is one."""
        rate = self._meter.cost_rate()
        for now in self._events:
            self._cost += rate * (now - self._now)
            self._now = now
            if self._policy.begin_moment() and self._update_mask():
                self._cost -= self._meter.credit(now)
                return True
            rate = self._meter.cost_rate()
        self._cost -= self._meter.credit(None)
        self._mask = np.zeros(self.decisions.total, bool)
        self._mask[-1] = True
        return False

    def _decide(self, decision: Start | Stop | None) -> bool:
        """Carry the decision out. Return whether there is another one to make at this moment."""
        policy = self._policy
        if decision is None and not policy.has_target:
            return False
        policy.decide(decision)
        if policy.has_moves:
            self._run.engine.plan_again()
            self._run.plan(self._now)
            error = self._run.engine.policy_error
            if error:
                raise RuntimeError(f"A decision that was not masked is not possible: {error}")
        return self._update_mask()

    def _update_mask(self) -> bool:
        """Compute which decisions are possible. Return whether there is any but to wait."""
        self._mask = self._policy.mask()
        return bool(self._mask[:-1].any())

    def _summarize(self) -> dict[str, Any]:
        turnarounds = turnarounds_s(self._run.simulation)
        return {
            "turnaround_s": float(turnarounds.mean()) if len(turnarounds) else 0.0,
            "baseline_turnaround_s": self.baseline.turnaround_s,
        }

    def _observe(self) -> Observation:
        observation = {name: np.zeros(shape, np.float32) for name, shape in self._shapes.items()}
        self._policy.show(observation)
        cluster = self._run.engine.cluster
        largest = max((len(node.devices) for node in cluster.nodes.values()), default=1)
        for row, node in zip(observation["nodes"], cluster, strict=False):
            row[:] = node.idle / largest, len(node.devices) / largest, 1.0
        observation["outlook"][:] = self._foresee()
        return observation

    def _foresee(self) -> tuple[float, ...]:
        """Return how many jobs wait and run, how many have ended, and how much service those in the system
        and those to come will take, as parts of all; and how much time passed, relative to the baseline."""
        engine, jobs = self._run.engine, len(self._service)
        done, held = 0.0, 0.0
        for running in engine.running.values():
            held += self._service[running.job.id]
            done += running.gpu_seconds(self._now)
        for job in engine.waiting:
            held += self._service[job.id]
            done += engine.progress(job.id).gpu_s
        waiting, ended = engine.waiting_count, self._run.ended
        passed = min(LIMIT, self._now / self.baseline.makespan)
        to_come = 1 - min(1.0, (ended + waiting + len(engine.running)) / jobs)
        left = min(LIMIT, max(0.0, held - done) / self._all_service)
        return waiting / jobs, len(engine.running) / jobs, ended / jobs, left, to_come, passed
