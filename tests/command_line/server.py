"""A fake Prefect server, for answers that a real one cannot be made to give."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

Answer = tuple[int, Any]  # status, body


class FakeServer:
    """Answers each path as `answers` states: with a status and a body, or a function of the headers."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer | Callable[[Any], Answer]] = {}
        self.requests: list[tuple[str, Any, Any]] = []  # path, headers, body
        self.clock_off_s = 0.0
        self.url = ""

    def answer(self, path: str, headers: Any, body: bytes) -> Answer:
        self.requests.append((path, headers, json.loads(body or b"null")))
        found = self.answers.get(path.split("?")[0], (404, {"detail": "not here"}))
        return found(headers) if callable(found) else found


S = TypeVar("S", bound=FakeServer)


@contextmanager
def serve(fake: S) -> Iterator[S]:
    """Serve it on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def _reply(self) -> None:
            request = self.rfile.read(int(self.headers.get("content-length") or 0))
            code, body = fake.answer(self.path.removeprefix("/api"), self.headers, request)
            content = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _reply

        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate(time.time() + fake.clock_off_s, usegmt=True)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        fake.url = f"http://127.0.0.1:{server.server_port}/api"
        yield fake
        server.shutdown()
