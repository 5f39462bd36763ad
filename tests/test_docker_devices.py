"""The GPUs of Docker hosts, read by a sampler container on each: NVML is a stand-in, the rest is real."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from conftest import eventually
from docker_hosts.daemon import Daemon
from docker_hosts.images import bare_image, python_image
from docker_hosts.lossy_proxy import LossyProxy
from nvml.standin import CONTROL_VARIABLE, StandIn

from gpu_flows.blocks import DockerHost
from gpu_flows.devices import container_probe
from gpu_flows.devices.base import DeviceError
from gpu_flows.devices.claims import HostClaims
from gpu_flows.devices.docker import DockerDevices
from gpu_flows.runtimes.docker.host import Host
from gpu_flows.runtimes.docker.tar import make_tar
from gpu_flows.schedulers.model import DeviceLink, LinkGroup

pytest_plugins = ["docker_hosts.fixtures", "nvml.fixtures"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def engine(
    nvml_library: Path, image_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Daemon]:
    """An engine with images that have two GPUs, Python without NVML, no Python, and a broken module."""
    from docker_hosts.fixtures import need_engine

    need_engine()
    control = tmp_path_factory.mktemp("nvml") / "nvml.txt"
    world = StandIn(nvml_library, control)
    world.add_gpu(uuid="GPU-a", name="NVIDIA H100", utilization=37, nvlink="1")
    world.add_gpu(uuid="GPU-b", name="NVIDIA H100", utilization=80, nvlink="0")
    with Daemon("gpus", in_memory=True) as daemon:
        client = daemon.client()
        bare_image(client, "bare:test")
        python_image(client, "python:test", image_cache)
        python_image(client, "library:test", image_cache, nvml_library)
        world_file = f"{CONTROL_VARIABLE}=/etc/nvml.txt"
        with_file(daemon, "library:test", "gpus", "etc/nvml.txt", control.read_bytes(), world_file)
        bad_luck = b"raise RuntimeError('no such luck')"
        with_file(daemon, "python:test", "broken", "broken/ctypes.py", bad_luck, "PYTHONPATH=/broken")
        yield daemon


def with_file(daemon: Daemon, image: str, new: str, path: str, content: bytes, variable: str) -> None:
    """Create an image with one more file and a variable."""
    made = daemon.client().containers.create(image)
    made.put_archive("/", make_tar({path: content}))
    made.commit(new, "test", changes=[f"ENV {variable}"])
    made.remove()


@pytest.fixture
def devices_of(engine: Daemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., DockerDevices]]:
    monkeypatch.setattr(container_probe, "RESTART_PAUSE_S", 0.2)
    opened: list[DockerDevices] = []

    def make(*hosts: DockerHost, image: str = "gpus:test") -> DockerDevices:
        opened.append(DockerDevices(map(Host, hosts), image, "tests", every_s=0.2))
        return opened[-1]

    yield make
    for each in opened:
        each.close()
    eventually(lambda: not samplers(engine), "no sampler is left")


def samplers(engine: Daemon) -> list[str]:
    return [each.name for each in engine.client().containers.list(all=True, ignore_removed=True)]


def test_a_host_reports_its_gpus_and_their_readings(
    engine: Daemon, devices_of: Callable[..., DockerDevices]
) -> None:
    devices = devices_of(DockerHost(name="gpu1", url=engine.url, rack="r2"))
    [node] = devices.nodes()
    assert (node.name, node.rack) == ("gpu1", "r2")
    assert [(device.id, device.model, device.node) for device in node.devices] == [
        ("GPU-a", "NVIDIA H100", "gpu1"),
        ("GPU-b", "NVIDIA H100", "gpu1"),
    ]
    assert node.links == (LinkGroup(DeviceLink.NVLINK, (0, 1)),)
    readings = devices.read()
    assert [(each.device_id, each.utilization, each.healthy) for each in readings] == [
        ("GPU-a", 37.0, True),
        ("GPU-b", 80.0, True),
    ]
    assert devices.changed_nodes() is None
    assert devices.problem == ""
    assert (node.cpus, node.ram_mb) == (psutil.cpu_count(), psutil.virtual_memory().total // 2**20)


def test_a_second_pool_does_not_get_the_gpus_of_the_first(
    engine: Daemon, devices_of: Callable[..., DockerDevices]
) -> None:
    devices_of(DockerHost(name="gpu1", url=engine.url)).nodes()
    host = Host(DockerHost(name="gpu1", url=engine.url))
    holder = HostClaims(host, "other", "day").claim("GPU-a")
    assert holder.startswith("pool ''")
    assert "docker volume rm gpu-flows-GPU-a" in holder


def test_the_sampler_has_no_network_and_no_privileges(
    engine: Daemon, devices_of: Callable[..., DockerDevices]
) -> None:
    devices_of(DockerHost(name="gpu1", url=engine.url)).nodes()
    [name] = samplers(engine)
    config = engine.client().api.inspect_container(name)["HostConfig"]
    assert (config["NetworkMode"], config["CapDrop"], config["Privileged"]) == ("none", ["ALL"], False)


def test_closing_removes_the_sampler(engine: Daemon, devices_of: Callable[..., DockerDevices]) -> None:
    devices = devices_of(DockerHost(name="gpu1", url=engine.url))
    devices.nodes()
    assert samplers(engine) == ["gf-sampler-tests-gpu1"]
    devices.close()
    eventually(lambda: not samplers(engine), "it is removed")


def test_a_removed_sampler_is_started_again(engine: Daemon, devices_of: Callable[..., DockerDevices]) -> None:
    devices = devices_of(DockerHost(name="gpu1", url=engine.url))
    devices.nodes()
    [before] = engine.client().containers.list(all=True, ignore_removed=True)
    before.remove(force=True)
    eventually(
        lambda: [
            each for each in engine.client().containers.list(ignore_removed=True) if each.id != before.id
        ],
        "it runs again",
    )
    eventually(lambda: all(each.healthy for each in devices.read()), "its readings arrive")


@pytest.mark.parametrize(
    ("image", "why"),
    [
        ("python:test", "Shared Library Not Found"),
        ("bare:test", "python3"),
        ("broken:test", "no such luck"),
        ("nothing:test", "No such image"),
    ],
)
def test_a_failing_sampler_states_the_reason(
    engine: Daemon, devices_of: Callable[..., DockerDevices], image: str, why: str
) -> None:
    devices = devices_of(DockerHost(name="gpu1", url=engine.url), image=image)
    with pytest.raises(DeviceError, match=why) as error:
        devices.nodes()
    assert "gpu1" in str(error.value)
    assert devices.read() == []


def test_a_host_that_answers_later_is_reported(
    engine: Daemon, devices_of: Callable[..., DockerDevices], tmp_path: Path
) -> None:
    socket = tmp_path / "late.sock"
    devices = devices_of(
        DockerHost(name="late", url=f"unix://{socket}"), DockerHost(name="declared", url=engine.url, gpus=2)
    )
    assert [node.name for node in devices.nodes()] == ["declared"]
    assert "late" in devices.problem
    assert devices.changed_nodes() is None
    socket.symlink_to(engine.socket)
    nodes = eventually(devices.changed_nodes, "it is reported")
    assert nodes
    assert [(node.name, len(node.devices)) for node in nodes] == [("late", 2), ("declared", 2)]
    assert devices.problem == ""
    assert len(devices.read()) == 4


def test_an_unreachable_host_has_unhealthy_devices(
    engine: Daemon, devices_of: Callable[..., DockerDevices], lossy: Callable[..., LossyProxy]
) -> None:
    proxy = lossy(engine, 0.0)
    devices = devices_of(DockerHost(name="gpu1", url=proxy.url))
    devices.nodes()
    proxy.close()
    eventually(lambda: not any(each.healthy for each in devices.read()), "they are unhealthy")
    assert "gpu1 does not answer" in devices.read()[0].detail
    devices.close()
    [left] = engine.client().containers.list(ignore_removed=True)  # it would end after its lifetime
    left.remove(force=True)
