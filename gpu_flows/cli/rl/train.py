"""`gpu-flows rl train`: train the network of the policy `rl`."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gpu_flows.cli import output
from gpu_flows.cli.charts import require_charts
from gpu_flows.cli.errors import BadInput, CommandError
from gpu_flows.cli.options import JsonOption, examples
from gpu_flows.cli.rl.curves import record_curves, render_curves
from gpu_flows.cli.rl.inputs import ClusterOption, TraceOption, WorkloadOption, make_curriculum, parse_seeds
from gpu_flows.schedulers.learning.curve import LearningPoint
from gpu_flows.schedulers.learning.weights import WeightsError, load
from gpu_flows.schedulers.simulation.rewards import MIX, REWARDS, parse_reward


@examples(
    "gpu-flows rl train --minutes 25",
    "gpu-flows rl train --seeds 1,2,3 --steps 400000 --output my.npz",
    "gpu-flows rl train --trace jobs.csv --cluster 2x8 --reward mix",
)
def train(
    file: Annotated[Path, typer.Option("--output", metavar="FILE", help="Where the weights go.")] = Path(
        "rl-weights.npz"
    ),
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Decisions of each seed, rounded up to 4,096. The same seed then gives the same weights.",
        ),
    ] = None,
    minutes: Annotated[float | None, typer.Option(min=0.1, help="Or: how long to train each seed.")] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, such as 1,2; the best of them is kept.")] = "1",
    processes: Annotated[
        int, typer.Option(min=1, help="1: everything in this process; else environments run in their own.")
    ] = 1,
    reward: Annotated[
        str, typer.Option(help=f"What counts: {', '.join(REWARDS)}, or a mix such as {MIX}.")
    ] = "turnaround",
    workloads: WorkloadOption = None,
    traces: TraceOption = None,
    clusters: ClusterOption = None,
    start: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Train these weights further.")
    ] = None,
    warehouse: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Record the learning curves in this DuckDB file.")
    ] = None,
    chart: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the learning curves as an HTML page.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train the network of the policy `rl` in the simulator, by masked PPO.

    Episodes are short generated workloads on small clusters, under heavy load; with --trace, windows of your
    own traces. From time to time the network is judged on workloads that are kept for this, and the best one
    is written. `gpu-flows policy set rl --option weights=FILE` uses it.

    Needs the extra `rl`: pip install 'gpu-flows[rl,train]'.
    """
    if chart:
        require_charts("--chart")
    try:
        parse_reward(reward)
        network = load(start).network if start else None
    except (ValueError, WeightsError) as error:
        raise BadInput(str(error)) from None
    curriculum = make_curriculum(workloads, traces, clusters)
    numbers = parse_seeds(seeds)
    try:
        from gpu_flows.learning import training
    except ImportError as error:
        fix = "Install it: pip install 'gpu-flows[rl,train]'."
        raise CommandError(f"Training needs {error.name or 'torch and sb3-contrib'}.", fix) from None
    total = None if minutes and not steps else (steps or training.STEPS)
    with _progress_bars(numbers, total, minutes, hidden=as_json) as progress:
        done = training.train(
            output=file,
            workloads=curriculum.workloads,
            clusters=curriculum.clusters,
            traces=curriculum.traces,
            seeds=numbers,
            minutes=minutes,
            steps=steps,
            processes=processes,
            reward=reward,
            start=network,
            command=shlex.join(["gpu-flows", *sys.argv[1:]]),
            progress=progress,
        )
    if warehouse:
        record_curves(done.curves, f"{file.stem} {time.strftime('%Y-%m-%d %H:%M:%S')}", warehouse)
    if chart:
        chart.parent.mkdir(parents=True, exist_ok=True)
        chart.write_text(render_curves(done.curves), encoding="utf-8")
    if as_json:
        curves = {seed: [asdict(point) for point in points] for seed, points in done.curves.items()}
        result = {
            "file": str(file.resolve()),
            "seed": done.weights.header.seed,
            "steps": done.weights.header.steps,
            "ratio": done.ratio,
            "ratio_before": done.ratio_before,
            "seconds": done.seconds,
            "curves": curves,
        }
        output.print_json(result)
        return
    header, minutes = done.weights.header, done.seconds / 60
    print(f"Wrote {file.resolve()}:")
    print(f"seed {header.seed} after {header.steps:,} decisions, in {minutes:.1f} minutes.")
    print(
        f"Its mean turnaround on workloads kept for the choice is {done.ratio:.3f} times that of tiresias; "
        f"before training it was {done.ratio_before:.3f} times."
    )
    path = shlex.quote(str(file.resolve()))
    print(f"Compare it: gpu-flows rl evaluate --weights {path}")
    print(f"Use it: gpu-flows policy set rl --option weights={path}")


@contextmanager
def _progress_bars(
    seeds: list[int], steps: int | None, minutes: float | None, hidden: bool
) -> Iterator[Callable[[int, LearningPoint], None]]:
    """A progress bar for each seed on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("seed {task.description}"), BarColumn(), TextColumn("{task.fields[found]}")
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    hidden = hidden or not sys.stderr.isatty()
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=hidden) as bars:
        total = steps if steps else 60 * (minutes or 0)
        ids = {seed: bars.add_task(str(seed), total=total, found="") for seed in seeds}

        def show(seed: int, point: LearningPoint) -> None:
            found = (
                f"{point.step:,} decisions, turnaround {point.turnaround_s / point.baseline_turnaround_s:.3f}"
            )
            done = point.step if steps else point.seconds
            bars.update(ids[seed], completed=done, found=f"{found} of tiresias")

        yield show
