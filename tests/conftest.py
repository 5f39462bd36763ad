"""One Prefect server for the whole test session, and stacks with their own pools and workers on it."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

# The tests neither read nor change the user's own files and settings. Set before Prefect is imported.
_HOME = tempfile.TemporaryDirectory(prefix="gpu-flows-tests-")
for _name in [name for name in os.environ if name.startswith(("PREFECT_", "GPU_FLOWS_"))]:
    del os.environ[_name]
os.environ.update(
    PREFECT_HOME=f"{_HOME.name}/prefect",
    PREFECT_SERVER_ANALYTICS_ENABLED="false",
    GPU_FLOWS_HOME=f"{_HOME.name}/gpu-flows",
)

# A shell that runs the tests in the background lets them ignore SIGINT, and all they start would inherit it:
# workers stop by this signal.
signal.signal(signal.SIGINT, signal.default_int_handler)

from environment import EnvironmentalFailure  # noqa: E402
from quick_stack import QuickStack  # noqa: E402

from gpu_flows.bootstrap.local_stack import Stack, StackTimeout  # noqa: E402
from gpu_flows.common.retry import wait_until  # noqa: E402

T = TypeVar("T")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    again = terminalreporter.stats.get("rerun", [])
    if again:
        terminalreporter.section(f"{len(again)} run again, because a server, engine or browser did not start")
        for report in again:
            terminalreporter.line(report.nodeid)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run long tests first, then slow ones, so that parallel test processes end at about the same time."""
    marks = ("long", "slow")
    items.sort(
        key=lambda item: next((i for i, m in enumerate(marks) if item.get_closest_marker(m)), len(marks))
    )


@pytest.fixture(scope="session")
def server() -> Iterator[Stack]:
    """A private Prefect server with the gpu-flows plugin."""
    with Stack(Path(_HOME.name) / "server") as stack:
        start_server(stack)
        yield stack


def start_server(stack: Stack) -> None:
    try:
        stack.start_server()
    except StackTimeout as error:
        raise EnvironmentalFailure(str(error)) from error


@pytest.fixture
def new_stack(server: Stack, tmp_path: Path) -> Iterator[Callable[..., Stack]]:
    """A function that creates stacks on the shared server, each with its own pool and home. Everything they
    started is stopped when the test ends."""
    with stacks(server, tmp_path) as make:
        yield make


@pytest.fixture(scope="module")
def new_shared_stack(
    server: Stack, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Stack]]:
    """The same for stacks that the tests of a file share."""
    with stacks(server, tmp_path_factory.mktemp("stacks")) as make:
        yield make


@contextmanager
def stacks(server: Stack, folder: Path) -> Iterator[Callable[..., Stack]]:
    with ExitStack() as cleanup:

        def make(cluster: str = "1x4:GTX 1080 Ti:11", worker: bool = True, **docker: Any) -> Stack:
            pool = f"pool-{time.time_ns()}"
            stack = QuickStack(folder / pool, pool=pool, api_url=server.api_url)
            cleanup.callback(stack.stop_jobs)
            cleanup.enter_context(stack)
            stack.set_up(cluster, blocks=pool, **docker)
            if worker:
                stack.start_worker()
            return stack

        yield make


def eventually(look: Callable[[], T], what: str, patience_s: float = 90.0) -> T:
    """Return the first true value. The time limit only has to be long enough for a slow machine."""
    value = wait_until(look, patience_s)
    assert value, f"still not true after {patience_s:.0f} s: {what}"
    return value
