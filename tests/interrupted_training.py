"""One attempt of a training that kills itself at a planned moment. The tests fork it from a process that has
already imported torch, because it runs many times."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from ctypes import c_long
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import torch

from gpu_flows.checkpoints import contract
from gpu_flows.checkpoints.store import ContentWriter
from gpu_flows.training import Recipe, register
from gpu_flows.training.config import TrainConfig
from gpu_flows.training.loop import train
from gpu_flows.training.reports import Progress

INTERVAL = 5  # steps between checkpoints

_network: torch.nn.Module


def noisy(size: int, samples: int) -> Recipe:
    """Network with dropout, so that its weights depend on the random number generator."""
    global _network
    _network = torch.nn.Sequential(
        torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)
    )
    x = torch.randn(samples, 4)
    return Recipe(_network, x, x.sum(1, keepdim=True).sin(), torch.nn.functional.mse_loss)


@dataclass(frozen=True)
class Kill:
    """When and how a process is killed: after a step, or at an operation of the first save after it."""

    step: int
    by: signal.Signals
    in_save: str = ""  # write, fsync, rename, or renamed


def run_attempt(
    steps: int,
    checkpoints: Path,
    attempt: int,
    done: Synchronized[c_long],
    kill: Kill | None,
    weights: Path,
) -> None:
    """Train until the kill or the end. `done` counts the steps; the weights are written at the end."""
    register("noisy")(noisy)  # here, not on import: other tests check what is registered
    os.environ[contract.DIRECTORY] = str(checkpoints)
    os.environ[contract.ATTEMPT] = f"job.{attempt}"
    config = TrainConfig(
        model="noisy", samples=200, batch_size=16, epochs=10_000, steps=steps, checkpoint_seconds=INTERVAL
    )

    def report(progress: Progress) -> None:
        done.value = progress.step  # type: ignore[assignment]
        if kill and not kill.in_save and progress.step >= kill.step:
            os.kill(os.getpid(), kill.by)

    if kill and kill.in_save:
        _kill_in_save(kill, lambda: int(done.value))
    # A step takes a second on this clock, so that an interval is a number of steps.
    train(config, report, clock=lambda: float(done.value))
    torch.save(_network.state_dict(), weights)


def _kill_in_save(kill: Kill, step: Callable[[], int]) -> None:
    def killing(real: Callable[..., Any], after: bool = False) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            result = real(*args, **options) if after else None
            if step() >= kill.step:
                os.kill(os.getpid(), kill.by)
            return result if after else real(*args, **options)

        return call

    if kill.in_save == "write":
        ContentWriter.write = killing(ContentWriter.write, after=True)  # type: ignore[method-assign]
    elif kill.in_save == "renamed":
        os.rename = killing(os.rename, after=True)
    else:
        setattr(os, kill.in_save, killing(getattr(os, kill.in_save)))
