"""What the benchmarks share: a private Prefect server, its API, medians, goals, and a tidy end."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from gpu_flows.bootstrap.local_stack import Stack, StackError

PATIENCE_S = 180.0  # a safety net for a slow machine, not an expectation


# -- figures ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """A handful of measurements, in short."""

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
    """A figure beside the most it may be."""

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


def conclude(goals: Sequence[Goal], details: dict[str, Any], file: Path | None) -> int:
    """Print the goals, keep everything in the file if one is named. The exit code."""
    print()
    for goal in goals:
        print(goal.text())
    if file:
        judged = [{**asdict(goal), "reached": goal.reached} for goal in goals]
        file.write_text(json.dumps({"goals": judged, **details}, indent=2) + "\n")
    return int(not all(goal.reached for goal in goals))


# -- the server -------------------------------------------------------------------------------


class Api:
    """The server's REST API. One that is busy (SQLite lets one writer in) is asked again."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=300)

    def get(self, path: str, **params: Any) -> Any:
        return self._ask("GET", path, params=params)

    def post(self, path: str, body: Any) -> Any:
        return self._ask("POST", path, json=body)

    def patch(self, path: str, body: Any) -> Any:
        return self._ask("PATCH", path, json=body)

    def _ask(self, method: str, path: str, **kwargs: Any) -> Any:
        while True:
            response = self._http.request(method, path, **kwargs)
            if response.status_code != 503:
                response.raise_for_status()
                return response.json() if response.content else None
            time.sleep(0.2)


@contextlib.contextmanager
def private_stack(cluster: str) -> Iterator[Stack]:
    """A server of our own in a folder of its own, with a gpu pool on that cluster but no worker
    yet. Leaving it stops everything it started and throws the folder away."""
    with (
        tempfile.TemporaryDirectory(prefix="gpu-flows-benchmark-", ignore_cleanup_errors=True) as folder,
        Stack(Path(folder), pool="benchmark") as stack,
    ):
        try:
            say("starting a private Prefect server")
            stack.start_server()
            stack.set_up(cluster)
            yield stack
        finally:
            tidy_undisturbed()


# -- running ----------------------------------------------------------------------------------


def arguments(description: str, runs: int, what: str) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=at_least_one, default=runs, metavar="N", help=what)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file too")
    return parser


def at_least_one(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 1 or more")
    return int(text)


def carry_out(benchmark: Callable[[], int]) -> None:
    """Run it and exit with its code. Ctrl-C and SIGTERM end it tidily, a failure in one line."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _interrupt)
    try:
        sys.exit(benchmark())
    except KeyboardInterrupt:
        sys.exit("Stopped; nothing is left running.")
    except (StackError, TimeoutError, httpx.HTTPError) as error:
        sys.exit(str(error) or repr(error))


def _interrupt(*_: object) -> None:
    tidy_undisturbed()
    raise KeyboardInterrupt


def tidy_undisturbed() -> None:
    """From here on only tidying up is left, and no impatient Ctrl-C may cut it short."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)


def wait_until(
    look: Callable[[], bool], what: str, patience_s: float = PATIENCE_S, every_s: float = 0.5
) -> None:
    """Look now and then, seldom enough not to be part of what is measured."""
    deadline = time.monotonic() + patience_s
    while not look():
        if time.monotonic() > deadline:
            raise TimeoutError(f"Still not so after {patience_s:.0f} s: {what}.")
        time.sleep(every_s)


def say(what: str) -> None:
    """Progress, kept apart from the figures."""
    print(f"... {what}", file=sys.stderr, flush=True)
