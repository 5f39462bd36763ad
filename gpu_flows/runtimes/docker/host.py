"""One Docker host: the connection to its engine, and the threads that call it.

Docker's client blocks, for a long time if the host does not answer. So every host has its own threads,
and a slow host never delays the calls to another one.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from gpu_flows.blocks.docker import DockerHost
from gpu_flows.common.retry import Backoff, retry_blocking

if TYPE_CHECKING:  # the library takes long to import; it is loaded with the first call
    from docker import APIClient

T = TypeVar("T")
GpuAccess = Literal["nvidia", "cdi", "variable"]

CALL_S, HEALTH_CHECK_S, CONNECT_S = 60.0, 5.0, 10.0
INSTALLATION = "gpu-flows.installation"  # the label that names the pool of a container
NEWEST_API = "1.50"  # the newest version of Docker's API that this code was written for
THREADS = 8  # calls at the same time to one host; as many again for long operations
BACKOFF = Backoff(first_s=0.05, factor=3.0, most_s=2.0, attempts=6)


class HostUnreachable(Exception):
    """The host did not answer. The request may or may not have been carried out."""


class Host:
    """Calls one host's engine. Docker's own errors (`docker.errors.APIError`) pass through."""

    def __init__(self, settings: DockerHost) -> None:
        self.settings = settings
        self.name = settings.name
        self._clients: dict[float, APIClient] = {}  # by timeout
        self._callers = ThreadPoolExecutor(THREADS, thread_name_prefix=f"docker-{self.name}")
        self._long_callers = ThreadPoolExecutor(THREADS, thread_name_prefix=f"docker-{self.name}-long")
        self._info: dict[str, Any] | None = None

    @property
    def socket_path(self) -> str:
        """The path of the engine's socket; empty if the engine is on another machine."""
        url = self.settings.url or _local_engine()
        return url.removeprefix("unix:").replace("///", "/") if self.settings.is_here else ""

    async def call(self, request: Callable[[APIClient], T], timeout_s: float = CALL_S) -> T:
        """Return the host's answer, without blocking the event loop. Raises HostUnreachable."""
        call = partial(self.call_blocking, request, timeout_s)
        return await asyncio.get_running_loop().run_in_executor(self._callers, call)

    async def run_long(self, operation: Callable[[], T]) -> T:
        """Run an operation that may block for minutes, such as an image pull, apart from other calls."""
        return await asyncio.get_running_loop().run_in_executor(self._long_callers, operation)

    def call_blocking(self, request: Callable[[APIClient], T], timeout_s: float = CALL_S) -> T:
        """Return the host's answer. Raises HostUnreachable."""
        from docker.errors import APIError, DockerException
        from requests.exceptions import RequestException
        from urllib3.exceptions import HTTPError

        # A broken stream raises the error of the layer that was reading: requests, urllib3 or docker.
        connection_errors = (
            RequestException,
            DockerException,
            HTTPError,
            HTTPException,
            OSError,
            struct.error,
        )
        try:
            return request(self.api(timeout_s))
        except APIError as error:
            if error.status_code is not None and error.status_code >= 502:  # a proxy in front of the engine
                raise HostUnreachable(_summarize(error)) from error
            raise
        except connection_errors as error:
            raise HostUnreachable(_summarize(error)) from error

    def retry_blocking(self, request: Callable[[APIClient], T]) -> T:
        """Return the host's answer, with a few retries while it is unreachable. The request may be carried
        out more than once, so it must not matter if it is repeated."""
        return retry_unreachable(lambda: self.call_blocking(request))

    def api(self, timeout_s: float = CALL_S) -> APIClient:
        """Return a client with this timeout, connected on first use. Blocks.

        Two threads may both connect: a lock would make one wait for the other's timeout.
        """
        client = self._clients.get(timeout_s)
        return client or self._clients.setdefault(timeout_s, connect(self.settings, timeout_s))

    def info(self) -> dict[str, Any]:
        """Return the engine's description of itself, read once. Blocks."""
        if self._info is None:
            self._info = dict(self.call_blocking(lambda api: api.info()))
        return self._info

    def gpu_access(self) -> GpuAccess:
        """Return how containers get this host's GPUs: as configured, else by what it offers. Blocks."""
        if self.settings.gpu_access != "auto":
            return self.settings.gpu_access
        info = self.info()
        discovered = (str(device.get("ID", "")) for device in info.get("DiscoveredDevices") or ())
        if any(name.startswith("nvidia.com/gpu=") for name in discovered):
            return "cdi"
        return "nvidia" if "nvidia" in (info.get("Runtimes") or {}) else "variable"

    def has_init(self) -> bool:
        """Whether the engine has an init process, which reaps zombies and forwards signals. Blocks."""
        init = self.info().get("InitCommit") or {"ID": "N/A"}
        return str(init.get("ID", "")) != "N/A"  # empty where the engine does not know its version

    def reset(self) -> None:
        """Drop what is known of the engine: it may return with another version or other devices."""
        self._info, self._clients = None, {}

    def close(self) -> None:
        for threads in (self._callers, self._long_callers):
            threads.shutdown(wait=False, cancel_futures=True)
        for client in list(self._clients.values()):
            client.close()


def retry_unreachable(call: Callable[[], T]) -> T:
    """Call until the host answers, a few times. Blocks."""
    return retry_blocking(call, BACKOFF, lambda error: isinstance(error, HostUnreachable))


def connect(host: DockerHost, timeout_s: float) -> APIClient:
    """Return a client that uses the newest API version which both sides know. Blocks."""
    first = _client(host, NEWEST_API, min(timeout_s, CONNECT_S))
    try:
        offered = str(first.version(api_version=False)["ApiVersion"])
    finally:
        first.close()
    version = min(offered, NEWEST_API, key=lambda version: [int(part) for part in version.split(".")])
    return _client(host, version, timeout_s)


def _client(host: DockerHost, version: str, timeout_s: float) -> APIClient:
    from docker import APIClient
    from docker.tls import TLSConfig

    class Client(APIClient):
        def _disable_socket_timeout(self, socket: Any) -> None:
            """Keep the timeout: without it, a stream whose other end vanished would block for ever."""

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
        max_pool_size=THREADS,
    )
    client.trust_env = False  # a REQUESTS_CA_BUNDLE in the environment would replace the host's own CA
    if over_ssh:
        from gpu_flows.runtimes.docker.ssh import SshAdapter

        client.mount("http://", SshAdapter(host.url, timeout_s, THREADS))
    return client


def _local_engine() -> str:
    """Return the URL of this machine's engine.

    A DOCKER_HOST that is not a local socket is ignored: mount rules follow symbolic links on the worker's
    machine, so a remote engine must be configured as a remote host.
    """
    configured = os.environ.get("DOCKER_HOST", "")
    return configured if configured.startswith("unix:") else "unix:///var/run/docker.sock"


def _summarize(error: BaseException) -> str:
    """Return the innermost cause on one line: connection refused, no such file ..."""
    while cause := error.__cause__ or (None if error.__suppress_context__ else error.__context__):
        error = cause
    return " ".join(str(error).split())[:300] or type(error).__name__
