"""The project's own image, built with `make image`, without a network, from the files of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path

import pytest
from conftest import eventually
from docker_hosts.daemon import Daemon
from docker_hosts.images import CHECKOUT
from live import Pool

from gpu_flows.blocks import DockerHost
from gpu_flows.bootstrap.local_stack import Stack
from gpu_flows.devices.container_probe import ContainerProbe
from gpu_flows.devices.probe import ProbeError
from gpu_flows.runtimes.docker.host import Host

pytest_plugins = ["docker_hosts.fixtures"]
pytestmark = pytest.mark.slow

PREFECT, TAG = "prefect:test", "gpu-flows:test"
# A typical base image: Python with pip, and all requirements of gpu-flows but not gpu-flows. There is no
# package index, so pip builds the wheel with the base's setuptools and finds every requirement installed.
BASE = """
FROM {image}
RUN rm -rf {packages}/gpu_flows*
COPY packages {packages}
ENV PIP_NO_INDEX=1 PIP_NO_BUILD_ISOLATION=0
"""


@pytest.fixture(scope="module")
def image(prefect_engine: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Build the image, and return a function that runs a command in it and returns what it printed."""
    if not shutil.which("docker") or not shutil.which("make"):
        pytest.skip("`make image` needs make and the docker command")
    environment = {**os.environ, "DOCKER_HOST": prefect_engine.url, "DOCKER_BUILDKIT": "0"}
    context = tmp_path_factory.mktemp("base")
    for name in ("pip", "setuptools", "scipy", "nvidia-ml-py"):
        for entry in distribution(name).files or ():
            if ".." not in entry.parts and "tests" not in entry.parts and entry.suffix != ".pyc":
                target = context / "packages" / entry
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(entry.locate()), target)
    binary = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    packages = subprocess.run(
        [binary, "-c", "import site; print(site.getsitepackages()[0])"], capture_output=True, text=True
    ).stdout.strip()
    (context / "Dockerfile").write_text(BASE.format(image=PREFECT, packages=packages))

    def run(*command: str, **how: str) -> str:
        done = subprocess.run(
            command, env=environment, cwd=how.get("cwd"), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout.strip()

    run("docker", "build", "-q", "-t", "base:test", str(context))
    run("make", "image", "BASE=base:test", f"TAG={TAG}", "EXTRAS=", "ARGS=", cwd=str(CHECKOUT))
    return lambda *command: run("docker", "run", "--rm", "--network=none", TAG, *command)


def test_the_image_has_an_unprivileged_user_and_no_build_files(image: Callable[..., str]) -> None:
    assert image("id", "-u") == "10001"
    assert image("sh", "-c", "touch ~/here; pwd; ls -A ~") == "/home/gpu-flows\nhere"
    assert image("sh", "-c", "ls -A /tmp; ls -d /checkout /root/.cache 2>/dev/null || true") == ""
    assert "gpu_flows" in image("python", "-c", "import gpu_flows.flows.train as t; print(t.__file__)")
    assert image("python3", "-c", "import os; print(os.access('/etc', os.W_OK))") == "False"


def test_the_image_works_as_probe_image(image: Callable[..., str], prefect_engine: Daemon) -> None:
    probe = ContainerProbe(Host(DockerHost(name="one", url=prefect_engine.url)), TAG, "test", 1.0)
    try:
        with pytest.raises(ProbeError, match="NVML on host one failed"):  # it ran without a driver
            probe.read(wait_for_start=True)
    finally:
        probe.close()


def test_a_flow_runs_in_the_image(
    image: Callable[..., str],
    new_stack: Callable[..., Stack],
    prefect_engine: Daemon,
    reachable: Callable[[str, Daemon], str],
) -> None:
    stack = new_stack("", hosts=[f"one={prefect_engine.url},gpus=2"])
    pool = Pool(stack)
    pool.use_rules(api_url=reachable(stack.api_url, prefect_engine))
    run = pool.submit("id -u; echo $GPU_FLOWS_GPUS", image=TAG, pull="never", gpus=2)
    ended = pool.until(run, "Completed", "Failed", "Crashed", "Refused")
    assert ended["state"]["name"] == "Completed", (ended["state"], pool.logs(run))
    eventually(lambda: {"10001", "2"} <= set(pool.logs(run).splitlines()), "the output is in the run's logs")
