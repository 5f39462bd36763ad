"""A bad line to an engine: calls arrive and are carried out, but some answers never come back.

The proxy listens on a unix socket of its own. It reads each call and its whole answer, and then, with a
given probability, hangs up instead of handing the answer over. Whoever called cannot know whether the call
was carried out; it was. Streams (logs, events, wait, attach and the like) pass untouched.
"""

from __future__ import annotations

import random
import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO
from urllib.parse import parse_qs, urlsplit

# Calls whose answer comes bit by bit, or whose connection turns into something else.
STREAMS = re.compile(
    r"/(events|build|session|containers/[^/]+/(logs|attach|attach/ws|wait|export)"
    r"|exec/[^/]+/start|images/(create|load|get|.+/(push|get)))$"
)


class LossyProxy:
    """Works from the moment it is made until it is closed. All but `url` may be changed or read at any time.

    `probability` is how likely an answer is lost; `only` may spare calls, by method and path;
    `lost` are the calls whose answer was lost, `passed` counts the others, streams left out.
    """

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
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closed = False
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(listen))
        self._listener.listen(128)
        threading.Thread(target=self._accept, name="lossy-proxy", daemon=True).start()

    @property
    def url(self) -> str:
        return f"unix://{self._path}"

    def close(self) -> None:
        with self._lock:
            self._closed = True
            ends = [self._listener, *self._open]
        for end in ends:
            _hang_up(end)
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> LossyProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- one connection -----------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(caller,), daemon=True).start()

    def _serve(self, caller: socket.socket) -> None:
        engine = socket.socket(socket.AF_UNIX)
        with self._lock:
            self._open |= {caller, engine}
            closed = self._closed
        try:
            if not closed:
                engine.connect(str(self._engine))
                calls, answers = caller.makefile("rb"), engine.makefile("rb")
                while self._pass_one_call(caller, calls, engine, answers):
                    pass
        except (OSError, ValueError):
            pass  # one of the two hung up, and so do we
        finally:
            _hang_up(caller)
            _hang_up(engine)
            with self._lock:
                self._open -= {caller, engine}

    def _pass_one_call(
        self, caller: socket.socket, calls: BinaryIO, engine: socket.socket, answers: BinaryIO
    ) -> bool:
        """Whether another call may follow on these connections."""
        first, headers, head = _read_head(calls)
        if not head:
            return False
        method, target, _ = first.split(" ", 2)
        engine.sendall(head)
        if _is_stream(target, headers):
            _both_ways(caller, calls, engine, answers)
            return False
        _copy_body(headers, calls, engine.sendall)
        while True:
            status, headers, head = _read_head(answers)
            if not head:
                return False
            code = int(status.split(" ")[1])
            if code >= 200:
                break
            caller.sendall(head)  # 100 Continue, and the like
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


# -- HTTP, as much of it as dockerd and its clients speak -------------------------------------


def _is_stream(target: str, headers: dict[str, str]) -> bool:
    url = urlsplit(target)
    query = parse_qs(url.query)
    if url.path.endswith("/stats"):
        return query.get("stream", ["1"])[0].lower() in ("1", "true")
    return "upgrade" in headers or STREAMS.search(url.path) is not None


def _read_head(source: BinaryIO) -> tuple[str, dict[str, str], bytes]:
    """The first line, the headers by lower-case name, and all of it as it came; empty at the end."""
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
    """What follows the headers. Without a length it is empty for a call, and for an answer all that comes."""
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
            raise ValueError("hung up in the middle")
        write(data)
        length -= len(data)


def _both_ways(caller: socket.socket, calls: BinaryIO, engine: socket.socket, answers: BinaryIO) -> None:
    """Until the engine has no more to say; what is read ahead in the files is not lost."""
    up = threading.Thread(target=_pump, args=(calls, engine), daemon=True)
    up.start()
    _pump(answers, caller)
    _hang_up(caller)
    up.join()


def _pump(source: BinaryIO, target: socket.socket) -> None:
    with suppress(OSError, ValueError):
        while data := source.read1(65536):  # type: ignore[attr-defined]
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _hang_up(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
