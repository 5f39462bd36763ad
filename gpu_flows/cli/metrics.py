"""`gpu-flows metrics`: a pool's numbers for Prometheus, on stdout, in a file or over HTTP."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry

from gpu_flows.analytics.query_runner import QueryError, run_query
from gpu_flows.cli import output
from gpu_flows.cli.errors import BadInput, CommandError
from gpu_flows.cli.options import DEFAULT_POOL, PoolOption, examples
from gpu_flows.cli.sql import find_warehouse
from gpu_flows.common.files import write_atomically
from gpu_flows.worker.pool_metrics import ENDED_SQL, Ended, make_registry
from gpu_flows.worker.status import read_last_status

OPENMETRICS, PLAIN = "application/openmetrics-text", "text/plain"
REFRESH_S = 5.0
REQUEST_S, AT_ONCE = 10.0, 16  # a client has so long to ask; so many are answered at the same time
COUNT_EVERY_S = 30.0  # how often the warehouse is asked


@examples(
    "gpu-flows metrics",
    "gpu-flows metrics --serve 127.0.0.1:9108",
    "gpu-flows metrics --file /var/lib/node_exporter/gpu-flows.prom --watch",
)
def metrics(
    pool: PoolOption = DEFAULT_POOL,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write them to a file, for node_exporter's textfiles.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Write the file every 5 seconds until Ctrl-C.")
    ] = False,
    serve: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Answer GET /metrics at this address until Ctrl-C.")
    ] = "",
    database: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The DuckDB file; default: the pool's own.")
    ] = None,
) -> None:
    """Print the numbers of a pool as OpenMetrics: queue, devices, policy, jobs that have ended.

    They come from the worker on this machine and its warehouse. A file has the older text format of
    Prometheus, because node_exporter reads no other; over HTTP, the reader chooses. An address other than
    127.0.0.1 shows them to everyone who reaches it.
    """
    if file and serve:
        raise BadInput("--file and --serve are two ways to publish; choose one.")
    if watch and not file:
        raise BadInput("--watch rewrites a file.", "Name it with --file, or use --serve.")
    source = Source(pool, database or find_warehouse(pool))
    if serve:
        _serve(source, *_parse_address(serve))
    elif file:
        _write(source, file, watch)
    else:
        sys.stdout.write(_encode(OPENMETRICS, source.read()))


class Source:
    """Reads the status each time, and counts in the warehouse from time to time. Threads may share it."""

    def __init__(self, pool: str, database: Path) -> None:
        self._pool, self._database = pool, database
        self._ended: list[Ended] = []
        self._counted = float("-inf")
        self._counting = threading.Lock()

    def read(self) -> CollectorRegistry:
        with self._counting:
            self._count()
        return make_registry(self._pool, read_last_status(self._pool), self._ended, time.time())

    def _count(self) -> None:
        if time.monotonic() - self._counted > COUNT_EVERY_S:
            with suppress(QueryError):  # there is no warehouse yet, or it is busy; the last counts stay
                rows = run_query(self._database, ENDED_SQL, {"pool": self._pool}).rows
                self._ended = [Ended(*row) for row in rows]
            self._counted = time.monotonic()


def _encode(kind: str, registry: CollectorRegistry) -> str:
    encode, _ = choose_encoder(kind)
    return encode(registry).decode()


def _write(source: Source, file: Path, watch: bool) -> None:
    has_written = has_failed = False
    try:
        while True:
            try:
                write_atomically(file, _encode(PLAIN, source.read()))
                has_failed = False
            except OSError as error:
                trouble = f"{file} cannot be written: {error.strerror or error}."
                if not (watch and has_written):
                    raise CommandError(trouble) from None
                if not has_failed:
                    output.print_remark(f"{trouble} It is tried again every {REFRESH_S:g} s.")
                has_failed = True
            if not watch:
                return
            has_written = True
            time.sleep(REFRESH_S)
    except KeyboardInterrupt:
        pass


def _serve(source: Source, host: str, port: int) -> None:
    try:
        server = make_server(source, host, port)
    except OSError as error:
        raise CommandError(f"{host}:{port} cannot be served: {error.strerror or error}.") from None
    with server, suppress(KeyboardInterrupt):
        output.print_remark(f"Serving http://{host}:{server.server_port}/metrics until Ctrl-C.")
        if not _is_loopback(host):
            output.print_remark(f"Everyone who reaches {host} can read it, without a password.")
        server.serve_forever()


def make_server(source: Source, host: str, port: int) -> ThreadingHTTPServer:
    """Return a server of the numbers that listens already. Raises OSError."""
    is_local = _is_loopback(host)

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_S

        def do_GET(self) -> None:
            if is_local and not _is_loopback(urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""):
                self.send_error(403, "Only 127.0.0.1 and localhost are names of this server.")
                return
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, "Only /metrics is here.")
                return
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            body = encode(source.read())
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return _Server((host, port), Handler)


class _Server(ThreadingHTTPServer):
    """Answers a few requests at once, and drops those beyond."""

    def __init__(self, *given: Any) -> None:
        self._places = threading.BoundedSemaphore(AT_ONCE)
        super().__init__(*given)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return self._places.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()


def _is_loopback(host: str) -> bool:
    """Return whether only this machine reaches this address or name."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _parse_address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise BadInput(f"--serve {text!r} is not of the form HOST:PORT.", "Example: --serve 127.0.0.1:9108")
    return host, int(port)
