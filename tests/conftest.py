"""One real Prefect server for the whole run, and stacks with workers of their own on top of it."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

# Nothing of the person who runs the tests is read or touched. Set before Prefect is imported.
_HOME = tempfile.TemporaryDirectory(prefix="gpu-flows-tests-")
for _name in [name for name in os.environ if name.startswith(("PREFECT_", "GPU_FLOWS_"))]:
    del os.environ[_name]
os.environ.update(
    PREFECT_HOME=f"{_HOME.name}/prefect",
    PREFECT_SERVER_ANALYTICS_ENABLED="false",
    GPU_FLOWS_HOME=f"{_HOME.name}/gpu-flows",
)

from gpu_flows.bootstrap.local_stack import Stack  # noqa: E402

T = TypeVar("T")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow tests first, so that two processes end at about the same time."""
    items.sort(key=lambda item: "test_live_crash" not in item.nodeid and not item.get_closest_marker("slow"))


@pytest.fixture(scope="session")
def server() -> Iterator[Stack]:
    """A private Prefect server with our plugin in it."""
    with Stack(Path(_HOME.name) / "server") as stack:
        stack.start_server()
        yield stack


@pytest.fixture
def new_stack(server: Stack, tmp_path: Path) -> Iterator[Callable[..., Stack]]:
    """Makes stacks on the shared server, each with a pool and a home of its own. What they started
    is gone when the test ends."""
    with ExitStack() as opened:

        def make(cluster: str = "1x4:GTX 1080 Ti:11", worker: bool = True, **docker: Any) -> Stack:
            pool = f"pool-{time.time_ns()}"
            stack = Stack(tmp_path / pool, pool=pool, api_url=server.api_url)
            opened.callback(stack.stop_jobs)
            opened.enter_context(stack)
            stack.set_up(cluster, blocks=pool, **docker)
            if worker:
                stack.start_worker()
            return stack

        yield make


def eventually(look: Callable[[], T], what: str, patience_s: float = 90.0) -> T:
    """The first truthy answer. Patience is a safety net for a slow machine, not an expectation."""
    deadline = time.monotonic() + patience_s
    while True:
        answer = look()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"still not so after {patience_s:.0f} s: {what}")
        time.sleep(0.1)
