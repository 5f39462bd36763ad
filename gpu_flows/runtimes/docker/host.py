"""One Docker host: how it is reached, and in whose threads it is talked to.

Docker's client blocks, and a host that has gone away blocks it for long. So every host has threads of
its own, and no host keeps another waiting.
"""

from __future__ import annotations

import asyncio
import io
import os
import struct
import tarfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from gpu_flows.blocks.docker import DockerHost

if TYPE_CHECKING:  # the library is loaded when the first host is asked
    from docker import APIClient

T = TypeVar("T")
Access = Literal["nvidia", "cdi", "variable"]

CALL_S, PULSE_S, CONNECT_S = 60.0, 5.0, 10.0
KNOWN_API = "1.50"  # the newest version of Docker's API that this is written for
AT_ONCE = 8  # calls to one host, and longer works


class HostAway(Exception):
    """The host did not answer. What was asked of it may or may not have happened."""


class Host:
    def __init__(self, settings: DockerHost) -> None:
        self.settings = settings
        self.name = settings.name
        self._clients: dict[float, APIClient] = {}  # by how long they wait for an answer
        self._callers = ThreadPoolExecutor(AT_ONCE, thread_name_prefix=f"docker-{self.name}")
        self._workers = ThreadPoolExecutor(AT_ONCE, thread_name_prefix=f"docker-{self.name}-long")
        self._info: dict[str, Any] | None = None

    def api(self, timeout_s: float = CALL_S) -> APIClient:
        """A client that waits so long for an answer; connects if need be, and then two threads may both do
        so: neither waits for the other, as the host may be away. To be called in a thread."""
        client = self._clients.get(timeout_s)
        return client or self._clients.setdefault(timeout_s, connect(self.settings, timeout_s))

    def ask(self, question: Callable[[APIClient], T], timeout_s: float = CALL_S) -> T:
        """The host's answer; HostAway if there is none. Docker's own errors pass. Blocks."""
        from docker.errors import APIError, DockerException
        from requests.exceptions import RequestException
        from urllib3.exceptions import HTTPError

        # A stream that breaks off is told of by whoever was reading: requests, urllib3 or docker itself.
        broken = (RequestException, DockerException, HTTPError, HTTPException, OSError, struct.error)
        try:
            return question(self.api(timeout_s))
        except APIError as error:
            if error.status_code is not None and error.status_code >= 502:  # a proxy before it
                raise HostAway(_in_a_line(error)) from error
            raise
        except broken as error:
            raise HostAway(_in_a_line(error)) from error

    async def call(self, question: Callable[[APIClient], T], timeout_s: float = CALL_S) -> T:
        """`ask`, in one of the host's threads."""
        ask = partial(self.ask, question, timeout_s)
        return await asyncio.get_running_loop().run_in_executor(self._callers, ask)

    async def run(self, work: Callable[[], T]) -> T:
        """Work that may block on this host for long, such as to pull an image; no call waits for it."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, work)

    def info(self) -> dict[str, Any]:
        """What the engine says of itself; asked once. Blocks."""
        if self._info is None:
            self._info = dict(self.ask(lambda api: api.info()))
        return self._info

    def gpu_access(self) -> Access:
        """How containers get at this host's GPUs: as its settings say, else by what it offers. Blocks."""
        if self.settings.gpu_access != "auto":
            return self.settings.gpu_access
        info = self.info()
        found = (str(device.get("ID", "")) for device in info.get("DiscoveredDevices") or ())
        if any(name.startswith("nvidia.com/gpu=") for name in found):
            return "cdi"
        return "nvidia" if "nvidia" in (info.get("Runtimes") or {}) else "variable"

    def has_init(self) -> bool:
        """Whether the engine brings a small first process, which reaps zombies and passes signals on."""
        known = self.info().get("InitCommit") or {"ID": "N/A"}
        return str(known.get("ID", "")) != "N/A"  # empty: it does not say which it is

    def forget_info(self) -> None:
        """It went away and may come back another."""
        self._info, self._clients = None, {}

    def close(self) -> None:
        for threads in (self._callers, self._workers):
            threads.shutdown(wait=False, cancel_futures=True)
        for client in list(self._clients.values()):
            client.close()


def connect(host: DockerHost, timeout_s: float) -> APIClient:
    """A client for the host. Asks it at once which version it speaks."""
    first = _client(host, KNOWN_API, min(timeout_s, CONNECT_S))
    try:
        spoken = str(first.version(api_version=False)["ApiVersion"])
    finally:
        first.close()
    known = min(spoken, KNOWN_API, key=lambda version: [int(part) for part in version.split(".")])
    return _client(host, known, timeout_s)


def _client(host: DockerHost, version: str, timeout_s: float) -> APIClient:
    from docker import APIClient
    from docker.tls import TLSConfig

    class Client(APIClient):
        def _disable_socket_timeout(self, socket: Any) -> None:
            """Docker's client would wait for ever on a stream whose other end has vanished."""

    tls: TLSConfig | bool = False
    if host.tls_directory:
        folder = Path(host.tls_directory).expanduser()
        tls = TLSConfig(
            client_cert=(str(folder / "cert.pem"), str(folder / "key.pem")),
            ca_cert=str(folder / "ca.pem"),
            verify=True,
        )
    over_ssh = host.url.startswith("ssh:")
    client = Client(
        "http://docker:80" if over_ssh else host.url or _local_engine(),
        version=version,
        timeout=timeout_s,  # type: ignore[arg-type]
        tls=tls,
        max_pool_size=AT_ONCE,
    )
    client.trust_env = False  # a REQUESTS_CA_BUNDLE in the environment would replace the host's own CA
    if over_ssh:
        from gpu_flows.runtimes.docker.ssh import SshAdapter

        client.mount("http://", SshAdapter(host.url, timeout_s, AT_ONCE))
    return client


def _local_engine() -> str:
    """This machine's. One that DOCKER_HOST names elsewhere is not: links would be followed on the wrong
    machine, so it has to be listed as what it is."""
    named = os.environ.get("DOCKER_HOST", "")
    return named if named.startswith("unix:") else "unix:///var/run/docker.sock"


def archive(
    files: Mapping[str, bytes],
    folders: Iterable[str] = (),
    secret: Mapping[str, tuple[int, int]] | None = None,
) -> bytes:
    """A tar of these files (paths without a leading slash). Those in `secret` are for their owner's eyes."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for folder in folders:
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o444
            if secret and path in secret:
                entry.mode, (entry.uid, entry.gid) = 0o400, secret[path]
            tar.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def _in_a_line(error: BaseException) -> str:
    """The innermost cause is what people understand: connection refused, no such file ..."""
    while cause := error.__cause__ or (None if error.__suppress_context__ else error.__context__):
        error = cause
    return " ".join(str(error).split())[:300] or type(error).__name__
