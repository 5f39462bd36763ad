"""Records a training as it goes on: its learning curve, and the ranges of the features."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any

import numpy as np
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback

from gpu_flows.schedulers.learning.curve import LearningPoint
from gpu_flows.schedulers.learning.features import LIMIT, NAMES

LATEST = 32  # episodes that a point of the curve is the mean of


class Recording(BaseCallback):
    """Watches the environments and the updates of one training."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[LearningPoint] = []
        self.judged = math.nan  # the latest judgement, as a part of the baseline's turnaround
        self._began = time.monotonic()
        self._episodes: deque[tuple[float, float, float]] = deque(maxlen=LATEST)
        self._returns: dict[int, float] = {}  # of the episodes that go on, by environment
        self._low = np.full(len(NAMES), np.inf)
        self._high = np.full(len(NAMES), -np.inf)

    def begin(self, model: MaskablePPO) -> None:
        self._began = time.monotonic()

    def ranges(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the lowest and highest value of each feature so far; all possible ones before any."""
        if not np.isfinite(self._low).all():
            return (-LIMIT,) * len(NAMES), (LIMIT,) * len(NAMES)
        return tuple(map(float, self._low.round(4))), tuple(map(float, self._high.round(4)))

    def add_point(self, model: MaskablePPO) -> LearningPoint:
        """Add a point to the curve after an update."""
        latest = np.array(self._episodes or [(math.nan,) * 3]).mean(axis=0).tolist()
        logged: dict[str, Any] = model.logger.name_to_value
        point = LearningPoint(
            step=model.num_timesteps,
            reward=latest[0],
            turnaround_s=latest[1],
            baseline_turnaround_s=latest[2],
            entropy=-float(logged.get("train/entropy_loss", math.nan)),
            value_loss=float(logged.get("train/value_loss", math.nan)),
            seconds=time.monotonic() - self._began,
        )
        self.points.append(point)
        return point

    def _on_step(self) -> bool:
        for number, (reward, info) in enumerate(
            zip(self.locals["rewards"], self.locals["infos"], strict=True)
        ):
            total = self._returns.get(number, 0.0) + float(reward)
            if "turnaround_s" in info:
                self._episodes.append((total, info["turnaround_s"], info["baseline_turnaround_s"]))
                total = 0.0
            self._returns[number] = total
        return True

    def _on_rollout_end(self) -> None:
        buffer = self.locals["rollout_buffer"].observations
        count = buffer["waiting"].shape[-2]
        for rows, shown in (
            (buffer["waiting"], buffer["shown"][..., :count]),
            (buffer["running"], buffer["shown"][..., count:]),
        ):
            some = rows[shown > 0]
            if len(some):
                self._low = np.minimum(self._low, some.min(axis=0))
                self._high = np.maximum(self._high, some.max(axis=0))
