"""Serves the dashboard on 127.0.0.1 until Ctrl-C."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn

from gpu_flows.dashboard.app import Dashboard
from gpu_flows.dashboard.views.look import Settings

ADDRESS = (
    "127.0.0.1"  # there is no option for another: the page shows names of users and jobs, without a login
)
STOP_S = 2.0  # how long a request may take when the server stops


class PortInUse(Exception):
    """Another program listens on the port."""


def serve(settings: Settings, port: int, on_ready: Callable[[str], None]) -> None:
    """Serve until Ctrl-C. `on_ready` gets the address. Raises PortInUse."""
    listening = _listen(port)
    on_ready(f"http://{ADDRESS}:{listening.getsockname()[1]}/")
    config = uvicorn.Config(
        Dashboard(settings).app(),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(STOP_S),
        ws="none",
    )
    uvicorn.Server(config).run(sockets=[listening])


def _listen(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((ADDRESS, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise PortInUse(f"Port {port} cannot be used: {error.strerror}.") from None
    return listening
