"""The part that proxies share: accept connections, open one to the target for each, and close all of them."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import BinaryIO, Self


class Proxy(ABC):
    """Works from its creation until `close`, which cuts the open connections."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closed = False
        threading.Thread(target=self._accept, name=type(self).__name__, daemon=True).start()

    @abstractmethod
    def _connect(self) -> socket.socket:
        """Return a connection to the target. Raises OSError."""

    @abstractmethod
    def _carry(self, caller: socket.socket, target: socket.socket) -> None:
        """Carry data between the two until one of them ends."""

    def close(self) -> None:
        with self._lock:
            self._closed = True
            ends = [self._listener, *self._open]
        for end in ends:
            hang_up(end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(caller,), daemon=True).start()

    def _serve(self, caller: socket.socket) -> None:
        ends = {caller}
        with suppress(OSError, ValueError):  # one of the two ended the connection
            target = self._connect()
            ends.add(target)
            with self._lock:
                self._open |= ends
                closed = self._closed
            if not closed:
                self._carry(caller, target)
        for end in ends:
            hang_up(end)
        with self._lock:
            self._open -= ends


def carry_both_ways(caller: socket.socket, calls: BinaryIO, target: socket.socket, answers: BinaryIO) -> None:
    """Carry data until the target ends the connection. The files may hold data that was read ahead."""
    up = threading.Thread(target=_carry_one_way, args=(calls, target), daemon=True)
    up.start()
    _carry_one_way(answers, caller)
    hang_up(caller)
    up.join()


def _carry_one_way(source: BinaryIO, target: socket.socket) -> None:
    with suppress(OSError, ValueError):
        while data := source.read1(65536):  # type: ignore[attr-defined]
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def hang_up(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
