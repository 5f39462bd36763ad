"""Reads the GPUs of a Docker host through a container there, so no port and no agent is needed.

The container runs the NVML script, which is copied into any image with Python, and prints one line of JSON
per snapshot. The lines arrive through Docker's log stream, so no other connection to the host is needed.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_flows.common.retry import Backoff
from gpu_flows.devices.probe import ProbeError
from gpu_flows.runtimes.docker.host import HEALTH_CHECK_S, Host, HostUnreachable

if TYPE_CHECKING:
    from docker import APIClient

    from gpu_flows.devices.nvml_probe import Answer, Event, GpuSnapshot

STALE_S = 10.0
FIRST_SNAPSHOT_S = 20.0
RESTART_PAUSE_S, LONGEST_PAUSE_S = 2.0, 60.0
LIFETIME_S = 3600  # the container then ends and is replaced, so that one without a worker does not stay
FOLDER = "run/gpu-flows"
FIX = "Set the probe image, and how the host gives containers its GPUs, in the cluster block."
COMMAND = ("python3", f"/{FOLDER}/nvml_probe.py")


class ContainerProbe:
    """A Probe. A thread keeps one sampler container running on the host and collects its snapshots."""

    def __init__(self, host: Host, image: str, owner: str, every_s: float) -> None:
        self._host, self._image, self._every_s = host, image, every_s
        self._stale_s = max(STALE_S, 3 * every_s)
        self._name = f"gf-sampler-{owner}-{host.name}"
        self._snapshots: list[GpuSnapshot] | None = None
        self._events: list[list[Event]] = []
        self._received_at = 0.0  # when the latest snapshot arrived
        self._has_answered = False  # whether the running container has printed an answer
        self._error = ProbeError(f"host {host.name} has not been read yet", "")
        self._lock = threading.Lock()
        self._answered = threading.Event()
        self._closed = threading.Event()
        threading.Thread(target=self._run, name=f"sampler-{host.name}", daemon=True).start()

    def read(self, wait_for_start: bool = False) -> list[GpuSnapshot]:
        if wait_for_start:
            self._answered.wait(FIRST_SNAPSHOT_S)
        with self._lock:
            if self._snapshots is None:
                raise self._error
            if (silent := time.monotonic() - self._received_at) > self._stale_s:
                raise ProbeError(
                    f"the sampler on host {self._host.name} has been silent for {silent:.0f} s", ""
                )
            # Events of snapshots that were not read are returned with the next one that is.
            unread, self._events = self._events, [[] for _ in self._snapshots]
            return [{**gpu, "events": events} for gpu, events in zip(self._snapshots, unread, strict=True)]

    def close(self) -> None:
        self._closed.set()
        # Not a daemon thread: the worker exits only after its samplers are removed.
        threading.Thread(target=self._remove, name=f"sampler-{self._host.name}-end").start()

    # -- in the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        from docker.errors import APIError

        backoff = Backoff(RESTART_PAUSE_S, factor=2, most_s=LONGEST_PAUSE_S)
        pauses = backoff.pauses()
        pause = next(pauses)
        while not self._closed.is_set():
            try:
                self._host.call_blocking(self._start)
                before = self._received_at
                self._host.call_blocking(self._follow, 2 * self._stale_s)
                if self._received_at > before:
                    pauses = backoff.pauses()
                else:
                    self._explain_silence()
                pause = next(pauses)
            except HostUnreachable as error:
                self._fail(f"host {self._host.name} does not answer ({error})", "")
            except APIError as error:
                self._fail(f"the sampler on host {self._host.name} does not start: {error.explanation}", FIX)
                pause = next(pauses)
            except Exception as error:  # this thread must survive, because only it restarts the sampler
                self._fail(f"the sampler on host {self._host.name} cannot be followed: {error!r}", "")
            self._closed.wait(pause)
        self._remove()  # `close` may have run while the container was being started

    def _explain_silence(self) -> None:
        """Report the last error output of a container that ended without an answer."""
        if self._has_answered:
            return
        last = self._host.call_blocking(lambda api: api.logs(self._name, stdout=False, stderr=True, tail=1))
        message = last.decode(errors="replace").strip() or "it ended without output"
        self._fail(f"the sampler on host {self._host.name} does not work: {message}", FIX)

    def _start(self, api: APIClient) -> None:
        from docker.types import LogConfig

        self._remove()
        self._has_answered = False
        gpus = _all_gpus(self._host)
        api.create_container(
            image=self._image,
            name=self._name,
            command=[*COMMAND, "--every", f"{self._every_s:g}", "--for", str(LIFETIME_S)],
            entrypoint=[],
            environment={"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"},
            labels={"gpu-flows.sampler": self._host.name},
            host_config=api.create_host_config(
                network_mode="none",
                cap_drop=["ALL"],
                security_opt=["no-new-privileges"],
                pids_limit=64,
                mem_limit=256 * 1024 * 1024,
                log_config=LogConfig(type=LogConfig.types.JSON, config={"max-size": "1m", "max-file": "2"}),
                device_requests=gpus,
            ),
        )
        api.put_archive(self._name, "/", _probe_files())
        api.start(self._name)

    def _follow(self, api: APIClient) -> None:
        """Read the output of the container until it ends."""
        line = b""
        for part in api.logs(self._name, stream=True, follow=True, stdout=True, stderr=False):
            line += part
            if line.endswith(b"\n"):  # a long line arrives in parts
                self._receive(line)
                line = b""
            if self._closed.is_set():
                return

    def _receive(self, line: bytes) -> None:
        try:
            answer: Answer = json.loads(line)
        except ValueError:
            return
        self._has_answered = True
        if "gpus" not in answer:
            reason = f"NVML on host {self._host.name} failed: {answer.get('error', '')}"
            self._fail(reason, answer.get("fix", ""))
            return
        with self._lock:
            self._snapshots, self._received_at = answer["gpus"], time.monotonic()
            same_gpus = len(self._events) == len(self._snapshots)
            unread = self._events if same_gpus else [[] for _ in self._snapshots]
            self._events = [old + gpu["events"] for old, gpu in zip(unread, self._snapshots, strict=True)]
        self._answered.set()

    def _fail(self, reason: str, fix: str) -> None:
        with self._lock:
            self._error, self._snapshots = ProbeError(reason, fix), None
        self._answered.set()

    def _remove(self) -> None:
        from docker.errors import APIError

        with suppress(HostUnreachable, APIError):
            self._host.call_blocking(lambda api: api.remove_container(self._name, force=True), HEALTH_CHECK_S)


def _all_gpus(host: Host) -> list[Any] | None:
    """Return a Docker request for all GPUs, in the way this host provides them."""
    from docker.types import DeviceRequest

    access = host.gpu_access()
    if access == "nvidia":
        return [DeviceRequest(driver="nvidia", count=-1, capabilities=[["gpu", "utility"]])]
    if access == "cdi":
        return [DeviceRequest(driver="cdi", device_ids=["nvidia.com/gpu=all"])]
    return None


def _probe_files() -> bytes:
    """Return an archive with the script and pynvml, the only module it needs beside the standard library."""
    import pynvml

    from gpu_flows.runtimes.docker.tar import make_tar

    here = Path(__file__).parent
    files = {
        f"{FOLDER}/nvml_probe.py": (here / "nvml_probe.py").read_bytes(),
        f"{FOLDER}/pynvml.py": Path(pynvml.__file__).read_bytes(),
    }
    return make_tar(files, {FOLDER: 0o755})
