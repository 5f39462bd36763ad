"""A training that is stopped on one Docker host and continues on another ends with exactly the weights of an
uninterrupted training."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from containers import CollectingSink, make_launch, make_runtime, wait_for
from docker_hosts.daemon import Daemon
from docker_hosts.images import python_image

from gpu_flows.blocks import ContainerRules, DockerHost
from gpu_flows.checkpoints import contract
from gpu_flows.runtimes.base import Launch, Mount
from gpu_flows.runtimes.docker.runtime import DockerRuntime

pytest.importorskip("torch", reason="needs gpu-flows[train]")
pytest_plugins = ["docker_hosts.fixtures"]
pytestmark = pytest.mark.slow

TRAINING = """
import hashlib, sys, time, torch
from gpu_flows.checkpoints import resumable

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters())
with resumable(model=model, optimizer=optimizer) as run:
    for step in run.steps(200):
        inputs = torch.randn(16, 8)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("step", step, flush=True)
        time.sleep(float(sys.argv[1]))
weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
print("weights", hashlib.sha256(weights).hexdigest(), flush=True)
"""
PACKAGES = Path(sysconfig.get_path("platlib"))
CHECKOUT = Path(__file__).parents[1]
LIBRARIES = f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}"  # further libraries that torch needs
INSIDE = {str(CHECKOUT): "/checkout", LIBRARIES: "/libraries"}
if PACKAGES.is_relative_to(CHECKOUT):  # no mount root may be within another
    PACKAGES_INSIDE = f"/checkout/{PACKAGES.relative_to(CHECKOUT)}"
else:
    PACKAGES_INSIDE = INSIDE[str(PACKAGES)] = "/packages"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the final weights of an uninterrupted training."""
    env = {
        **os.environ,
        "PYTHONPATH": str(CHECKOUT),
        contract.DIRECTORY: str(tmp_path_factory.mktemp("kept")),
    }
    command = [sys.executable, "-c", TRAINING, "0"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def engines(image_cache: Path) -> Iterator[dict[str, Daemon]]:
    """Two engines with Python, which listen on a socket and on tcp."""
    from docker_hosts.fixtures import need_engine  # pytest must be the first to import it, as a plugin

    need_engine()
    with ExitStack() as opened:
        found = {}
        for name in ("first", "second"):
            found[name] = opened.enter_context(Daemon(name, tcp=True, in_memory=True))
            python_image(found[name].client(), "python:test", image_cache)
        yield found


def training(checkpoints: Path) -> Launch:
    launch = make_launch(
        *("python", "-c", TRAINING, "0.02"),
        node="first",
        image="python:test",
        mounts=tuple(Mount(source, target, read_only=True) for source, target in INSIDE.items()),
        env={"PYTHONPATH": f"/checkout:{PACKAGES_INSIDE}", "LD_LIBRARY_PATH": "/libraries"},
        grace_s=20.0,
    )
    return replace(launch, checkpoints=str(checkpoints))


@pytest.mark.parametrize("reached_by", ["socket", "tcp"], ids=["mounted", "copied"])
def test_a_moved_training_ends_with_the_weights_of_an_uninterrupted_one(
    tmp_path: Path, engines: dict[str, Daemon], uninterrupted: str, reached_by: str
) -> None:
    tcp = reached_by == "tcp"
    hosts = [
        DockerHost(name=name, url=engine.tcp_url if tcp else engine.url, insecure=tcp, gpus=1)
        for name, engine in engines.items()
    ]
    (tmp_path / "checkpoints").mkdir()
    sink, launch = CollectingSink(), training(tmp_path / "checkpoints")

    async def move() -> None:
        rules = ContainerRules(mount_roots=list(INSIDE))
        runtime = make_runtime(tmp_path / "store", *hosts, sink=sink, rules=rules)
        await runtime.find()
        try:
            await _stop_after(20, runtime, sink, launch)
            device = replace(launch.devices[0], id="SIM-second-0", node="second")
            again = replace(launch, attempt=2, devices=(device,))
            end = await runtime.wait(await runtime.launch(again))
            assert end.exit_code == 0, sink.texts(launch)[-5:]
            runtime.forget(again)
        finally:
            await runtime.close()

    asyncio.run(move())
    assert sink.texts(launch)[-1] == uninterrupted
    events = [(entry.event, entry.attempt) for entry in contract.read_journal(tmp_path / "checkpoints")]
    assert ("left", 1) in events
    assert ("restored", 2) in events


async def _stop_after(steps: int, runtime: DockerRuntime, sink: CollectingSink, launch: Launch) -> None:
    attempt = await runtime.launch(launch)
    await wait_for(lambda: len(sink.texts(launch)) >= steps, "it trains")
    await runtime.stop(attempt, "reschedule")
    end = await runtime.wait(attempt)
    assert end.exit_code == contract.CHECKPOINTED, sink.texts(launch)[-5:]
    runtime.forget(launch)
