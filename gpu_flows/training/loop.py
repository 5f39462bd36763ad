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

from gpu_flows.checkpoints import resumable
from gpu_flows.training import registry
from gpu_flows.training.adam import Adam
from gpu_flows.training.batches import Batches
from gpu_flows.training.config import TrainConfig
from gpu_flows.training.hardware import Hardware, find_hardware
from gpu_flows.training.reports import Diverged, Progress, TrainResult


def train(
    config: TrainConfig,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    *,
    on_note: Callable[[str], None] = lambda note: None,
    hardware: Hardware | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> TrainResult:
    """Train until the first limit of the config is reached. `on_progress` is called after every step,
    `on_note` with what to tell about the start.

    If GPU_FLOWS_CHECKPOINT_DIR is set, it resumes from the newest checkpoint there and saves its own.
    """
    with _cpu_threads(config.threads):
        training = Training(config, hardware or find_hardware())
        checkpoints = resumable(
            every_s=config.checkpoint_seconds,
            clock=clock,
            network=training.network,
            optimizer=training.optimizer,
            scaler=training.scaler,
            batches=training.batches,
            tally=training.tally,
        )
        on_note(training.hardware.note)
        with _reported_peak(training.hardware), checkpoints as run:
            if run.step:
                on_note(f"resumed from step {run.step:,}")
            training.start(clock())
            while not (limit := training.reached_limit()):
                training.step(clock, sleep)
                on_progress(training.progress())
                run.step_done()
            return training.result(limit)


@dataclass(slots=True)
class Tally:
    """The totals so far, over all attempts. They are the same in all processes."""

    of: dict[str, Any]  # the settings that identify the training
    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    first_loss: float = math.nan
    loss: float = math.nan  # smoothed, like the accuracy
    accuracy: float | None = None
    peak_memory_mb: float = 0.0

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["of"] != self.of:
            raise ValueError(f"it was saved by {state['of']}, not by {self.of}")
        for name, value in state.items():
            setattr(self, name, value)


class Training:
    """The state of a training: the network and everything else that changes while it learns."""

    def __init__(self, config: TrainConfig, hardware: Hardware) -> None:
        self.config = config
        self.hardware = hardware
        self.processes = hardware.processes
        torch.manual_seed(config.seed)
        recipe = registry.models.get(config.model)(config.size, config.samples)
        inputs, targets = _choose_samples(config, recipe)
        self.dtype = torch.float64 if config.precision == "float64" else torch.float32
        self.inputs = _convert(self.dtype, inputs).to(hardware.device)
        self.targets = _convert(self.dtype, targets).to(hardware.device)
        self.loss = recipe.loss
        self.network = recipe.network.to(hardware.device, self.dtype)
        self.distributed_network = hardware.distribute(self.network)
        self.optimizer = Adam(self.network.parameters(), config.learning_rate)
        # float16 has only 5 bits of exponent, so small gradients become 0 unless they are scaled.
        self.scaler = torch.amp.GradScaler(hardware.device.type, enabled=config.precision == "float16")
        self.batches = Batches(len(self.inputs), config.epochs, config.seed)
        self.batch_size = config.batch_size * (self.processes.size if config.batch == "scale" else 1)
        self.tally = Tally(config.model_dump(include={"model", "dataset", "size", "samples", "seed"}))

    # -- steps ------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Start this attempt. The tally holds what earlier attempts did."""
        self.started = now
        self.seconds_before = self.tally.seconds
        self.steps_before = self.tally.steps
        planned = self.tally.steps + self.batches.count_remaining(self.batch_size)
        self.planned_steps = min(planned, self.config.steps or planned)

    def reached_limit(self) -> str:
        """Return the limit that ends the training now; empty if none does."""
        config, tally = self.config, self.tally
        if config.steps and tally.steps >= config.steps:
            return "steps"
        if config.seconds and tally.seconds >= config.seconds:
            return "seconds"
        return "" if self.batches.count_remaining(self.batch_size) else "epochs"

    def step(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        """Learn from one batch."""
        tally, pace = self.tally, self.config.steps_per_second
        batch = self.batches.next(self.batch_size)
        loss, correct, answers = self._learn(batch)
        if pace:
            steps = tally.steps + 1 - self.steps_before
            sleep(max(0.0, self.started + steps / pace - clock()))
        # All processes use the time of the first one, so that they stop at the same step.
        seconds = self.seconds_before + clock() - self.started if self.processes.is_first else 0.0
        memory = self.hardware.peak_memory_mb()
        loss, correct, answers, memory, seconds = self.processes.sum(loss, correct, answers, memory, seconds)

        tally.steps += 1
        tally.samples += len(batch)
        tally.seconds = seconds
        tally.peak_memory_mb = max(tally.peak_memory_mb, memory)
        if not math.isfinite(loss):
            raise Diverged(
                f"the loss of {self.config.model} became {loss} at step {tally.steps}. "
                f"Lower the learning rate (now {self.config.learning_rate:g})."
            )
        if tally.steps == 1:
            tally.first_loss = tally.loss = loss
            tally.accuracy = correct / answers if answers else None
        tally.loss += 0.1 * (loss - tally.loss)
        if answers and tally.accuracy is not None:
            tally.accuracy += 0.1 * (correct / answers - tally.accuracy)

    def _learn(self, batch: Tensor) -> tuple[float, float, float]:
        """Do this process's part of a step. Return its share of the batch's mean loss, the number of correct
        answers, and the number of all answers."""
        part = batch.tensor_split(self.processes.size)[self.processes.rank]
        share = len(part) / len(batch)
        if not share:  # fewer samples than processes: take part in the collective operations with weight 0
            part = batch[:1]
        inputs, targets = self.inputs[part], self.targets[part]

        self.optimizer.zero_grad()
        with self._autocast():
            outputs = self.distributed_network(inputs)
        outputs = outputs.to(self.dtype)  # 16 bits are too few for a loss
        loss = self.loss(outputs, targets) * share
        # DistributedDataParallel averages the gradients; the gradient of the batch is their sum.
        self.scaler.scale(loss * self.processes.size).backward()  # type: ignore[no-untyped-call]
        self.scaler.step(self.optimizer)  # type: ignore[arg-type]  # it uses only param_groups and step
        self.scaler.update()
        if not share or targets.is_floating_point():
            return loss.item(), 0.0, 0.0
        return loss.item(), float((outputs.argmax(-1) == targets).sum()), float(targets.numel())

    def _autocast(self) -> torch.autocast:
        mixed = self.config.precision in ("bfloat16", "float16")
        dtype = getattr(torch, self.config.precision) if mixed else None
        return torch.autocast(self.hardware.device.type, dtype, enabled=mixed)

    # -- reports ----------------------------------------------------------------------------------

    def progress(self) -> Progress:
        """Return the progress after the latest step."""
        config, tally = self.config, self.tally
        time_fraction = tally.seconds / config.seconds if config.seconds else 0.0
        return Progress(
            step=tally.steps,
            epoch=self.batches.epoch,
            epochs=config.epochs,
            fraction=min(1.0, max(tally.steps / self.planned_steps, time_fraction)),
            **self._measures(),
        )

    def result(self, limit: str) -> TrainResult:
        """Return the result of a training that this limit ended."""
        return TrainResult(
            model=self.config.model,
            device=self.hardware.device.type,
            devices=self.processes.size,
            precision=self.config.precision,
            parameters=sum(parameter.numel() for parameter in self.network.parameters()),
            steps=self.tally.steps,
            epochs=self.batches.epoch,
            samples=self.tally.samples,
            first_loss=self.tally.first_loss,
            stopped_by=limit,
            **self._measures(),
        )

    def _measures(self) -> dict[str, Any]:
        """Return the values that progress and result have in common."""
        tally = self.tally
        measures = {name: getattr(tally, name) for name in ("loss", "accuracy", "seconds", "peak_memory_mb")}
        return {**measures, "samples_per_second": tally.samples / tally.seconds if tally.seconds else 0.0}


def _choose_samples(config: TrainConfig, recipe: registry.Recipe) -> tuple[Tensor, Tensor]:
    """Return the samples of the configured dataset, or the model's own if none is configured."""
    if not config.dataset:
        return recipe.inputs, recipe.targets
    inputs, targets = registry.datasets.get(config.dataset)(config.samples)
    for part, own, other in (("inputs", recipe.inputs, inputs), ("targets", recipe.targets, targets)):
        if (own.shape[1:], own.is_floating_point()) != (other.shape[1:], other.is_floating_point()):
            raise ValueError(
                f"the {part} of dataset {config.dataset!r} are {_describe_rows(other)} each, and "
                f"{config.model!r} learns from {_describe_rows(own)}. "
                "Choose another dataset, or leave it empty for the model's own."
            )
    return inputs, targets


def _describe_rows(rows: Tensor) -> str:
    return f"{rows.dtype} of shape {tuple(rows.shape[1:])}"


def _convert(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    """Return the tensor in this precision; integers stay integers."""
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


@contextmanager
def _reported_peak(hardware: Hardware) -> Iterator[None]:
    """Report the peak memory at the end, also of a training that ran out of memory."""
    try:
        yield
    finally:
        hardware.report_peak()


@contextmanager
def _cpu_threads(count: int) -> Iterator[None]:
    """Limit torch to this many threads. By default it uses all cores, which other jobs may share."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
