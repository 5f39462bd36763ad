"""Carries TCP connections from one address of this machine to another.

The tests' Prefect server listens on 127.0.0.1, which in a container is the container itself. A relay on the
bridge's gateway is an address that a container can reach. It carries websockets as well as requests.
"""

from __future__ import annotations

import socket

from docker_hosts.proxy import Proxy, carry_both_ways


class Relay(Proxy):
    """Listens on a free port of `host`."""

    def __init__(self, host: str, to_port: int, to_host: str = "127.0.0.1") -> None:
        self._to = (to_host, to_port)
        listener = socket.create_server((host, 0), backlog=128)
        self.host, self.port = listener.getsockname()[:2]
        super().__init__(listener)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def _connect(self) -> socket.socket:
        target = socket.create_connection(self._to, timeout=30)
        target.settimeout(None)
        return target

    def _carry(self, caller: socket.socket, target: socket.socket) -> None:
        carry_both_ways(caller, caller.makefile("rb"), target, target.makefile("rb"))
