"""The training loop. Importing this imports torch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from gpu_flows.training import registry
from gpu_flows.training.adam import Adam
from gpu_flows.training.config import TrainConfig
from gpu_flows.training.hardware import Hardware, find_hardware


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a training has come, after one step."""

    step: int
    epoch: int  # from 1
    epochs: int
    fraction: float  # of the work or of the time, whichever ends first: 0 to 1
    loss: float  # smoothed over the last steps
    seconds: float
    samples_per_second: float
    peak_memory_mb: float

    def __str__(self) -> str:
        return (
            f"epoch {self.epoch:,}/{self.epochs:,} loss {self.loss:.4g}, "
            f"{self.samples_per_second:,.0f} samples/s"
        )


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What came out of a training."""

    model: str
    device: str
    devices: int
    parameters: int
    steps: int
    epochs: int  # begun
    samples: int  # seen, counting repeats
    first_loss: float
    loss: float
    seconds: float
    samples_per_second: float
    peak_memory_mb: float
    stopped_by: str  # the limit that was met first: epochs, steps or seconds

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Diverged(RuntimeError):
    """The loss is no number any more."""


def train(
    config: TrainConfig,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    *,
    hardware: Hardware | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> TrainResult:
    """Train until the first limit of the config is met. `on_progress` is called after every step."""
    with _cpu_threads(config.threads):
        training = Training(config, hardware or find_hardware())
        for progress in training.run(clock, sleep):
            on_progress(progress)
        return training.result(progress)


class Training:
    """A network on its way: everything that changes while it learns."""

    def __init__(self, config: TrainConfig, hardware: Hardware) -> None:
        self.config = config
        self.hardware = hardware
        torch.manual_seed(config.seed)
        recipe = registry.builder(config.model)(config.size, config.samples)
        self.inputs = recipe.inputs.to(hardware.device)
        self.targets = recipe.targets.to(hardware.device)
        self.loss = recipe.loss
        self.network = hardware.spread(recipe.network)
        self.optimizer = Adam(self.network.parameters(), config.learning_rate)
        self.samples_seen = 0
        self.first_loss = math.nan
        self.stopped_by = "epochs"

    def run(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> Iterator[Progress]:
        """Learn, one step per item."""
        config = self.config
        planned = config.epochs * math.ceil(config.samples / config.batch_size)
        planned = min(planned, config.steps or planned)
        smooth_loss = math.nan
        started = clock()

        for step, (epoch, batch) in enumerate(self._batches(), start=1):
            loss = self._learn(self.inputs[batch], self.targets[batch])
            if not math.isfinite(loss):
                raise Diverged(
                    f"the loss of {config.model} became {loss} at step {step}. "
                    f"Lower the learning rate (now {config.learning_rate:g})."
                )
            if step == 1:
                self.first_loss = smooth_loss = loss
            smooth_loss += 0.1 * (loss - smooth_loss)
            self.samples_seen += len(batch)
            if config.steps_per_second:
                sleep(max(0.0, started + step / config.steps_per_second - clock()))

            seconds = clock() - started
            yield Progress(
                step=step,
                epoch=epoch,
                epochs=config.epochs,
                fraction=min(1.0, max(step / planned, seconds / config.seconds if config.seconds else 0.0)),
                loss=smooth_loss,
                seconds=seconds,
                samples_per_second=self.samples_seen / seconds if seconds else 0.0,
                peak_memory_mb=self.hardware.peak_memory_mb(),
            )
            if config.steps and step >= config.steps:
                self.stopped_by = "steps"
                return
            if config.seconds and seconds >= config.seconds:
                self.stopped_by = "seconds"
                return

    def result(self, last: Progress) -> TrainResult:
        """What came out, given where it ended."""
        return TrainResult(
            model=self.config.model,
            device=self.hardware.device.type,
            devices=self.hardware.count,
            parameters=sum(parameter.numel() for parameter in self.network.parameters()),
            steps=last.step,
            epochs=last.epoch,
            samples=self.samples_seen,
            first_loss=self.first_loss,
            loss=last.loss,
            seconds=last.seconds,
            samples_per_second=last.samples_per_second,
            peak_memory_mb=last.peak_memory_mb,
            stopped_by=self.stopped_by,
        )

    def _batches(self) -> Iterator[tuple[int, Tensor]]:
        """(epoch, which samples) of every step, newly shuffled each epoch."""
        for epoch in range(1, self.config.epochs + 1):
            order = torch.randperm(len(self.inputs)).to(self.hardware.device)
            for first in range(0, len(order), self.config.batch_size):
                yield epoch, order[first : first + self.config.batch_size]

    def _learn(self, inputs: Tensor, targets: Tensor) -> float:
        """One step. The mean over the batch is the same, in however many parts it is computed."""
        self.optimizer.zero_grad()
        batch_loss = 0.0
        parts = self.hardware.parts
        for some_inputs, some_targets in zip(inputs.chunk(parts), targets.chunk(parts), strict=True):
            share = len(some_inputs) / len(inputs)
            loss = self.loss(self.network(some_inputs), some_targets) * share
            loss.backward()  # type: ignore[no-untyped-call]
            batch_loss += loss.item()
        self.optimizer.step()
        return batch_loss


@contextmanager
def _cpu_threads(count: int) -> Iterator[None]:
    """Several jobs share few cores; torch would take them all."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
