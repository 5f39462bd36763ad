"""`gpu-flows predict`: what a job needs before it runs. Each subcommand is a module here."""

from __future__ import annotations

import typer

from gpu_flows.cli.options import add_command
from gpu_flows.cli.predict.evaluate import evaluate
from gpu_flows.cli.predict.memory import memory
from gpu_flows.cli.predict.time import time
from gpu_flows.cli.predict.train import train

predict = typer.Typer(
    rich_markup_mode=None, add_completion=False, help="Predict the memory and the time of a job."
)
add_command(predict, "memory", memory)
add_command(predict, "evaluate", evaluate)
add_command(predict, "time", time)
add_command(predict, "train", train)


@predict.callback()
def _group() -> None:
    """Predict the memory and the time of a job."""
