"""A training that dies where it is told to. Forked from a process that has torch already, again and again."""

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
    """Network with dropout, so that it matters where the random numbers stand."""
    global _network
    _network = torch.nn.Sequential(
        torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)
    )
    x = torch.randn(samples, 4)
    return Recipe(_network, x, x.sum(1, keepdim=True).sin(), torch.nn.functional.mse_loss)


@dataclass(frozen=True)
class Death:
    """When and how to die: after a step, or at an operation of the first save that comes after it."""

    step: int
    by: signal.Signals
    in_save: str = ""  # write, fsync, rename, or renamed


def live(
    steps: int,
    checkpoints: Path,
    attempt: int,
    done: Synchronized[c_long],
    death: Death | None,
    weights: Path,
) -> None:
    """One attempt. `done` counts the steps; the weights are written when all of them are."""
    register("noisy")(noisy)  # here, not on import: other tests look at what is registered
    os.environ[contract.DIRECTORY] = str(checkpoints)
    os.environ[contract.ATTEMPT] = f"job.{attempt}"
    config = TrainConfig(
        model="noisy", samples=200, batch_size=16, epochs=10_000, steps=steps, checkpoint_seconds=INTERVAL
    )

    def report(progress: Progress) -> None:
        done.value = progress.step  # type: ignore[assignment]
        if death and not death.in_save and progress.step >= death.step:
            os.kill(os.getpid(), death.by)

    if death and death.in_save:
        _die_in_save(death, lambda: int(done.value))
    # A step takes a second by this clock, so that an interval is a number of steps.
    train(config, report, clock=lambda: float(done.value))
    torch.save(_network.state_dict(), weights)


def _die_in_save(death: Death, step: Callable[[], int]) -> None:
    def deadly(real: Callable[..., Any], after: bool = False) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            answer = real(*args, **options) if after else None
            if step() >= death.step:
                os.kill(os.getpid(), death.by)
            return answer if after else real(*args, **options)

        return call

    if death.in_save == "write":
        ContentWriter.write = deadly(ContentWriter.write, after=True)  # type: ignore[method-assign]
    elif death.in_save == "renamed":
        os.rename = deadly(os.rename, after=True)
    else:
        setattr(os, death.in_save, deadly(getattr(os, death.in_save)))
