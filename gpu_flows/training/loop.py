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
    hardware: Hardware | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> TrainResult:
    """Train until the first limit of the config is met. `on_progress` is called after every step.

    Where a checkpoint directory is known, it goes on from the newest checkpoint in it, and saves its own.
    """
    with _cpu_threads(config.threads):
        training = Training(config, hardware or find_hardware())
        kept = resumable(
            every_s=config.checkpoint_seconds,
            clock=clock,
            network=training.network,
            optimizer=training.optimizer,
            scaler=training.scaler,
            batches=training.batches,
            tally=training.tally,
        )
        with kept as run:
            training.begin(clock())
            while not (limit := training.limit_met()):
                training.step(clock, sleep)
                on_progress(training.progress())
                run.step_done()
            return training.result(limit)


@dataclass(slots=True)
class Tally:
    """What has been counted so far, over all attempts, and is the same in all processes."""

    of: dict[str, Any]  # the training it belongs to
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
            raise ValueError(f"it is of {state['of']}, not of {self.of}")
        for name, value in state.items():
            setattr(self, name, value)


class Training:
    """A network on its way: everything that changes while it learns."""

    def __init__(self, config: TrainConfig, hardware: Hardware) -> None:
        self.config = config
        self.hardware = hardware
        self.peers = hardware.peers
        torch.manual_seed(config.seed)
        recipe = registry.models.get(config.model)(config.size, config.samples)
        inputs, targets = _dataset(config, recipe)
        self.dtype = torch.float64 if config.precision == "float64" else torch.float32
        self.inputs = _as(self.dtype, inputs).to(hardware.device)
        self.targets = _as(self.dtype, targets).to(hardware.device)
        self.loss = recipe.loss
        self.network = recipe.network.to(hardware.device, self.dtype)
        self.spread_network = hardware.spread(self.network)
        self.optimizer = Adam(self.network.parameters(), config.learning_rate)
        # The smallest gradients vanish in 16 bits with 5 for the exponent, unless they are scaled up.
        self.scaler = torch.amp.GradScaler(hardware.device.type, enabled=config.precision == "float16")
        self.batches = Batches(len(self.inputs), config.epochs, config.seed)
        self.batch_size = config.batch_size * (self.peers.size if config.batch == "scale" else 1)
        self.tally = Tally(config.model_dump(include={"model", "dataset", "size", "samples", "seed"}))

    # -- the way ----------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """From here on steps are taken; what the tally has, earlier attempts did."""
        self.began = now
        self.seconds_before = self.tally.seconds
        self.steps_before = self.tally.steps
        planned = self.tally.steps + self.batches.left(self.batch_size)
        self.planned = min(planned, self.config.steps or planned)

    def limit_met(self) -> str:
        """The limit that ends the training now, if one does."""
        config, tally = self.config, self.tally
        if config.steps and tally.steps >= config.steps:
            return "steps"
        if config.seconds and tally.seconds >= config.seconds:
            return "seconds"
        return "" if self.batches.left(self.batch_size) else "epochs"

    def step(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        """Learn from one batch."""
        tally, pace = self.tally, self.config.steps_per_second
        batch = self.batches.next(self.batch_size)
        loss, right, places = self._learn(batch)
        if pace:
            steps = tally.steps + 1 - self.steps_before
            sleep(max(0.0, self.began + steps / pace - clock()))
        # Time is what the first process says, or they would not stop at the same step.
        seconds = self.seconds_before + clock() - self.began if self.peers.is_first else 0.0
        memory = self.hardware.peak_memory_mb()
        loss, right, places, memory, seconds = self.peers.sums(loss, right, places, memory, seconds)

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
            tally.accuracy = right / places if places else None
        tally.loss += 0.1 * (loss - tally.loss)
        if places and tally.accuracy is not None:
            tally.accuracy += 0.1 * (right / places - tally.accuracy)

    def _learn(self, batch: Tensor) -> tuple[float, float, float]:
        """This process's part of a step: its share of the batch's mean loss, how many answers were right,
        and of how many."""
        mine = batch.tensor_split(self.peers.size)[self.peers.rank]
        share = len(mine) / len(batch)
        if not share:  # a batch smaller than the processes are many: join in, and count for nothing
            mine = batch[:1]
        inputs, targets = self.inputs[mine], self.targets[mine]

        self.optimizer.zero_grad()
        with self._arithmetic():
            outputs = self.spread_network(inputs)
        outputs = outputs.to(self.dtype)  # a loss needs more than 16 bits
        loss = self.loss(outputs, targets) * share
        # Gradients are averaged over the processes, but it is their sum that belongs to the batch.
        self.scaler.scale(loss * self.peers.size).backward()  # type: ignore[no-untyped-call]
        self.scaler.step(self.optimizer)  # type: ignore[arg-type]  # ours has all that it asks for
        self.scaler.update()
        if not share or targets.is_floating_point():
            return loss.item(), 0.0, 0.0
        return loss.item(), float((outputs.argmax(-1) == targets).sum()), float(targets.numel())

    def _arithmetic(self) -> torch.autocast:
        mixed = self.config.precision in ("bfloat16", "float16")
        dtype = getattr(torch, self.config.precision) if mixed else None
        return torch.autocast(self.hardware.device.type, dtype, enabled=mixed)

    # -- what it tells ----------------------------------------------------------------------------

    def progress(self) -> Progress:
        config, tally = self.config, self.tally
        of_time = tally.seconds / config.seconds if config.seconds else 0.0
        return Progress(
            step=tally.steps,
            epoch=self.batches.epoch,
            epochs=config.epochs,
            fraction=min(1.0, max(tally.steps / self.planned, of_time)),
            loss=tally.loss,
            accuracy=tally.accuracy,
            seconds=tally.seconds,
            samples_per_second=tally.samples / tally.seconds if tally.seconds else 0.0,
            peak_memory_mb=tally.peak_memory_mb,
        )

    def result(self, limit: str) -> TrainResult:
        """What came out, given what ended it."""
        last = self.progress()
        return TrainResult(
            model=self.config.model,
            device=self.hardware.device.type,
            devices=self.peers.size,
            precision=self.config.precision,
            parameters=sum(parameter.numel() for parameter in self.network.parameters()),
            steps=last.step,
            epochs=last.epoch,
            samples=self.tally.samples,
            first_loss=self.tally.first_loss,
            loss=last.loss,
            accuracy=last.accuracy,
            seconds=last.seconds,
            samples_per_second=last.samples_per_second,
            peak_memory_mb=last.peak_memory_mb,
            stopped_by=limit,
        )


def _dataset(config: TrainConfig, recipe: registry.Recipe) -> tuple[Tensor, Tensor]:
    """The model's own examples, or those of the dataset that was asked for if they look the same."""
    if not config.dataset:
        return recipe.inputs, recipe.targets
    inputs, targets = registry.datasets.get(config.dataset)(config.samples)
    for what, own, other in (("inputs", recipe.inputs, inputs), ("targets", recipe.targets, targets)):
        if (own.shape[1:], own.is_floating_point()) != (other.shape[1:], other.is_floating_point()):
            raise ValueError(
                f"the {what} of dataset {config.dataset!r} are {_looks(other)} each, and {config.model!r} "
                f"learns from {_looks(own)}. Choose another dataset, or leave it empty for the model's own."
            )
    return inputs, targets


def _looks(rows: Tensor) -> str:
    return f"{rows.dtype} of shape {tuple(rows.shape[1:])}"


def _as(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    """The tensor in this precision, unless it counts something."""
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


@contextmanager
def _cpu_threads(count: int) -> Iterator[None]:
    """Several jobs share few cores; torch would take them all."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
