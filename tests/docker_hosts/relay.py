"""Carries TCP connections from one address of this machine to another.

The tests' Prefect server listens on 127.0.0.1, which in a container is the container itself. A relay on the
bridge's gateway is an address that a container can reach, and carries websockets as well as requests.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType


class Relay:
    """Listens on a free port of `host` from the moment it is made until it is closed."""

    def __init__(self, host: str, to_port: int, to_host: str = "127.0.0.1") -> None:
        self._to = (to_host, to_port)
        self._listener = socket.create_server((host, 0), backlog=128)
        self.host, self.port = self._listener.getsockname()[:2]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        threading.Thread(target=self._accept, name=f"relay-{self.port}", daemon=True).start()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def close(self) -> None:
        """No new connections, and the open ones are cut."""
        with self._lock:
            self._closed = True
            ends = [self._listener, *self._open]
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def __enter__(self) -> Relay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(self._to, timeout=30)
        except OSError:
            near.close()
            return
        far.settimeout(None)
        with self._lock:
            if self._closed:
                near.close()
                far.close()
                return
            self._open |= {near, far}
        back = threading.Thread(target=_pump, args=(far, near), daemon=True)
        back.start()
        _pump(near, far)
        back.join()
        with self._lock:
            self._open -= {near, far}
        near.close()
        far.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    """Until one side ends; the other is told that nothing more comes."""
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
