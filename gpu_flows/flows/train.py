"""The `train` flow: a small torch model on data made on the spot, with live progress in the UI.

On one device it trains in the flow's own process, on more in a process for each of them. Either way it can
be stopped anywhere: asked to leave, it saves a checkpoint after the step it is in, and the next attempt goes
on from there.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from prefect import flow, get_run_logger
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    update_progress_artifact,
)

from gpu_flows.flows.several import train_in_processes
from gpu_flows.training.config import TrainConfig
from gpu_flows.training.device_count import count_assigned_devices

if TYPE_CHECKING:
    from gpu_flows.training.reports import Progress, TrainResult

    Log = logging.Logger | logging.LoggerAdapter[logging.Logger]

_SECONDS_BETWEEN_LOG_LINES = 2.0
_SECONDS_BETWEEN_CARDS = 1.0
_SECONDS_FOR_THE_LAST_CARD = 3.0


@flow(name="train")
def train(config: TrainConfig = TrainConfig()) -> dict[str, Any]:  # noqa: B008  only read
    """Train a small torch model on the devices this run was given.

    Args:
        config: The model, its size, and how far to train it.
    """
    _need_torch()
    log = get_run_logger()
    next_line = time.monotonic()

    def report(progress: Progress) -> None:
        nonlocal next_line
        card.show(progress)
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + _SECONDS_BETWEEN_LOG_LINES
            log.info("%3.0f%%  %s", 100 * progress.fraction, progress)

    with _ProgressCard(log) as card:
        result = _train(config, report, log)

    summary = f"{result.model}: loss {result.first_loss:.4g} to {result.loss:.4g} in {result.seconds:.1f} s"
    log.info("%s, stopped by %s", summary, result.stopped_by)
    _publish_result(result, summary, log)
    return result.as_dict()


def _need_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise RuntimeError(
            "training needs torch, which is not installed where this job runs. "
            "Install it there: pip install 'gpu-flows[train]'"
        )


def _train(config: TrainConfig, report: Callable[[Progress], None], log: Log) -> TrainResult:
    devices = count_assigned_devices(os.environ)
    if devices > 1:
        return train_in_processes(
            config, devices, report, lambda line: log.info("%s: %s", config.model, line)
        )

    from gpu_flows.training.hardware import find_hardware  # torch, only now
    from gpu_flows.training.loop import train

    hardware = find_hardware()
    log.info("%s: %s", config.model, hardware.note)
    return train(config, report, hardware=hardware)


class _ProgressCard:
    """The progress artifact of this run, kept up to date from a thread of its own.

    Training hands over its latest progress and goes on: a slow or absent server never holds it up.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._latest: Progress | None = None
        self._shown: Progress | None = None
        self._artifact: UUID | None = None
        self._finished = threading.Event()
        # The context tells Prefect which run the artifact belongs to.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._keep_showing,), name="progress", daemon=True
        )

    def show(self, progress: Progress) -> None:
        self._latest = progress

    def __enter__(self) -> _ProgressCard:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._finished.set()
        self._thread.join(timeout=_SECONDS_FOR_THE_LAST_CARD)

    def _keep_showing(self) -> None:
        while not self._finished.wait(_SECONDS_BETWEEN_CARDS):
            self._publish()
        self._publish()

    def _publish(self) -> None:
        progress = self._latest
        if progress is None or progress is self._shown:
            return
        percent = round(100 * progress.fraction, 1)
        try:
            if self._artifact is None:
                created = create_progress_artifact(percent, "training-progress", str(progress))
                self._artifact = cast(UUID, created)  # only a coroutine inside an event loop
            else:
                update_progress_artifact(self._artifact, percent, str(progress))
            self._shown = progress
        except Exception as error:  # whatever ails the server, it is no reason to stop training
            self._log.debug("progress not shown: %s", error)


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
    except Exception as error:  # the training is done and its result is returned: do not lose that
        log.warning("the result table could not be published: %s", error)
