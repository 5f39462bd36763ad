"""`gpu-flows simulate`: what would these jobs do on that cluster, under one policy or another?

A study is run under each of its policies, in processes side by side if that is worth it, and what
came of it is told and written down. `gpu-flows compare` does the same and tells it otherwise.
"""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, fields
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpu_flows.cli import parts
from gpu_flows.cli.findings import Outcome, Picture, blame, draw, tell
from gpu_flows.cli.inputs import Choice, Inputs, best, jobs, read
from gpu_flows.cli.parts import JsonOption
from gpu_flows.cli.problem import BadInput, Problem, inert
from gpu_flows.cli.study import Study, asks
from gpu_flows.schedulers.simulation.estimates import estimates
from gpu_flows.schedulers.simulation.simulator import Simulation
from gpu_flows.schedulers.simulation.simulator import simulate as run_simulation
from gpu_flows.schedulers.simulation.summary import (
    FINISHED,
    ROW,
    JobsLost,
    Summary,
    Use,
    device_use,
    rows,
    summarize,
    turnarounds_s,
)

OUR_MISTAKE = 70  # the exit code of an answer that cannot be right
WORTH_A_PROCESS = 5_000  # jobs; fewer are simulated sooner than another process is there
MOST_TROUBLES = 20  # jobs that are told of; --jobs-out has them all


@parts.examples(
    "gpu-flows simulate --trace jobs.csv --cluster 15x4:V100:16+8x8:A100:80 --policy fifo,srtf --json",
    "gpu-flows simulate --workload poisson:jobs=500 --cluster 3x4 --policy fifo,fifo:skip=true --charts out",
    "gpu-flows simulate --trace ~/.gpu-flows/warehouse.duckdb --cluster 3x4 --policy srtf --jobs-out j.csv",
    "gpu-flows simulate --trace jobs.csv --cluster racks.yaml --tier-slowdown 1.2,1.5 --warehouse sim.duckdb",
)
@asks
def simulate(study: Study, as_json: JsonOption = False) -> None:
    """Run a workload on a virtual cluster, under each of some policies.

    It is the live engine with another clock, and the same seed gives the same answer. Times are in
    seconds; percentiles are nearest-rank. Figures are of the jobs that finished; the others are named
    with their reason. Exit code 1 means that a policy failed or an output could not be written, 2 that
    the input makes no sense.
    """
    found, told, unwritten = conduct(study)
    parts.print_json(told) if as_json else draw(found, told)
    blame(told, unwritten)


def conduct(study: Study) -> tuple[Inputs, list[dict[str, Any]], list[str]]:
    """Run the study and write what it wants written. What came of it, policy by policy; and what could
    not be written, which is no reason to keep the rest from anybody."""
    _check_outputs(study)
    found = read(study)
    for choice in found.choices:
        best(found, choice.anywhere)  # it is kept; and if it is refused, better know it now
    with TemporaryDirectory() as spool:
        if study.warehouse:
            _check_warehouse(study.warehouse, spool)
        outcomes = _run(found, spool if study.warehouse else "")
        unwritten = list(_write(found, outcomes, spool))
    return found, [tell(found, *each) for each in zip(found.choices, outcomes, strict=True)], unwritten


# -- running ----------------------------------------------------------------------------------


def _run(found: Inputs, spool: str) -> list[Outcome]:
    """The study under all its policies, in the order asked."""
    policies, total = len(found.choices), len(found.trace.arrivals)
    cores = os.cpu_count() or 1
    processes = min(policies, found.study.processes or (cores if total >= WORTH_A_PROCESS else 1))
    with _bars([choice.label for choice in found.choices], total) as done:
        if processes > 1:
            return _run_side_by_side(found, spool, processes, done)
        return [_simulate(found, number, spool, done(number)) for number in range(policies)]


def _simulate(found: Inputs, number: int, spool: str, done: Callable[[int], None]) -> Outcome:
    """The study under one of its policies. `done` hears how many jobs have ended."""
    study, choice = found.study, found.choices[number]
    arrivals = jobs(found, choice.anywhere)
    guesses = estimates(study.estimates, study.seed)
    wall, cpu = time.perf_counter(), time.process_time()
    simulation = run_simulation(arrivals, found.nodes, choice.make(), found.world, guesses, done)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    use = device_use(simulation)
    summary = _checked(simulation, use, len(arrivals))
    every = list(rows(simulation)) if study.jobs_out or summary.finished < summary.jobs else []
    named = (dict(zip(ROW, row, strict=True)) for row in every)
    if spool:
        _spool(found, choice, simulation, spool)
    return Outcome(
        summary,
        wall,
        cpu,
        troubles=[job for job in named if job["outcome"] != FINISHED][:MOST_TROUBLES],
        jobs=every if study.jobs_out else [],
        picture=_picture(choice.label, simulation, use) if study.charts else None,
    )


def _checked(simulation: Simulation, use: Use, expected: int) -> Summary:
    """The summary of a simulation in which every job is accounted for."""
    try:
        summary = summarize(simulation, use)
    except JobsLost as error:
        raise Problem(f"The simulation cannot be right: {error}", _REPORT, OUR_MISTAKE) from None
    if summary.jobs != expected:
        what = f"The simulation cannot be right: it knows {summary.jobs} of {expected} jobs."
        raise Problem(what, _REPORT, OUR_MISTAKE)
    return summary


_REPORT = "This is a mistake of gpu-flows, not yours. Please report it with the command line."


# -- side by side -----------------------------------------------------------------------------


@dataclass(slots=True)
class _Worker:
    """What a worker process has: its own reading of the study, and where to note its progress."""

    found: Inputs
    ended: MutableSequence[int]  # jobs, by policy

    def run(self, number: int, spool: str) -> Outcome:
        def done(jobs: int) -> None:
            self.ended[number] = jobs

        return _simulate(self.found, number, spool, done)


_worker: _Worker | None = None


def _begin(study: Study, ended: MutableSequence[int]) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a word
    _worker = _Worker(read(study), ended)


def _work(number: int, spool: str) -> Outcome:
    assert _worker is not None
    return _worker.run(number, spool)


def _run_side_by_side(
    found: Inputs, spool: str, processes: int, done: Callable[[int], Callable[[int], None]]
) -> list[Outcome]:
    context = get_context("spawn")  # forking would copy threads and locks in whatever state they are
    numbers = range(len(found.choices))
    ended = context.Array("q", len(numbers), lock=False)
    try:
        with ProcessPoolExecutor(processes, context, _begin, (found.study, ended)) as pool:
            futures = [pool.submit(_work, number, spool) for number in numbers]
            while wait(futures, timeout=0.1).not_done:
                for number in numbers:
                    done(number)(ended[number])
            return [future.result() for future in futures]
    except BrokenProcessPool:
        raise Problem(
            "A simulating process was killed, most likely for want of memory.", "Try --processes 1."
        ) from None


@contextmanager
def _bars(labels: Sequence[str], total: int) -> Iterator[Callable[[int], Callable[[int], None]]]:
    """A progress bar for each policy, if there is a terminal to see them on."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    hidden = not sys.stderr.isatty()
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=hidden) as bars:
        ids = [bars.add_task(inert(label), total=total) for label in labels]
        yield lambda number: lambda jobs: bars.update(ids[number], completed=jobs)


# -- writing down -----------------------------------------------------------------------------


def _check_outputs(study: Study) -> None:
    """Before hours of simulation: whether what it writes could be written."""
    from gpu_flows.analytics.recorded_trace import is_warehouse

    if study.jobs_out and study.jobs_out.suffix not in (".csv", ".json"):
        raise BadInput(f"--jobs-out {study.jobs_out} must end in .csv or .json.")
    if study.charts and os.path.isfile(study.charts):
        raise BadInput(f"--charts {study.charts} is a file; name a folder.")
    chart = study.charts and study.charts / "turnaround.svg"
    for option, path in (("jobs-out", study.jobs_out), ("warehouse", study.warehouse), ("charts", chart)):
        if path:
            _try_to_write(option, path)
    if study.warehouse and study.warehouse.exists() and not is_warehouse(study.warehouse):
        raise BadInput(f"--warehouse {study.warehouse} is there already, and is no DuckDB file.")


def _try_to_write(option: str, path: Path) -> None:
    """Open the file as if to write it. Whatever that makes, folders too, is taken away again."""
    file = Path(os.path.realpath(path))  # a link is not ours to take away
    absent = [each for each in (file, *file.parents) if not os.path.exists(each)]
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.open("a").close()
    except OSError as error:
        raise BadInput(f"--{option}: {path} cannot be written: {error.strerror}.") from None
    finally:
        for made in filter(os.path.exists, absent):
            made.rmdir() if made.is_dir() else made.unlink()


def _check_warehouse(warehouse: Path, spool: str) -> None:
    """It may be a file that can be written and yet no warehouse of ours, or in use: load nothing into it."""
    try:
        _load(warehouse, spool)
    except Problem as problem:
        raise BadInput(problem.what, "Name another file, or try again.") from None


def _spool(found: Inputs, choice: Choice, simulation: Simulation, folder: str) -> None:
    """Leave the facts where `_load` finds them."""
    from gpu_flows.analytics import simulated_facts

    study = found.study
    title = study.trace.name.partition(".")[0] if study.trace else study.workload.partition(":")[0]
    experiment = simulated_facts.Experiment.of(title, _description(study), found.trace.arrivals)
    simulated_facts.spool_facts(
        Path(folder), simulated_facts.list_facts(simulation, choice.label, experiment, time.time())
    )


def _description(study: Study) -> dict[str, object]:
    """What was typed, as far as it makes a difference to whichever policy."""
    beside = {"policy", "jobs_out", "warehouse", "charts", "processes"}
    typed = {each.name: getattr(study, each.name) for each in fields(study) if each.name not in beside}
    typed["trace"] = study.trace.name if study.trace else None
    return {name: value for name, value in typed.items() if value not in (None, "")}


def _load(warehouse: Path, spool: str) -> None:
    """Bring what was left there into the warehouse."""
    from gpu_flows.analytics import simulated_facts
    from gpu_flows.analytics.warehouse import WarehouseError

    try:
        simulated_facts.load_spool(warehouse, Path(spool))
    except WarehouseError as error:
        what = re.split("[;.] facts wait", str(error), flags=re.IGNORECASE)[0]  # not these: they are gone
        raise Problem(f"{what}.") from None


def _write(found: Inputs, outcomes: Sequence[Outcome], spool: str) -> Iterator[str]:
    """Each of the outputs, whatever becomes of the others. Tells what could not be written, and why."""
    study = found.study
    by_policy = {each.label: outcome for each, outcome in zip(found.choices, outcomes, strict=True)}
    outputs: list[tuple[Path | None, Callable[[Path], None]]] = [
        (study.jobs_out, lambda path: _write_jobs(path, by_policy)),
        (study.charts, lambda path: _write_charts(path, by_policy)),
        (study.warehouse, lambda path: _load(path, spool)),
    ]
    for path, write in outputs:
        try:
            if path:
                write(path)
        except OSError as error:
            yield f"{error.filename or path} cannot be written: {error.strerror}."
        except Problem as problem:
            yield f"{problem.what} No facts were written."


def _write_jobs(path: Path, outcomes: Mapping[str, Outcome]) -> None:
    every = [(label, *row) for label, outcome in outcomes.items() for row in outcome.jobs]
    columns = ("policy", *ROW)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".json":
            json.dump([dict(zip(columns, row, strict=True)) for row in every], file, indent=1)
        else:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(map(_as_text, row) for row in every)


def _as_text(value: object) -> object:
    """What a cell of a CSV file holds: devices by blanks, and true or false as in JSON."""
    match value:
        case list():
            return " ".join(value)
        case bool():
            return str(value).lower()
        case _:
            return value


def _picture(label: str, simulation: Simulation, use: Use) -> Picture:
    from gpu_flows.analytics.charts.gantt_chart import draw_gantt_chart

    return Picture(turnarounds_s(simulation), use, draw_gantt_chart(label, simulation, use))


def _write_charts(folder: Path, outcomes: Mapping[str, Outcome]) -> None:
    from gpu_flows.analytics.charts.line_charts import draw_turnaround_chart, draw_utilization_chart

    pictures = {label: outcome.picture for label, outcome in outcomes.items() if outcome.picture}
    drawn = {
        "turnaround": draw_turnaround_chart({label: each.turnarounds for label, each in pictures.items()}),
        "utilization": draw_utilization_chart({label: each.use for label, each in pictures.items()}),
    }
    for number, (label, picture) in enumerate(pictures.items(), start=1):
        drawn[f"gantt-{number}-{re.sub(r'[^A-Za-z0-9.]+', '-', label)}"] = picture.gantt
    folder.mkdir(parents=True, exist_ok=True)
    for name, svg in drawn.items():
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
