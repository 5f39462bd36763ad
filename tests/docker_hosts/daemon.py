"""Real Docker engines for tests, each with its own socket, data root and bridge.

Many can run at the same time. The parts of an engine are found by its folder, bridge and cgroup, so `close`
removes all of them, even if dockerd was killed and its containers still run. The engines of a test run that
was killed are removed by the next run.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import docker
import psutil
from docker.errors import APIError, NotFound
from docker.tls import TLSConfig
from docker_hosts import leftovers
from docker_hosts.bridge import make_bridge, network_range, remove_bridge
from docker_hosts.certificates import Certificates, make_certificates
from environment import EnvironmentalFailure

from gpu_flows.blocks import DockerHost
from gpu_flows.bootstrap.local_stack import free_port
from gpu_flows.common.files import write_atomically

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
API_VERSION = "1.41"  # of Docker 20.10, the oldest that we run
CAP_SYS_ADMIN = 21
PREFIX = "gfd-"  # folders start with it; short, as a socket's path may have 107 characters only


class DaemonError(RuntimeError):
    """An engine did not start or stop; the message has the end of its log."""


def can_run() -> str:
    """Return why no engine can run here; empty if one can."""
    if sys.platform != "linux":
        return "Docker engines run on Linux only."
    if os.geteuid() != 0:
        return "A Docker engine needs root."
    needed = ("dockerd", "containerd", "containerd-shim-runc-v2", "runc", "busybox", "ip")
    missing = [name for name in needed if shutil.which(name, path=_search_path()) is None]
    if missing:
        return f"Not installed: {', '.join(missing)} (apt-get install docker.io busybox-static iproute2)."
    [capabilities] = [line for line in Path("/proc/self/status").read_text().splitlines() if "CapEff" in line]
    if not int(capabilities.split()[1], 16) >> CAP_SYS_ADMIN & 1:
        return "A Docker engine needs CAP_SYS_ADMIN: this is an unprivileged container."
    cgroups = Path("/sys/fs/cgroup")
    v2, v1 = cgroups / "cgroup.controllers", cgroups / "memory"
    if not (v2.exists() or v1.is_dir()):
        return "A Docker engine needs cgroups, and none are mounted."
    if not os.access(cgroups if v2.exists() else v1, os.W_OK):
        return "A Docker engine needs cgroups that it may write to."
    return ""


class Daemon:
    """One engine: a context manager that starts it, and removes all its parts at the end.

    `tls` and `tcp` open a second listener on 127.0.0.1; `path_prefix` is searched for executables (such as
    nvidia-container-runtime-hook) first; `runtimes` are added by name; `options` are passed on.
    `in_memory` keeps images and containers in memory: big images load many times faster, but what a container
    writes to its own file system counts as its memory. `shutdown_s` is how long dockerd waits for its
    containers when it stops.
    """

    def __init__(
        self,
        name: str = "engine",
        *,
        tls: bool = False,
        tcp: bool = False,
        path_prefix: Path | None = None,
        runtimes: Mapping[str, Path] | None = None,
        options: Sequence[str] = (),
        in_memory: bool = False,
        shutdown_s: int = 5,
    ) -> None:
        remove_abandoned()
        self.name = name
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self.socket = self.folder / "docker.sock"
        self.log = self.folder / "dockerd.log"
        self.cgroup = f"/{self.folder.name}"
        self.certificates: Certificates | None = make_certificates(self.folder / "tls") if tls else None
        self.port = free_port() if tls or tcp else 0
        self._path_prefix, self._runtimes = path_prefix, dict(runtimes or {})
        self._options, self._shutdown_s = tuple(options), shutdown_s
        self._process: subprocess.Popen[bytes] | None = None
        self._write_note()
        (self.folder / "data").mkdir()
        if in_memory:
            tmpfs = ["mount", "-t", "tmpfs", "-o", "mode=711", self.folder.name, f"{self.folder}/data"]
            subprocess.run(tmpfs, check=True)
        self.bridge, self.gateway = make_bridge()  # both empty where none can be made
        self._write_note()

    # -- addresses ----------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def tcp_url(self) -> str:
        """The address of the second listener; empty if there is none."""
        return f"tcp://127.0.0.1:{self.port}" if self.port else ""

    def client(self, timeout_s: int = 60) -> docker.DockerClient:
        return docker.DockerClient(base_url=self.url, timeout=timeout_s)

    def tcp_client(self, timeout_s: int = 60) -> docker.DockerClient:
        """Return a client of the second listener, with the client's certificate if it uses TLS."""
        files = self.certificates
        tls = TLSConfig((str(files.cert), str(files.key)), str(files.ca), verify=True) if files else False
        # The version is given because the client would ask for it, before trust_env can be turned off: a
        # REQUESTS_CA_BUNDLE in the environment replaces the authority given here.
        client = docker.DockerClient(base_url=self.tcp_url, tls=tls, timeout=timeout_s, version=API_VERSION)
        client.api.trust_env = False
        return client

    def settings(self, name: str = "host", **settings: Any) -> DockerHost:
        """Return the settings of a host with this engine and 4 devices."""
        return DockerHost(name=name, url=self.url, gpus=4, **settings)

    # -- containers and images ----------------------------------------------------------------

    def list_containers(self) -> dict[str, str]:
        """Return the ids of all containers, by name."""
        containers = self.client().containers.list(all=True, ignore_removed=True)
        return {container.name: container.id for container in containers}

    def remove_containers(self) -> None:
        """Remove all containers, and wait for those that are being removed already."""
        deadline = time.monotonic() + 60
        while containers := self.client().containers.list(all=True, ignore_removed=True):
            assert time.monotonic() < deadline, f"cannot be removed: {containers}"
            for container in containers:
                with suppress(NotFound, APIError):
                    container.remove(force=True, v=True)

    def inspect(self, container: str) -> dict[str, Any]:
        return dict(self.client().api.inspect_container(container))

    def commit_image(self, tag: str, *changes: str) -> str:
        """Create an image: the bare one with these changes, in the language of Dockerfiles."""
        container = self.client().containers.create("bare:test")
        container.commit(*tag.split(":"), changes=list(changes))
        container.remove()
        return tag

    # -- start and stop -----------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The process id of dockerd; 0 if it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    def start(self) -> None:
        """Start dockerd, or start it again, and wait until it answers."""
        assert not self.pid, f"{self.name} runs already"
        environment = {**os.environ, "PATH": _search_path(self._path_prefix)}
        # dockerd reads these variables of systemd and the client, which are not meant for it.
        for name in ("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "DOCKER_HOST"):
            environment.pop(name, None)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches only pytest, which then closes the engines
            )
        self._write_note()
        self._await_answer()

    def stop(self) -> None:
        """Stop like `systemctl stop docker`: first the containers, then dockerd and containerd."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Crash: kill dockerd and its containerd. The processes in containers go on running."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """Remove everything of this engine. May be called in any state, and repeatedly."""
        if self.pid:
            self.kill()
        _remove(self.folder)

    def __enter__(self) -> Daemon:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- internals ----------------------------------------------------------------------------

    def _command(self) -> list[str]:
        (self.folder / "daemon.json").write_text("{}")  # otherwise dockerd reads /etc/docker/daemon.json
        command = ["dockerd", "--config-file", f"{self.folder}/daemon.json", "--host", self.url]
        command += ["--data-root", f"{self.folder}/data", "--exec-root", f"{self.folder}/exec"]
        command += [
            "--pidfile",
            f"{self.folder}/dockerd.pid",
            "--storage-driver",
            storage_driver(self.folder),
        ]
        command += ["--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", self.cgroup]
        # Leave the firewall and routing of the machine unchanged: containers reach only the gateway.
        command += ["--bridge", self.bridge or "none", "--iptables=false", "--ip6tables=false"]
        command += ["--ip-forward=false", "--ip-masq=false"]
        if self.gateway:  # networks of tests must not overlap with those of other engines
            command += ["--default-address-pool", f"base={network_range(self.gateway)},size=28"]
        command += ["--shutdown-timeout", str(self._shutdown_s)]
        if self.port:
            command += ["--host", self.tcp_url]
        if self.certificates:
            files = self.certificates
            command += ["--tlsverify", "--tlscacert", str(files.ca)]
            command += ["--tlscert", str(files.server_cert), "--tlskey", str(files.server_key)]
        elif self.port:
            command += ["--tls=false"]  # without this option dockerd waits for 15 s, as a warning
        for name, path in self._runtimes.items():
            command += ["--add-runtime", f"{name}={path}"]
        return [*command, *self._options]

    def _await_answer(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                client = docker.DockerClient(base_url=self.url, timeout=5, version=API_VERSION)
                try:
                    client.ping()
                    return
                finally:
                    client.close()
            except Exception as error:
                if self._process is None or self._process.poll() is not None:
                    raise DaemonError(f"{self.name} ended as it started. {self._end_of_log()}") from error
                if time.monotonic() > deadline:
                    problem = f"{self.name} does not answer. {self._end_of_log()}"
                    raise EnvironmentalFailure(problem) from error
            time.sleep(0.02)

    def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        containerd = _find_containerd(process.pid)
        process.send_signal(how)
        try:
            process.wait(self._shutdown_s + STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise DaemonError(f"{self.name} does not stop. {self._end_of_log()}") from error
        leftovers.wait_for_end(containerd, STOP_TIMEOUT_S)  # it ends shortly after dockerd
        # By this file the next dockerd would take a zombie for a running containerd.
        (self.folder / "exec/containerd/containerd.pid").unlink(missing_ok=True)
        self._process = None

    def _end_of_log(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join([f"The end of {self.log}:", *lines[-25:]])

    def _write_note(self) -> None:
        """Record what the next test run must know to clean up if this one is killed."""
        note = {
            "owner": _identity(os.getpid()),
            "dockerd": _identity(self._process.pid) if self._process else None,
            "bridge": getattr(self, "bridge", ""),
        }
        write_atomically(self.folder / "note.json", json.dumps(note))


def storage_driver(folder: Path) -> str:
    """Return overlay2 if the file system allows it, else vfs. A trial mount decides, as there are several
    reasons why it may not work."""
    with tempfile.TemporaryDirectory(dir=folder) as trial:
        for name in ("lower", "upper", "work", "merged"):
            os.mkdir(f"{trial}/{name}")
        layers = f"lowerdir={trial}/lower,upperdir={trial}/upper,workdir={trial}/work"
        mount = ["mount", "-t", "overlay", "overlay", "-o", layers, f"{trial}/merged"]
        works = subprocess.run(mount, capture_output=True).returncode == 0
        if works:
            subprocess.run(["umount", f"{trial}/merged"], check=True)
    return "overlay2" if works else "vfs"


def remove_abandoned() -> None:
    """Remove the engines whose test run died before it could."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            owner = json.loads((folder / "note.json").read_text())["owner"]
        except (OSError, ValueError, KeyError):
            continue  # being created, or being removed by another run
        if _identity(owner[0]) != owner:
            _remove(folder)


def _remove(folder: Path) -> None:
    """Remove the processes, then the mounts, then the network and the files."""
    try:
        known = json.loads((folder / "note.json").read_text())
    except (OSError, ValueError):
        known = {}
    dockerd = known.get("dockerd")
    if dockerd and _identity(dockerd[0]) == dockerd:
        leftovers.kill([psutil.Process(dockerd[0]), *_find_containerd(dockerd[0])])
    leftovers.kill_shims(folder)
    leftovers.remove_cgroup(folder.name)
    bridges = {known.get("bridge", "")} | leftovers.bridges(folder)
    leftovers.unmount(folder)
    for bridge in bridges - {""}:
        remove_bridge(bridge)
    shutil.rmtree(folder, ignore_errors=True)


def _find_containerd(dockerd: int) -> list[psutil.Process]:
    try:
        return [p for p in psutil.Process(dockerd).children() if p.name() == "containerd"]
    except psutil.Error:
        return []


def _identity(pid: int) -> list[float] | None:
    """Return what distinguishes the process from a later one with the same id; None if it does not run."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else [pid, process.create_time()]
    except psutil.Error:
        return None


def _search_path(prefix: Path | None = None) -> str:
    """Return a search path with the sbin folders, where dockerd is."""

    def parts() -> Iterator[str]:
        if prefix is not None:
            yield str(prefix)
        yield os.environ.get("PATH", "")
        yield "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

    return ":".join(part for part in parts() if part)
