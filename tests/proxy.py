"""An HTTP proxy in front of a Prefect server, with a network that a test can make slow or lossy.

    with Proxy(server.api_url) as proxy:
        stack = Stack(home, pool=..., api_url=proxy.api_url)
        proxy.delay_s = 30.0     # each request waits as long before it is passed on, and so does each answer
        proxy.lose_answers = 3   # the next three requests reach the server, and their answers are lost
        proxy.refuse = {401: 0.05}   # so many of the requests are answered with this status

Requests are passed on byte by byte, one connection each, so that a delay holds up no other request.
WebSockets pass through. `delay` may also be a function of method and path.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable
from urllib.parse import urlsplit

Delay = Callable[[str, str], float]


class Proxy:
    def __init__(self, api_url: str) -> None:
        target = urlsplit(api_url)
        self._target = (target.hostname or "127.0.0.1", target.port or 80)
        self._path = target.path
        self.delay_s = 0.0  # half of it before the request reaches the server, half before the answer returns
        self.delay: Delay | None = None  # replaces delay_s: called with method and path
        self.lose_answers = 0
        self.refuse: dict[int, float] = {}  # status -> share of the requests that get it
        self.requests: list[tuple[str, str]] = []  # method and path, in order
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self.port = 0

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self._path}"

    def __enter__(self) -> Proxy:
        self._thread.start()
        assert self._ready.wait(60), "the proxy does not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError):
            await self._pass_on(reader, writer)
        writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one request on, and its answer back. The connection is closed afterwards."""
        head = await reader.readuntil(b"\r\n\r\n")
        method, path = head.split(b" ", 2)[:2]
        asked = method.decode(), path.decode()
        headers = head.lower()
        is_websocket = b"upgrade: websocket" in headers
        body = b"" if is_websocket else await reader.readexactly(_content_length(headers))
        self.requests.append(asked)
        pause = (self.delay(*asked) if self.delay else self.delay_s) / 2
        if status := self._refusal():
            writer.write(
                f"HTTP/1.1 {status} Refused\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}".encode()
            )
            return await writer.drain()
        await asyncio.sleep(pause)
        answers, requests = await asyncio.open_connection(*self._target)
        try:
            requests.write((head if is_websocket else _close_afterwards(head)) + body)
            await requests.drain()
            if is_websocket:
                await _join(reader, writer, answers, requests)
                return
            answer = await answers.read()
            if self.lose_answers:
                self.lose_answers -= 1
                return
            await asyncio.sleep(pause)
            writer.write(answer)
            await writer.drain()
        finally:
            requests.close()

    def _refusal(self) -> int:
        return next((status for status, share in self.refuse.items() if random.random() < share), 0)


def _content_length(headers: bytes) -> int:
    _, found, rest = headers.partition(b"\r\ncontent-length:")
    return int(rest.split(b"\r\n", 1)[0]) if found else 0


def _close_afterwards(head: bytes) -> bytes:
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    return b"\r\n".join([lines[0], b"Connection: close", *lines[1:]])


async def _join(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    answers: asyncio.StreamReader,
    requests: asyncio.StreamWriter,
) -> None:
    """Copy in both directions until one side closes."""

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()

    directions = [asyncio.ensure_future(copy(reader, requests)), asyncio.ensure_future(copy(answers, writer))]
    try:
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for direction in directions:
            direction.cancel()
