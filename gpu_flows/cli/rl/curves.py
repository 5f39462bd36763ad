"""What is kept of the learning curves of a training: facts in a warehouse, and a figure."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from gpu_flows.cli.errors import CommandError
from gpu_flows.schedulers.learning.curve import LearningPoint

Curves = Mapping[int, Sequence[LearningPoint]]  # by seed


def record_curves(curves: Curves, training: str, database: Path) -> None:
    """Record the points in a warehouse, which is created if needed, under the name of the training."""
    from gpu_flows.analytics.facts import LearningStep
    from gpu_flows.analytics.simulated_facts import load_spool, spool_facts
    from gpu_flows.analytics.warehouse import WarehouseError

    now = time.time()
    facts = [
        LearningStep.of(point, training, seed, now - points[-1].seconds + point.seconds)
        for seed, points in curves.items()
        for point in points
    ]
    with TemporaryDirectory() as folder:
        spool_facts(Path(folder), facts)
        try:
            load_spool(database, Path(folder))
        except WarehouseError as error:
            raise CommandError(f"The learning curves are not recorded. {error.problem}") from None


def render_curves(curves: Curves) -> str:
    """Return a page with the mean turnaround against that of the baseline, a line for each seed."""
    from gpu_flows.analytics.figures.learning import learning_of
    from gpu_flows.analytics.pages import render_figures

    lines = {
        f"seed {seed}": [
            (float(point.step), 100 * (ratio - 1)) for point in points if (ratio := _ratio(point))
        ]
        for seed, points in curves.items()
    }
    return render_figures("Training", [learning_of(lines)])


def _ratio(point: LearningPoint) -> float:
    """Return the turnaround as a part of the baseline's; 0 if it is not known."""
    ratio = point.turnaround_s / (point.baseline_turnaround_s or math.nan)
    return ratio if math.isfinite(ratio) else 0.0
