"""Reads the GPUs of a Docker host through a container there: no port to open, no agent to install.

The container runs our NVML probe, which is put into any image with Python, and prints one line of JSON
per look. The lines come over Docker's log stream, which whoever may run containers can read anyhow.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_flows.devices.process_probe import ProbeError
from gpu_flows.runtimes.docker.host import PULSE_S, Host, HostAway

if TYPE_CHECKING:
    from docker import APIClient

    from gpu_flows.devices.nvml_probe import Answer, Event, GpuSnapshot

STALE_S = 10.0
FIRST_LOOK_S = 20.0
AGAIN_S, LONGEST_PAUSE_S = 2.0, 60.0
LIFETIME_S = 3600  # after which it ends and is made anew: one whose worker is gone does not stay
FOLDER = "run/gpu-flows"
FIX = "Set the probe image, and how the host gives containers its GPUs, in the cluster block."
PROBE = ("python3", f"/{FOLDER}/nvml_probe.py")


class ContainerProbe:
    """A Probe. Its thread keeps one sampler container running on the host."""

    def __init__(self, host: Host, image: str, owner: str, every_s: float) -> None:
        self._host, self._image, self._every_s = host, image, every_s
        self._stale_s = max(STALE_S, 3 * every_s)
        self._name = f"gf-sampler-{owner}-{host.name}"
        self._looks: list[GpuSnapshot] | None = None
        self._events: list[list[Event]] = []
        self._seen = 0.0  # when it last told of GPUs
        self._told = False  # whether it told anything since it was started
        self._trouble = ProbeError(f"host {host.name} has not been asked yet", "")
        self._lock = threading.Lock()
        self._answered = threading.Event()
        self._closed = threading.Event()
        threading.Thread(target=self._run, name=f"sampler-{host.name}", daemon=True).start()

    def look(self, patient: bool = False) -> list[GpuSnapshot]:
        if patient:
            self._answered.wait(FIRST_LOOK_S)
        with self._lock:
            if self._looks is None:
                raise self._trouble
            if (silent := time.monotonic() - self._seen) > self._stale_s:
                raise ProbeError(
                    f"the sampler on host {self._host.name} has been silent for {silent:.0f} s", ""
                )
            # What happened between two looks is told with the next one that is asked for.
            told, self._events = self._events, [[] for _ in self._looks]
            return [{**gpu, "events": events} for gpu, events in zip(self._looks, told, strict=True)]

    def close(self) -> None:
        self._closed.set()
        # Not a daemon: a worker that ends waits a moment until its samplers are gone.
        threading.Thread(target=self._remove, name=f"sampler-{self._host.name}-end").start()

    # -- in its thread ------------------------------------------------------------------------

    def _run(self) -> None:
        from docker.errors import APIError

        pause = AGAIN_S
        while not self._closed.is_set():
            try:
                self._host.ask(self._start)
                looked = self._seen
                self._host.ask(self._follow, 2 * self._stale_s)
                if self._seen == looked:
                    self._explain_silence()
                pause = AGAIN_S if self._seen > looked else min(2 * pause, LONGEST_PAUSE_S)
            except HostAway as error:
                self._fail(f"host {self._host.name} does not answer ({error})", "")
            except APIError as error:
                self._fail(f"the sampler on host {self._host.name} does not start: {error.explanation}", FIX)
                pause = min(2 * pause, LONGEST_PAUSE_S)
            except Exception as error:  # whatever it is: nobody else would start the sampler again
                self._fail(f"the sampler on host {self._host.name} cannot be followed: {error!r}", "")
            self._closed.wait(pause)
        self._remove()  # it may have been started just as it was closed

    def _explain_silence(self) -> None:
        """It ended without a look at the GPUs: unless it said why, by what it printed last."""
        if self._told:
            return
        last = self._host.ask(lambda api: api.logs(self._name, stdout=False, stderr=True, tail=1))
        words = last.decode(errors="replace").strip() or "it ended without a word"
        self._fail(f"the sampler on host {self._host.name} does not work: {words}", FIX)

    def _start(self, api: APIClient) -> None:
        from docker.types import LogConfig

        self._remove()
        self._told = False
        gpus = _all_gpus(self._host)
        api.create_container(
            image=self._image,
            name=self._name,
            command=[*PROBE, "--every", f"{self._every_s:g}", "--for", str(LIFETIME_S)],
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
        """Take its lines until it ends."""
        line = b""
        for part in api.logs(self._name, stream=True, follow=True, stdout=True, stderr=False):
            line += part
            if line.endswith(b"\n"):  # a long one comes in parts
                self._take(line)
                line = b""
            if self._closed.is_set():
                return

    def _take(self, line: bytes) -> None:
        try:
            answer: Answer = json.loads(line)
        except ValueError:
            return
        self._told = True
        if "gpus" not in answer:
            why = f"NVML on host {self._host.name} failed: {answer.get('error', '')}"
            self._fail(why, answer.get("fix", ""))
            return
        with self._lock:
            self._looks, self._seen = answer["gpus"], time.monotonic()
            untold = self._events if len(self._events) == len(self._looks) else [[] for _ in self._looks]
            self._events = [before + gpu["events"] for before, gpu in zip(untold, self._looks, strict=True)]
        self._answered.set()

    def _fail(self, why: str, fix: str) -> None:
        with self._lock:
            self._trouble, self._looks = ProbeError(why, fix), None
        self._answered.set()

    def _remove(self) -> None:
        from docker.errors import APIError

        with suppress(HostAway, APIError):
            self._host.ask(lambda api: api.remove_container(self._name, force=True), PULSE_S)


def _all_gpus(host: Host) -> list[Any] | None:
    """A request for every GPU of the host, as it offers them."""
    from docker.types import DeviceRequest

    access = host.gpu_access()
    if access == "nvidia":
        return [DeviceRequest(driver="nvidia", count=-1, capabilities=[["gpu", "utility"]])]
    if access == "cdi":
        return [DeviceRequest(driver="cdi", device_ids=["nvidia.com/gpu=all"])]
    return None


def _probe_files() -> bytes:
    """The probe, and the one module beyond Python's own that it needs."""
    import pynvml

    from gpu_flows.runtimes.docker.host import archive

    here = Path(__file__).parent
    files = {
        f"{FOLDER}/nvml_probe.py": (here / "nvml_probe.py").read_bytes(),
        f"{FOLDER}/pynvml.py": Path(pynvml.__file__).read_bytes(),
    }
    return archive(files, (FOLDER,))
