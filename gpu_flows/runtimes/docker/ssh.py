"""Docker over ssh, as Docker's own client does it: each connection is `ssh MACHINE docker system dial-stdio`.

The docker library needs a second implementation of ssh for this, and has no timeout for a machine that
does not answer. This module runs the system's ssh, with its keys and settings, on a socket with a timeout.
"""

from __future__ import annotations

import http.client
import socket
import subprocess
import threading
from typing import Any
from urllib.parse import urlsplit

from requests import PreparedRequest
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool
from urllib3.connection import HTTPConnection
from urllib3.response import HTTPResponse

ERROR_OUTPUT_S = 2.0  # how long to wait for the error output of an ssh that ended


class SshAdapter(HTTPAdapter):
    """An adapter for a session of `requests` that sends every request to one machine, whatever the URL."""

    def __init__(self, url: str, timeout_s: float, connections: int) -> None:
        super().__init__()
        self._pool = _Pool(url, timeout_s, connections)

    def get_connection_with_tls_context(self, *_: Any, **__: Any) -> HTTPConnectionPool:
        return self._pool

    def request_url(self, request: PreparedRequest, proxies: Any) -> str:
        return request.path_url

    def close(self) -> None:
        super().close()
        self._pool.close()


class _Pool(HTTPConnectionPool):
    def __init__(self, url: str, timeout_s: float, connections: int) -> None:
        super().__init__("localhost", timeout=timeout_s, maxsize=connections)
        self._command, self._timeout_s = ssh_command(url), timeout_s

    def _new_conn(self) -> HTTPConnection:
        return _Connection(self._command, self._timeout_s)


class _Connection(HTTPConnection):
    def __init__(self, ssh: list[str], timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._command, self._error_output = ssh, b""
        self._reader: threading.Thread | None = None

    def connect(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            end = theirs.fileno()
            ssh = subprocess.Popen(
                self._command, stdin=end, stdout=end, stderr=subprocess.PIPE, start_new_session=True
            )
        self._reader = threading.Thread(target=self._read_errors, args=(ssh,), daemon=True)
        self._reader.start()
        ours.settimeout(self.timeout if isinstance(self.timeout, (int, float)) else None)
        self.sock = ours

    def getresponse(self) -> HTTPResponse:  # type: ignore[override]
        try:
            return super().getresponse()
        except (ConnectionError, http.client.HTTPException) as error:
            if self._reader:
                self._reader.join(ERROR_OUTPUT_S)
            reason = " ".join(self._error_output.decode(errors="replace").split())
            raise ConnectionError(f"ssh: {reason}" if reason else str(error)) from None

    def _read_errors(self, ssh: subprocess.Popen[bytes]) -> None:
        """Collect what ssh prints as errors, until it ends because its socket was closed."""
        _, self._error_output = ssh.communicate()


def ssh_command(url: str) -> list[str]:
    """Return the command that reaches the engine behind ssh://[USER@]MACHINE[:PORT]. It never prompts."""
    parts = urlsplit(url)
    options = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15"]
    user = ["-l", parts.username] if parts.username else []
    port = ["-p", str(parts.port)] if parts.port else []
    return ["ssh", *options, *user, *port, "--", parts.hostname or "", "docker system dial-stdio"]
