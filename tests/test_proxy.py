"""The proxy with which tests make a worker's network slow or lossy."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from proxy import Proxy


class Echo(BaseHTTPRequestHandler):
    received: list[bytes] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.received.append(body)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    Echo.received = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with Proxy(f"http://127.0.0.1:{server.server_port}/api") as proxy:
        yield proxy
    server.shutdown()
    server.server_close()


def test_requests_pass_through_and_are_delayed(proxy: Proxy) -> None:
    with httpx.Client() as client:
        assert [client.post(proxy.api_url, content=text).text for text in ("a", "b")] == ["a", "b"]
        proxy.delay_s, began = 0.4, time.monotonic()
        assert client.post(proxy.api_url, content="slow").text == "slow"
        assert time.monotonic() - began >= 0.4
    assert proxy.requests == [("POST", "/api")] * 3


def test_a_lost_answer_has_reached_the_server(proxy: Proxy) -> None:
    proxy.lose_answers = 1
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.post(proxy.api_url, content="lost")
    assert Echo.received == [b"lost"]
    assert httpx.post(proxy.api_url, content="next").text == "next"


def test_a_refused_request_does_not_reach_the_server(proxy: Proxy) -> None:
    proxy.refuse = {401: 1.0}
    assert httpx.post(proxy.api_url, content="x").status_code == 401
    assert not Echo.received
