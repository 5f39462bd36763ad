"""A history to learn from: jobs of one kind with features, peaks, and what was predicted of them."""

from __future__ import annotations

import json

from analytics_history import History, T

from gpu_flows.analytics.facts import FeaturesSeen, MemoryPeak, Predicted

PARAMETERS = {"model": "a", "batch_size": 8}


def record_jobs(history: History, count: int) -> None:
    """Record jobs of 6 s that used 1,000 to 1,002 MiB."""
    history.device("d0")
    for number in range(count):
        name, at = f"j{number}", 10.0 * number
        history.run(name, at, at + 1, at + 7, "d0")
        history.record(
            FeaturesSeen(name, "kind", json.dumps(PARAMETERS), "[]"),
            MemoryPeak(name, 1, "d0", 1000.0 + number % 3, "nvml"),
            Predicted(name, T + at, "memory_mb", "GTX", 1100, 1001.5, "features", "v1"),
            Predicted(name, T + at, "seconds", "", 3, 6.5, "history"),
        )
