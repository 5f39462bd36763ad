"""Training in several processes, one per device, that the `train` flow starts and follows.

The flow's own process does not train and does not import torch. It runs the training processes like a
command (`gpu_flows.flows.command_runner`): their output goes to the run's logs, and when the flow is asked to
stop, they are stopped first and have time to save.
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
from gpu_flows.flows.command_runner import Command, CommandFailed, run_command
from gpu_flows.training.config import TrainConfig
from gpu_flows.training.registry import datasets, models
from gpu_flows.training.reports import Diverged, Progress, TrainResult

_SECONDS_BETWEEN_READS = 0.2


def train_in_processes(
    config: TrainConfig,
    processes: int,
    on_progress: Callable[[Progress], None],
    emit: Callable[[str], None],
) -> TrainResult:
    """Train in this many processes. `emit` gets their output line by line."""
    with tempfile.TemporaryDirectory(prefix="gpu-flows-training-") as folder:
        reports = Path(folder, "reports.jsonl")
        reports.touch()
        reported: dict[str, Any] = {}  # the latest value of each kind of report

        def receive(report: dict[str, Any]) -> None:
            reported.update(report)
            if "progress" in report:
                on_progress(Progress(**report["progress"]))
            if "note" in report:
                emit(report["note"])

        with _follow_lines(reports, receive):
            outcome = run_command(_build_command(config, processes, reports), emit)
    if "diverged" in reported:
        raise Diverged(reported["diverged"])
    if outcome.exit_code or "result" not in reported:
        raise CommandFailed(outcome.explain())
    return TrainResult(**reported["result"])


def _build_command(config: TrainConfig, processes: int, reports: Path) -> Command:
    arguments = [sys.executable, "-m", "gpu_flows.training.launch", str(processes)]
    arguments += [config.model_dump_json(), "--reports", str(reports)]
    sources = {models.source(config.model), datasets.source(config.dataset) if config.dataset else ""}
    for source in sorted(sources - {""}):
        arguments += ["--source", source]
    # Every process gives its children a shorter grace period than its own, so that they can save before
    # it is killed itself.
    grace = 0.8 * float(os.environ.get(contract.GRACE, "30"))
    environment = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(max(1, int(0.9 * grace)))}
    return Command(arguments, environment=environment, grace_seconds=grace)


@contextmanager
def _follow_lines(file: Path, receive: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Call `receive` with every JSON line of a growing file, in a separate thread."""
    ended = threading.Event()

    def follow() -> None:
        with file.open() as lines:
            rest = ""
            while True:
                is_last_read = ended.wait(_SECONDS_BETWEEN_READS)
                *complete, rest = (rest + lines.read()).split("\n")
                for line in complete:
                    receive(json.loads(line))
                if is_last_read:
                    return

    thread = threading.Thread(target=follow, name="reports", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
