"""Fixtures of the tests with Docker: engines with images, a registry, a way to reach Prefect."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from docker_hosts.daemon import Daemon, can_run
from docker_hosts.images import bare_image, prefect_image
from docker_hosts.lossy_proxy import LossyProxy
from docker_hosts.registry import Registry, can_serve
from docker_hosts.relay import Relay
from environment import skip_or_fail

from gpu_flows.runtimes.docker import host_health

BARE, PREFECT = "bare:test", "prefect:test"


def need_engine() -> None:
    """Skip the test, with the reason, where no engine can run."""
    skip_or_fail(can_run())


@pytest.fixture(scope="session")
def engine() -> Iterator[Daemon]:
    """One engine with the bare image, for all the tests of this process."""
    need_engine()
    with Daemon() as daemon:
        bare_image(daemon.client(), BARE)
        yield daemon


@pytest.fixture
def clean_engine(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Check hosts often. Start without containers on the shared engine, which other tests may have left
    there, and leave none."""
    monkeypatch.setattr(host_health, "CHECK_INTERVAL_S", 0.3)
    if "engine" in request.fixturenames:
        request.getfixturevalue("engine").remove_containers()
    yield
    if "engine" in request.fixturenames:
        request.getfixturevalue("engine").remove_containers()


@pytest.fixture(scope="module")
def three_engines() -> Iterator[list[Daemon]]:
    """Three engines with the bare image, as three machines would have them."""
    need_engine()
    with ExitStack() as opened:
        daemons = [opened.enter_context(Daemon(f"engine-{number}")) for number in range(3)]
        for daemon in daemons:
            bare_image(daemon.client(), BARE)
        yield daemons


@pytest.fixture
def new_engine() -> Iterator[Callable[..., Daemon]]:
    """A function that starts engines with the bare image for one test, which may kill them."""
    need_engine()
    with ExitStack() as opened:

        def make(name: str = "engine", **how: object) -> Daemon:
            daemon = opened.enter_context(Daemon(name, **how))  # type: ignore[arg-type]
            bare_image(daemon.client(), BARE)
            return daemon

        yield make


@pytest.fixture(scope="session")
def prefect_engine(image_cache: Path) -> Iterator[Daemon]:
    """One engine with the bare image and an image for flows, for all the tests of this process."""
    need_engine()
    with Daemon("prefect-engine", in_memory=True) as daemon:
        bare_image(daemon.client(), BARE)
        prefect_image(daemon.client(), PREFECT, image_cache)
        yield daemon


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A private registry without images."""
    skip_or_fail(can_serve())
    with Registry(tmp_path_factory.mktemp("registry")) as opened:
        yield opened


@pytest.fixture
def lossy() -> Iterator[Callable[..., LossyProxy]]:
    """A function that puts a proxy which loses answers in front of an engine."""
    with ExitStack() as opened:

        def make(daemon: Daemon, probability: float, seed: int = 0) -> LossyProxy:
            listen = daemon.folder / f"lossy-{time.monotonic_ns()}.sock"
            return opened.enter_context(LossyProxy(listen, daemon.socket, probability, seed))

        yield make


@pytest.fixture(scope="session")
def image_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of built images, shared by all processes of a test run."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "images"


@pytest.fixture(scope="session")
def reachable() -> Iterator[Callable[[str, Daemon], str]]:
    """A function that turns a URL on this machine's loopback, such as `stack.api_url`, into one that
    containers of an engine can reach."""
    with ExitStack() as opened:
        relays: dict[tuple[int, str], Relay] = {}

        def make(url: str, daemon: Daemon) -> str:
            if not daemon.gateway:
                return url  # without a bridge, containers share the network of the machine
            parts = urlsplit(url)
            key = (parts.port or 80, daemon.gateway)
            if key not in relays:
                relays[key] = opened.enter_context(Relay(daemon.gateway, key[0]))
            return parts._replace(netloc=relays[key].address).geturl()

        yield make
