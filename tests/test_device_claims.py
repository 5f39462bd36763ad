"""Real GPUs belong to one pool at a time, on a machine and on a Docker host."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
from conftest import eventually
from nvml.standin import StandIn

from gpu_flows.devices import claims
from gpu_flows.devices.base import DeviceError
from gpu_flows.devices.claims import ClaimedDevices, Claims, HostClaims, MachineClaims
from gpu_flows.devices.nvml import NvmlDevices
from gpu_flows.schedulers.model import Node

pytest_plugins = ["nvml.fixtures"]


@pytest.fixture
def gpus(nvml: StandIn, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine with two GPUs that no other test has."""
    monkeypatch.setattr(claims, "CLAIM_AGAIN_S", 0.0)
    names = [f"GPU-{uuid4()}" for _ in range(2)]
    for name in names:
        nvml.add_gpu(uuid=name)
    return names


@pytest.fixture
def open_pool(nvml: StandIn) -> Iterator[Callable[..., ClaimedDevices]]:
    opened: list[ClaimedDevices] = []

    def make(
        pool: str, chosen: Claims | None = None, owner: str = "", only: Sequence[str] = ()
    ) -> ClaimedDevices:
        source = NvmlDevices("box", deadline_s=20.0, library=nvml.library)
        opened.append(ClaimedDevices(source, chosen or MachineClaims(owner or pool, pool), only))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def ids(nodes: list[Node] | None) -> list[str]:
    return [device.id for node in nodes or [] for device in node.devices]


def test_a_second_pool_gets_what_the_first_has_left(
    gpus: list[str], open_pool: Callable[..., ClaimedDevices]
) -> None:
    other = MachineClaims("other", "night")
    assert other.claim(gpus[0]) == ""
    second = open_pool("day")
    assert ids(second.nodes()) == gpus[1:]
    assert [reading.device_id for reading in second.read()] == gpus[1:]
    assert second.problem == "GPU 0 of box: used by pool 'night'."
    assert second.changed_nodes() is None
    other.release()
    second.read()
    assert ids(second.changed_nodes()) == gpus
    assert second.problem == ""


def test_a_pool_without_any_gpu_says_who_has_them(
    gpus: list[str], open_pool: Callable[..., ClaimedDevices]
) -> None:
    first, second = open_pool("night"), open_pool("day")
    assert ids(first.nodes()) == gpus
    with pytest.raises(DeviceError, match="GPU 0 of box, GPU 1 of box: used by pool 'night'"):
        second.nodes()


def test_two_pools_divide_the_gpus_of_a_machine(
    gpus: list[str], open_pool: Callable[..., ClaimedDevices]
) -> None:
    night, day = open_pool("night", only=["0"]), open_pool("day", only=[gpus[1]])
    for pool, own in ((night, gpus[:1]), (day, gpus[1:])):
        assert ids(pool.nodes()) == own
        assert [reading.device_id for reading in pool.read()] == own
        assert pool.problem == ""
    with pytest.raises(DeviceError, match="None of the GPUs 7 is on this machine"):
        open_pool("other", only=["7"]).nodes()


def test_pools_of_the_same_name_are_different(
    gpus: list[str], open_pool: Callable[..., ClaimedDevices]
) -> None:
    assert ids(open_pool("gpu", owner="server-1").nodes()) == gpus
    with pytest.raises(DeviceError, match="used by pool 'gpu'"):
        open_pool("gpu", owner="server-2").nodes()


def test_a_pool_keeps_its_gpus_while_its_cluster_block_is_applied_again(
    gpus: list[str], open_pool: Callable[..., ClaimedDevices]
) -> None:
    before, after = open_pool("day"), open_pool("day")
    before.nodes()
    assert ids(after.nodes()) == gpus
    before.close()
    assert MachineClaims("other", "night").claim(gpus[0]) == "pool 'day'"
    after.close()
    other = MachineClaims("other", "night")
    assert other.claim(gpus[0]) == ""
    other.release()


HOLDER = """
import sys, time
from gpu_flows.devices.claims import MachineClaims
print(repr(MachineClaims("killed", "night").claim(sys.argv[1])), flush=True)
time.sleep(600)
"""


def test_the_gpus_of_a_killed_worker_are_free_at_once(gpus: list[str]) -> None:
    worker = subprocess.Popen([sys.executable, "-c", HOLDER, gpus[0]], stdout=subprocess.PIPE, text=True)
    assert worker.stdout
    assert worker.stdout.readline() == "''\n"
    mine, standby = MachineClaims("other", "day"), MachineClaims("killed", "night")
    assert mine.claim(gpus[0]) == "pool 'night'"
    assert standby.claim(gpus[0]) == "", "another worker of the same pool"
    worker.kill()
    worker.wait()
    worker.stdout.close()
    assert standby.claim(gpus[0]) == ""
    assert mine.claim(gpus[0]) == "pool 'night'", "the standby has it now"
    standby.release()


LAUNCHER = """
import asyncio, sys
from pathlib import Path
from gpu_flows.devices.claims import MachineClaims, claims_of
from gpu_flows.runtimes.attempt_store import AttemptStore
from gpu_flows.runtimes.base import Launch
from gpu_flows.runtimes.process import ProcessRuntime
from gpu_flows.schedulers.model import Device, Job

folder, first, second = sys.argv[1:]
claims = MachineClaims("killed", "night")
assert not claims.claim(first) and not claims.claim(second)
line = ("sh", "-c", f"until test -e {folder}/go; do sleep 0.05; done")
launch = Launch(Job("a"), 1, "night", "fifo", 0.0, (Device(first, "node", 0),), line)
asyncio.run(ProcessRuntime(AttemptStore(Path(folder)), claims_of).launch(launch))
"""


def test_a_job_that_outlives_its_worker_keeps_its_gpu(gpus: list[str], tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", LAUNCHER, str(tmp_path), *gpus[:2]], check=True)
    other, successor = MachineClaims("other", "day"), MachineClaims("killed", "night")
    assert other.claim(gpus[1]) == "", "the other GPU of the worker, which has ended"
    assert other.claim(gpus[0]) == "pool 'night'"
    assert successor.claim(gpus[0]) == "", "the next worker of the pool may use it"
    (tmp_path / "go").touch()
    eventually(lambda: other.claim(gpus[0]) == "", "it is free after the job")
    other.release()


# -- Docker hosts -----------------------------------------------------------------------------


class FakeEngine:
    """The part of a Docker host that claims use."""

    def __init__(self) -> None:
        self.volumes: dict[str, dict[str, Any]] = {}
        self.running: list[dict[str, Any]] = []
        self.name, self.is_down = "box", False

    def call_blocking(self, request: Callable[[Any], Any], timeout_s: float) -> Any:
        if self.is_down:
            raise ConnectionError("no answer")
        return request(self)

    def create_volume(self, name: str, driver: str, options: None, labels: dict[str, str]) -> dict[str, Any]:
        return self.volumes.setdefault(name, {"Name": name, "Labels": labels})

    def remove_volume(self, name: str) -> None:
        del self.volumes[name]

    def containers(self, filters: dict[str, str]) -> list[dict[str, Any]]:
        return self.running


def host_claims(engine: FakeEngine, owner: str, pool: str) -> HostClaims:
    return HostClaims(cast(Any, engine), owner, pool)


def test_a_docker_host_remembers_which_pool_has_a_gpu(
    gpus: list[str], open_pool: Callable[..., ClaimedDevices]
) -> None:
    engine = FakeEngine()
    first = open_pool("night", host_claims(engine, "1", "night"))
    assert ids(first.nodes()) == gpus
    with pytest.raises(DeviceError, match=r"used by pool 'night' \(if that is gone, run `docker volume rm"):
        open_pool("day", host_claims(engine, "2", "day")).nodes()
    assert ids(open_pool("night", host_claims(engine, "1", "night")).nodes()) == gpus, "its next worker"


def test_the_claims_of_a_pool_end_with_its_worker_unless_its_jobs_go_on(gpus: list[str]) -> None:
    engine = FakeEngine()
    engine.running = [{"Labels": {"gpu-flows.installation": "1-and-more"}}]
    claimed = host_claims(engine, "1", "night")
    assert claimed.claim(gpus[0]) == ""
    claimed.release()
    assert len(engine.volumes) == 1
    engine.running = []
    claimed = host_claims(engine, "1", "night")
    assert claimed.claim(gpus[0]) == ""
    claimed.release()
    assert not engine.volumes


def test_a_worker_that_stands_by_does_not_free_the_gpus_of_its_pool(
    gpus: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, leads = FakeEngine(), True
    before = HostClaims(cast(Any, engine), "1", "night", lambda: leads)
    assert before.claim(gpus[0]) == ""
    leads = False
    monkeypatch.setattr(HostClaims, "_uses", Counter())  # the next worker is another process
    assert host_claims(engine, "1", "night").claim(gpus[0]) == ""
    monkeypatch.undo()
    before.release()
    assert "pool 'night'" in host_claims(engine, "2", "day").claim(gpus[0])


def test_a_gpu_of_a_host_that_does_not_answer_is_not_used(gpus: list[str]) -> None:
    engine = FakeEngine()
    engine.is_down = True
    assert host_claims(engine, "1", "night").claim(gpus[0]) == "an unknown pool (no answer)"
