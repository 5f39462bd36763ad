"""`gpu-flows rl`: training and evaluation of the learned policy. Each subcommand is a module here."""

from __future__ import annotations

import typer

from gpu_flows.cli.options import add_command
from gpu_flows.cli.rl.evaluate import evaluate
from gpu_flows.cli.rl.train import train

rl = typer.Typer(
    rich_markup_mode=None, add_completion=False, help="Train and evaluate the policy `rl` in the simulator."
)
add_command(rl, "train", train)
add_command(rl, "evaluate", evaluate)


@rl.callback()
def _group() -> None:
    """Train and evaluate the policy `rl` in the simulator."""
