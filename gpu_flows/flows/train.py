"""The `train` flow: trains a small torch model on generated data, with live progress in the UI.

On one device it trains in the flow's own process, on several devices in one process per device. It can be
stopped at any time: it saves a checkpoint after the current step, and the next attempt continues from there.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from prefect import flow, get_run_logger
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    update_progress_artifact,
)

from gpu_flows.flows.training_processes import train_in_processes
from gpu_flows.training.config import TrainConfig
from gpu_flows.training.device_count import count_assigned_devices

if TYPE_CHECKING:
    from gpu_flows.training.reports import Progress, TrainResult

    Log = logging.Logger | logging.LoggerAdapter[logging.Logger]

_SECONDS_BETWEEN_LOG_LINES = 2.0
_SECONDS_BETWEEN_UPDATES = 1.0
_SECONDS_FOR_LAST_UPDATE = 3.0


@flow(name="train")
def train(config: TrainConfig = TrainConfig()) -> dict[str, Any]:  # noqa: B008  only read
    """Train a small torch model on the devices of this run.

    Args:
        config: The model, its size, and how far to train it.
    """
    _require_torch()
    log = get_run_logger()
    next_line = time.monotonic()

    def report(progress: Progress) -> None:
        nonlocal next_line
        artifact.show(progress)
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + _SECONDS_BETWEEN_LOG_LINES
            log.info("%3.0f%%  %s", 100 * progress.fraction, progress)

    with _ProgressArtifact(log) as artifact:
        result = _train(config, report, log)

    summary = f"{result.model}: loss {result.first_loss:.4g} to {result.loss:.4g} in {result.seconds:.1f} s"
    log.info("%s, stopped by %s", summary, result.stopped_by)
    _publish_result(result, summary, log)
    return result.as_dict()


def _require_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise RuntimeError(
            "training needs torch, which is not installed where this job runs. "
            "Install it there: pip install 'gpu-flows[train]'"
        )


def _train(config: TrainConfig, report: Callable[[Progress], None], log: Log) -> TrainResult:
    def note(line: str) -> None:
        log.info("%s: %s", config.model, line)

    devices = count_assigned_devices(os.environ)
    if devices > 1:
        return train_in_processes(config, devices, report, note)

    from gpu_flows.training.loop import train  # imports torch

    return train(config, report, on_note=note)


class _ProgressArtifact:
    """The progress artifact of this run.

    A separate thread updates it, so that a slow or absent server never delays the training.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._latest: Progress | None = None
        self._published: Progress | None = None
        self._artifact_id: UUID | None = None
        self._finished = threading.Event()
        # With the context, Prefect assigns the artifact to this run.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._keep_publishing,), name="progress", daemon=True
        )

    def show(self, progress: Progress) -> None:
        self._latest = progress

    def __enter__(self) -> _ProgressArtifact:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._finished.set()
        self._thread.join(timeout=_SECONDS_FOR_LAST_UPDATE)

    def _keep_publishing(self) -> None:
        while not self._finished.wait(_SECONDS_BETWEEN_UPDATES):
            self._publish()
        self._publish()

    def _publish(self) -> None:
        progress = self._latest
        if progress is None or progress is self._published:
            return
        percent = round(100 * progress.fraction, 1)
        try:
            if self._artifact_id is None:
                created = create_progress_artifact(percent, "training-progress", str(progress))
                self._artifact_id = cast(UUID, created)  # a coroutine only inside an event loop
            else:
                update_progress_artifact(self._artifact_id, percent, str(progress))
            self._published = progress
        except Exception as error:  # no failure of the server may stop the training
            self._log.debug("The progress could not be published: %s", error)


def _publish_result(result: TrainResult, summary: str, log: Log) -> None:
    rows = {
        "Model": f"{result.model}, {result.parameters:,} parameters",
        "Hardware": f"{result.devices} x {result.device}, {result.precision}",
        "Loss": f"{result.first_loss:.4g} at the first step, {result.loss:.4g} at the end",
        "Work": f"{result.steps:,} steps, {result.samples:,} samples, epoch {result.epochs:,}",
        "Time": f"{result.seconds:.1f} s, {result.samples_per_second:,.0f} samples/s",
        "Peak memory": f"{result.peak_memory_mb:,.0f} MiB",
        "Stopped by": result.stopped_by,
    }
    if result.accuracy is not None:
        rows["Accuracy"] = f"{result.accuracy:.1%} at the end"
    table = "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])
    try:
        create_markdown_artifact(table, key="training-result", description=summary)
    except Exception as error:  # the flow must still return the result of the training
        log.warning("The result table could not be published: %s", error)
