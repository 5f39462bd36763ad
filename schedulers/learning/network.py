"""The network that scores jobs, evaluated with numpy.

One small network is applied to the features of each job, so neither the order of the queue nor its length
matters. Its outputs are the score, by which jobs are served, and how much the job prefers each placement:

    hidden  = tanh(tanh(row W1 + b1) W2 + b2)
    outputs = hidden W3 + b3 + row S

`S` lets the features act directly. Before training, W3 is zero and `S` gives the Gittins index per device,
a strong policy for unknown durations; training learns what to change about it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpu_flows.schedulers.learning.features import NAMES, Floats

HIDDEN = 32
ROWS = (
    192  # evaluated at a time: few enough that numpy uses one thread, which is faster beside other programs
)
MARGIN = 0.15  # by which a waiting job must be better than the running one that it replaces, before training


class Network(NamedTuple):
    """The parameters of the network. `margin` is what a running job has ahead of waiting ones."""

    w1: Floats
    b1: Floats
    w2: Floats
    b2: Floats
    w3: Floats
    b3: Floats
    skip: Floats
    margin: Floats

    def evaluate(self, rows: Floats) -> Floats:
        """Return the outputs for each row: the score, then the preference for each placement."""
        parts = [self._evaluate(rows[first : first + ROWS]) for first in range(0, len(rows), ROWS)]
        return np.concatenate(parts) if parts else np.empty((0, self.w3.shape[1]), np.float32)

    def _evaluate(self, rows: Floats) -> Floats:
        hidden = np.tanh(np.tanh(rows @ self.w1 + self.b1) @ self.w2 + self.b2)
        outputs: Floats = hidden @ self.w3 + self.b3 + rows @ self.skip
        return outputs


def make_network(placements: int, seed: int = 0) -> Network:
    """Return the network before training: it scores jobs by the Gittins index per device."""
    random = np.random.default_rng(seed)
    features, outputs = len(NAMES), 1 + placements

    def draw(rows: int, columns: int) -> Floats:
        return random.normal(0.0, 1 / np.sqrt(rows), (rows, columns)).astype(np.float32)

    skip = np.zeros((features, outputs), np.float32)
    skip[NAMES.index("rate_like"), 0] = 1.0
    skip[NAMES.index("devices"), 0] = -1.0
    skip[NAMES.index("stopping"), 0] = 1.0
    return Network(
        w1=draw(features, HIDDEN),
        b1=np.zeros(HIDDEN, np.float32),
        w2=draw(HIDDEN, HIDDEN),
        b2=np.zeros(HIDDEN, np.float32),
        w3=np.zeros((HIDDEN, outputs), np.float32),
        b3=np.zeros(outputs, np.float32),
        skip=skip,
        margin=np.array([MARGIN], np.float32),
    )
