"""Shared code of all benchmarks: options, figures and goals, and a clean exit."""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from gpu_flows.bootstrap.local_stack import StackError
from gpu_flows.common import retry

if TYPE_CHECKING:
    from gpu_flows.analytics.figures.theme import Drawing

TIMEOUT_S = 180.0  # generous, for slow machines


# -- images -----------------------------------------------------------------------------------


def save_figure(folder: Path, name: str, title: str, drawing: Drawing) -> None:
    """Write a figure with its title as plotly JSON, which docs/make_images.py turns into an image."""
    figure, folder = drawing.figure, folder.resolve()
    top = (figure.layout.margin.t or 0) + 56
    figure.update_layout(
        title={
            "text": title,
            "subtitle": {"text": drawing.subtitle, "font": {"size": 13}},
            "x": 0.01,
            "y": 0.98,
            "yanchor": "top",
        },
        margin={"t": top},
        height=figure.layout.height + 56,
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(figure.to_json(engine="json") + "\n", encoding="utf-8")


# -- figures ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """Median, 90th percentile and range of some measurements."""

    median: float
    p90: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        ordered = sorted(values)
        p90 = ordered[min(len(ordered) - 1, round(0.9 * (len(ordered) - 1)))]
        return cls(statistics.median(ordered), p90, ordered[0], ordered[-1])

    def text(self, scale: float = 1.0, digits: int = 2) -> str:
        median, p90, least, most = (
            f"{value * scale:8.{digits}f}" for value in (self.median, self.p90, self.least, self.most)
        )
        return f"{median} {p90} {least} ..{most}"


SPREAD_HEADING = f"{'median':>8} {'p90':>8} {'min':>8} ..{'max':>8}"


@dataclass(frozen=True)
class Goal:
    """A measured figure and its upper limit."""

    what: str
    measured: float
    limit: float
    unit: str = ""

    @property
    def reached(self) -> bool:
        return self.measured <= self.limit

    def text(self) -> str:
        verdict = "reached" if self.reached else "MISSED"
        figures = f"{_short(self.measured):>5}{self.unit}   goal {_short(self.limit)}{self.unit}"
        return f"{self.what:<48}{figures:<28}{verdict}"


def _short(figure: float) -> str:
    return f"{figure:.0f}" if figure >= 10 else f"{figure:.2f}"


def report(goals: Sequence[Goal], details: dict[str, Any], file: Path | None) -> int:
    """Print the goals and write everything to the file, if one is given. Return the exit code."""
    print()
    for goal in goals:
        print(goal.text())
    if file:
        results = [{**asdict(goal), "reached": goal.reached} for goal in goals]
        file.write_text(json.dumps({"goals": results, **details}, indent=2) + "\n")
    return int(not all(goal.reached for goal in goals))


def write_between(path: Path, mark: str, lines: Sequence[str]) -> None:
    """Replace what is between the marks of that name in a Markdown file."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, found, rest = path.read_text().partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise SystemExit(f"{path} has no marks {begin} and {end}.")
    path.write_text("\n".join([before + begin, *lines, end + after]))


# -- running ----------------------------------------------------------------------------------


def make_parser(description: str, runs: int, what: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=positive_int, default=runs, metavar="N", help=what)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file too")
    return parser


def positive_int(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def seed_list(text: str) -> list[int]:
    """Return the seeds that a list of numbers and ranges names: `0-4,7`."""
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not (first.isdigit() and (last or first).isdigit()):
            raise argparse.ArgumentTypeError(f"{part!r} is neither a number nor a range such as 0-4")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def run_benchmark(benchmark: Callable[[], int]) -> None:
    """Run the benchmark and exit with its code. Clean up on Ctrl-C and SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        sys.exit(benchmark())
    except KeyboardInterrupt:
        sys.exit("Stopped; nothing is left running.")
    except (StackError, TimeoutError, httpx.HTTPError) as error:
        sys.exit(str(error) or repr(error))


def _interrupt(*_: object) -> None:
    ignore_interrupts()
    raise KeyboardInterrupt


def ignore_interrupts() -> None:
    """Ignore Ctrl-C and SIGTERM from now on, so that they cannot interrupt the clean-up."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def wait_until(
    condition: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S, every_s: float = 0.5
) -> None:
    """Wait until the condition holds. The default interval is long, not to disturb the measurement."""
    if not retry.wait_until(condition, timeout_s, every_s):
        raise TimeoutError(f"Not reached after {timeout_s:.0f} s: {what}.")


def log_progress(message: str) -> None:
    """Print progress to stderr, apart from the figures."""
    print(f"... {message}", file=sys.stderr, flush=True)
