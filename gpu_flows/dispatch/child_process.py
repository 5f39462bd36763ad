"""A process of the worker's own, and the connection to it: pickled messages one way, lines of JSON the other.

The worker trusts nothing that comes back but names and numbers. The child ends when its worker is gone, even
while it computes, and has bounded memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import Any, ClassVar

SEND_WITHIN_S = 1.0
LONGEST_ANSWER = 64_000_000  # bytes
MOST_MEMORY = 1024**3  # bytes; beyond it an allocation in the child raises MemoryError
HEADER = struct.Struct("!Q")  # the length of a message to the child
# Numeric libraries would start a thread for each processor, which a child needs least of all.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class ChildFailed(RuntimeError):
    """The process ended, or it does not keep to the protocol."""


class ChildProcess:
    """A process that runs a module of gpu-flows, seen from the worker."""

    failure: ClassVar[type[Exception]] = ChildFailed

    def __init__(self, module: str, *arguments: str) -> None:
        self._connection, theirs = socket.socketpair()
        self._received = b""
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno()), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno() if _has_file(sys.stderr) else subprocess.DEVNULL,
                env={**os.environ, **ONE_THREAD},
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C in the worker's terminal is not meant for it
            )
        self._connection.settimeout(SEND_WITHIN_S)

    @property
    def connection(self) -> socket.socket:
        return self._connection

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: object) -> None:
        try:
            self._connection.sendall(pack(message))
        except OSError:
            raise self.failure(self.describe_end() or "its process accepts no data") from None

    def receive(self, wait_s: float) -> dict[str, Any] | None:
        """Return the next answer, or None if there is none within this time."""
        poll, until = select.poll(), time.monotonic() + wait_s
        poll.register(self._connection, select.POLLIN)
        while b"\n" not in self._received:
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                return None
            received = self._connection.recv(1_000_000)
            self._received += received
            if not received or len(self._received) > LONGEST_ANSWER:
                raise self.failure(self.describe_end() or "its process sent no valid answer")
        line, _, self._received = self._received.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def describe_end(self) -> str:
        """Return how the process ended; empty if it still runs."""
        try:
            code = self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            return ""
        if code < 0:
            return f"its process was killed by {signal.Signals(-code).name}"
        return f"its process ended with exit code {code}"

    def close(self) -> None:
        self._connection.close()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)


def pack(message: object) -> bytes:
    """Return a message to the child as it is sent."""
    pickled = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(pickled)) + pickled


def _has_file(stream: Any) -> bool:
    try:
        return bool(stream.fileno() >= 0)
    except (AttributeError, OSError, ValueError):
        return False


class Connection:
    """The connection to the worker, seen from the child. Opening it bounds what the process may use."""

    def __init__(self, fileno: int) -> None:
        self._socket = socket.socket(fileno=fileno)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
        threading.Thread(target=self._exit_with_worker, daemon=True).start()

    def has_message(self, wait_s: float | None) -> bool:
        """Return whether a message arrives within this time; None waits for as long as it takes."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(None if wait_s is None else wait_s * 1000))

    def receive(self) -> Any:
        """Return the next message. Raises EOFError when the worker has closed the connection."""
        return pickle.loads(self._read(HEADER.unpack(self._read(HEADER.size))[0]))

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            part = self._socket.recv(min(size, 1_000_000))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def answer(self, answer: dict[str, Any]) -> None:
        self._socket.sendall(json.dumps(answer).encode() + b"\n")

    def _exit_with_worker(self) -> None:
        """End this process when the worker is gone, even while it computes."""
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        poll.poll()
        os._exit(0)
