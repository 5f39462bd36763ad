"""A training in several processes, as its flow sees it: started, followed, and stopped with its grace.

The flow's own process stays out of it and does not even import torch. The processes run as a command does
(`gpu_flows.flows.command`): their output goes to the run's logs, and when the flow is asked to stop, so are
they, with time to save before the flow itself goes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpu_flows.checkpoints import contract
from gpu_flows.flows.command import Command, CommandError, run_command
from gpu_flows.training.config import TrainConfig
from gpu_flows.training.registry import datasets, models
from gpu_flows.training.reports import Diverged, Progress, TrainResult

_SECONDS_BETWEEN_LOOKS = 0.2


def train_in_processes(
    config: TrainConfig,
    processes: int,
    on_progress: Callable[[Progress], None],
    emit: Callable[[str], None],
) -> TrainResult:
    """Train in that many processes. `emit` gets what they print, line by line."""
    with tempfile.TemporaryDirectory(prefix="gpu-flows-training-") as folder:
        reports = Path(folder, "reports.jsonl")
        reports.touch()
        told: dict[str, Any] = {}

        def hear(report: dict[str, Any]) -> None:
            told.update(report)
            if "progress" in report:
                on_progress(Progress(**report["progress"]))
            if "note" in report:
                emit(report["note"])

        with _following(reports, hear):
            outcome = run_command(_command(config, processes, reports), emit)
    if "diverged" in told:
        raise Diverged(told["diverged"])
    if outcome.exit_code or "result" not in told:
        raise CommandError(outcome.explain())
    return TrainResult(**told["result"])


def _command(config: TrainConfig, processes: int, reports: Path) -> Command:
    arguments = [sys.executable, "-m", "gpu_flows.training.launch", str(processes)]
    arguments += [config.model_dump_json(), "--reports", str(reports)]
    own = {models.source(config.model), datasets.source(config.dataset) if config.dataset else ""}
    for source in sorted(own - {""}):
        arguments += ["--source", source]
    # Each gives those below it less than it has itself, or it would be killed while they still save.
    grace = 0.8 * float(os.environ.get(contract.GRACE, "30"))
    environment = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(max(1, int(0.9 * grace)))}
    return Command(arguments, environment=environment, grace_seconds=grace)


@contextmanager
def _following(file: Path, hear: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Hear every line of a growing file, from a thread of its own."""
    ended = threading.Event()

    def follow() -> None:
        with file.open() as lines:
            rest = ""
            while True:
                last_look = ended.wait(_SECONDS_BETWEEN_LOOKS)
                *whole, rest = (rest + lines.read()).split("\n")
                for line in whole:
                    hear(json.loads(line))
                if last_look:
                    return

    thread = threading.Thread(target=follow, name="reports", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
