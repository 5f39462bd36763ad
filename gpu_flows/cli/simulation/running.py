"""Running the simulation under each policy, in parallel processes where that is faster."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from gpu_flows.cli.errors import CommandError
from gpu_flows.cli.escaping import escape
from gpu_flows.cli.simulation.charts import ChartData, collect_chart_data
from gpu_flows.cli.simulation.inputs import Inputs, read_inputs, select_arrivals
from gpu_flows.cli.simulation.options import SimulationOptions
from gpu_flows.cli.simulation.warehouse import spool_facts
from gpu_flows.schedulers.simulation.estimates import parse_estimates
from gpu_flows.schedulers.simulation.simulator import Simulation, simulate
from gpu_flows.schedulers.simulation.summary import (
    FINISHED,
    JOB_COLUMNS,
    DeviceUse,
    JobsLost,
    Summary,
    device_use,
    job_rows,
    summarize,
)

INTERNAL_ERROR = 70  # exit code for a result that cannot be right
WORTH_A_PROCESS = 5_000  # jobs; fewer are simulated faster than another process starts
MOST_TROUBLES = 20  # unfinished jobs to name; --jobs-out has them all

OnProgress = Callable[[int], None]  # receives how many jobs have ended


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one simulation leaves: as much as the outputs need, and small enough to send to a process."""

    summary: Summary
    wall_s: float
    cpu_s: float
    troubles: list[dict[str, object]]  # some of the jobs that did not finish
    jobs: list[tuple[Any, ...]]
    chart_data: ChartData | None


def run_policies(inputs: Inputs, spool: str) -> list[Outcome]:
    """Simulate under every policy, in their order. Facts go to the folder `spool`, unless it is empty."""
    policies, total = len(inputs.choices), len(inputs.trace.arrivals)
    cores = os.cpu_count() or 1
    processes = min(policies, inputs.options.processes or (cores if total >= WORTH_A_PROCESS else 1))
    with _progress_bars([choice.label for choice in inputs.choices], total) as on_progress:
        if processes > 1:
            return _run_in_processes(inputs, spool, processes, on_progress)
        return [_run_policy(inputs, number, spool, on_progress(number)) for number in range(policies)]


def _run_policy(inputs: Inputs, number: int, spool: str, on_progress: OnProgress) -> Outcome:
    options, choice = inputs.options, inputs.choices[number]
    arrivals = select_arrivals(inputs, choice.anywhere)
    guesses = parse_estimates(options.estimates, options.seed)
    wall, cpu = time.perf_counter(), time.process_time()
    simulation = simulate(arrivals, inputs.nodes, choice.make(), inputs.conditions, guesses, on_progress)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    use = device_use(simulation)
    summary = _summarize_all(simulation, use, len(arrivals))
    rows = list(job_rows(simulation)) if options.jobs_out or summary.finished < summary.jobs else []
    jobs = (dict(zip(JOB_COLUMNS, row, strict=True)) for row in rows)
    if spool:
        spool_facts(inputs, choice, simulation, spool)
    return Outcome(
        summary,
        wall,
        cpu,
        troubles=[job for job in jobs if job["outcome"] != FINISHED][:MOST_TROUBLES],
        jobs=rows if options.jobs_out else [],
        chart_data=collect_chart_data(choice.label, simulation, use) if options.charts else None,
    )


def _summarize_all(simulation: Simulation, use: DeviceUse, expected: int) -> Summary:
    """The summary of a simulation. Raises an error unless it accounts for every job."""
    try:
        summary = summarize(simulation, use)
    except JobsLost as error:
        raise _report_bug(str(error)) from None
    if summary.jobs != expected:
        raise _report_bug(f"it knows {summary.jobs} of {expected} jobs.")
    return summary


def _report_bug(what: str) -> CommandError:
    fix = "This is a bug of gpu-flows. Please report it with the command line."
    return CommandError(f"The simulation cannot be right: {what}", fix, INTERNAL_ERROR)


# -- in parallel ------------------------------------------------------------------------------


@dataclass(slots=True)
class _Process:
    """What a worker process holds: the inputs, which it has read itself, and its progress."""

    inputs: Inputs
    ended: MutableSequence[int]  # jobs, by policy

    def run(self, number: int, spool: str) -> Outcome:
        def on_progress(jobs: int) -> None:
            self.ended[number] = jobs

        return _run_policy(self.inputs, number, spool, on_progress)


_process: _Process | None = None


def _start_process(options: SimulationOptions, ended: MutableSequence[int]) -> None:
    global _process
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    _process = _Process(read_inputs(options), ended)


def _run_in_process(number: int, spool: str) -> Outcome:
    assert _process is not None
    return _process.run(number, spool)


def _run_in_processes(
    inputs: Inputs, spool: str, processes: int, on_progress: Callable[[int], OnProgress]
) -> list[Outcome]:
    context = get_context("spawn")  # a fork would copy locks that other threads hold
    numbers = range(len(inputs.choices))
    ended = context.Array("q", len(numbers), lock=False)
    try:
        with ProcessPoolExecutor(processes, context, _start_process, (inputs.options, ended)) as pool:
            futures = [pool.submit(_run_in_process, number, spool) for number in numbers]
            while wait(futures, timeout=0.1).not_done:
                for number in numbers:
                    on_progress(number)(ended[number])
            return [future.result() for future in futures]
    except BrokenProcessPool:
        raise CommandError(
            "A simulating process was killed, most likely for lack of memory.", "Try --processes 1."
        ) from None


@contextmanager
def _progress_bars(labels: Sequence[str], total: int) -> Iterator[Callable[[int], OnProgress]]:
    """A progress bar for each policy on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    hidden = not sys.stderr.isatty()
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=hidden) as bars:
        ids = [bars.add_task(escape(label), total=total) for label in labels]
        yield lambda number: lambda jobs: bars.update(ids[number], completed=jobs)
