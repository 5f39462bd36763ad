"""`gpu-flows metrics`: a pool's numbers for Prometheus, on stdout, in a file or over HTTP."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated

import typer
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry

from gpu_flows.analytics.query_runner import QueryError, run_query
from gpu_flows.cli import output
from gpu_flows.cli.errors import BadInput, CommandError
from gpu_flows.cli.options import DEFAULT_POOL, PoolOption, examples
from gpu_flows.common.files import write_atomically
from gpu_flows.config.paths import default_warehouse
from gpu_flows.worker.pool_metrics import ENDED_SQL, Ended, make_registry
from gpu_flows.worker.status import read_last_status

OPENMETRICS, PLAIN = "application/openmetrics-text", "text/plain"
REFRESH_S = 5.0
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
    Prometheus, because node_exporter reads no other; over HTTP, the reader chooses.
    """
    if file and serve:
        raise BadInput("--file and --serve are two ways to publish; choose one.")
    if watch and not file:
        raise BadInput("--watch rewrites a file.", "Name it with --file, or use --serve.")
    source = _Source(pool, database or default_warehouse())
    if serve:
        _serve(source, *_parse_address(serve))
    elif file:
        _write(source, file, watch)
    else:
        sys.stdout.write(_encode(OPENMETRICS, source.read()))


class _Source:
    """Reads the status each time, and counts in the warehouse from time to time."""

    def __init__(self, pool: str, database: Path) -> None:
        self._pool, self._database = pool, database
        self._ended: list[Ended] = []
        self._counted = float("-inf")

    def read(self) -> CollectorRegistry:
        if time.monotonic() - self._counted > COUNT_EVERY_S:
            with suppress(QueryError):  # there is no warehouse yet, or it is busy; the last counts stay
                rows = run_query(self._database, ENDED_SQL, {"pool": self._pool}).rows
                self._ended = [Ended(*row) for row in rows]
            self._counted = time.monotonic()
        return make_registry(self._pool, read_last_status(self._pool), self._ended, time.time())


def _encode(kind: str, registry: CollectorRegistry) -> str:
    encode, _ = choose_encoder(kind)
    return encode(registry).decode()


def _write(source: _Source, file: Path, watch: bool) -> None:
    try:
        while True:
            try:
                write_atomically(file, _encode(PLAIN, source.read()))
            except OSError as error:
                raise CommandError(f"{file} cannot be written: {error.strerror or error}.") from None
            if not watch:
                return
            time.sleep(REFRESH_S)
    except KeyboardInterrupt:
        pass


def _serve(source: _Source, host: str, port: int) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
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

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise CommandError(f"{host}:{port} cannot be served: {error.strerror or error}.") from None
    with server, suppress(KeyboardInterrupt):
        output.print_remark(f"Serving http://{host}:{server.server_port}/metrics until Ctrl-C.")
        server.serve_forever()


def _parse_address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise BadInput(f"--serve {text!r} is not of the form HOST:PORT.", "Example: --serve 127.0.0.1:9108")
    return host, int(port)
