"""A proxy in front of an engine: every call is carried out, but some answers are lost.

The proxy listens on a unix socket. It reads each call and its whole answer, and then, with a given
probability, closes the connection instead of returning the answer. The caller cannot know whether the call
was carried out; it was. Streams (logs, events, wait, attach and similar calls) pass unchanged.
"""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO
from urllib.parse import parse_qs, urlsplit

from docker_hosts.proxy import Proxy, carry_both_ways

# Calls whose answer is a stream, or whose connection is upgraded to another protocol.
STREAMS = re.compile(
    r"/(events|build|session|containers/[^/]+/(logs|attach|attach/ws|wait|export)"
    r"|exec/[^/]+/start|images/(create|load|get|.+/(push|get)))$"
)


class LossyProxy(Proxy):
    """`probability` is how likely an answer is lost, and `only` selects calls, by method and path. Both may
    be changed at any time. `lost` are the calls whose answer was lost; `passed` counts the other ones,
    without streams."""

    def __init__(
        self,
        listen: Path,
        engine: Path,
        probability: float,
        seed: int = 0,
        only: Callable[[str, str], bool] = lambda method, path: True,
    ) -> None:
        self.probability, self.only = probability, only
        self.lost: list[tuple[str, str]] = []
        self.passed = 0
        self._path, self._engine = listen, engine
        self._chance = random.Random(seed)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(listen))
        listener.listen(128)
        super().__init__(listener)

    @property
    def url(self) -> str:
        return f"unix://{self._path}"

    def close(self) -> None:
        super().close()
        self._path.unlink(missing_ok=True)

    def _connect(self) -> socket.socket:
        engine = socket.socket(socket.AF_UNIX)
        engine.connect(str(self._engine))
        return engine

    def _carry(self, caller: socket.socket, target: socket.socket) -> None:
        calls, answers = caller.makefile("rb"), target.makefile("rb")
        while self._pass_one_call(caller, calls, target, answers):
            pass

    def _pass_one_call(
        self, caller: socket.socket, calls: BinaryIO, engine: socket.socket, answers: BinaryIO
    ) -> bool:
        """Pass one call and its answer on. Returns whether another call may follow on these connections."""
        first, headers, head = _read_head(calls)
        if not head:
            return False
        method, target, _ = first.split(" ", 2)
        engine.sendall(head)
        if _is_stream(target, headers):
            carry_both_ways(caller, calls, engine, answers)
            return False
        _copy_body(headers, calls, engine.sendall)
        while True:
            status, headers, head = _read_head(answers)
            if not head:
                return False
            code = int(status.split(" ")[1])
            if code >= 200:
                break
            caller.sendall(head)  # such as 100 Continue
        answer = bytearray(head)
        if method != "HEAD" and code not in (204, 304):
            _copy_body(headers, answers, answer.extend, until_end=True)
        if self._lose(method, urlsplit(target).path):
            return False
        caller.sendall(answer)
        return headers.get("connection", "").lower() != "close"

    def _lose(self, method: str, path: str) -> bool:
        with self._lock:
            lost = self.only(method, path) and self._chance.random() < self.probability
            if lost:
                self.lost.append((method, path))
            else:
                self.passed += 1
        return lost


# -- the part of HTTP that dockerd and its clients use ----------------------------------------


def _is_stream(target: str, headers: dict[str, str]) -> bool:
    url = urlsplit(target)
    query = parse_qs(url.query)
    if url.path.endswith("/stats"):
        return query.get("stream", ["1"])[0].lower() in ("1", "true")
    return "upgrade" in headers or STREAMS.search(url.path) is not None


def _read_head(source: BinaryIO) -> tuple[str, dict[str, str], bytes]:
    """Return the first line, the headers by lower-case name, and all bytes; empty at the end."""
    head = bytearray()
    while line := source.readline():
        head += line
        if line == b"\r\n":
            first, *rest = head.decode("latin-1").split("\r\n")
            pairs = (line.split(":", 1) for line in rest if ":" in line)
            return first, {name.strip().lower(): value.strip() for name, value in pairs}, bytes(head)
    return "", {}, b""


def _copy_body(
    headers: dict[str, str],
    source: BinaryIO,
    write: Callable[[bytes], object],
    until_end: bool = False,
) -> None:
    """Copy what follows the headers. Without a length, a call has no body; an answer lasts until its end."""
    if "chunked" in headers.get("transfer-encoding", "").lower():
        while True:
            size = source.readline()
            write(size)
            length = int(size.split(b";")[0], 16)
            if length == 0:
                break
            _copy(source, write, length + 2)  # with the end of the line
        while (line := source.readline()) not in (b"\r\n", b""):
            write(line)
        write(b"\r\n")
    elif "content-length" in headers:
        _copy(source, write, int(headers["content-length"]))
    elif until_end:
        while data := source.read(65536):
            write(data)


def _copy(source: BinaryIO, write: Callable[[bytes], object], length: int) -> None:
    while length:
        data = source.read(min(length, 65536))
        if not data:
            raise ValueError("the connection ended inside a body")
        write(data)
        length -= len(data)
