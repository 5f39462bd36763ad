"""A socket in the pool's folder, through which commands of this user on this machine ask the worker.

A question and its answer are one JSON object each, in a line. The socket's path may be longer than an address
may be, so it is opened relative to its folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

NAME = "ask.sock"
LONGEST = 64_000_000  # bytes
ANSWER_WITHIN_S = 30.0
MOST_CLIENTS = 8  # at a time; others are told nothing

Answer = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class NoAnswer(Exception):
    """No worker answers."""


async def answer_commands(folder: Path, answer: Answer, log: logging.Logger) -> None:
    """Answer every question, until cancelled."""
    clients: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(clients) >= MOST_CLIENTS:
            writer.transport.abort()
            return
        clients.add(client := asyncio.ensure_future(_serve(reader, writer, answer)))
        client.add_done_callback(clients.discard)

    try:
        listener = _listen(folder)
    except OSError as error:  # it would fail again: not every file system has sockets
        log.warning("`gpu-flows submit --dry-run` cannot ask this worker, as it has no socket: %s.", error)
        await asyncio.Event().wait()
        return
    server = await asyncio.start_unix_server(accept, sock=listener, limit=LONGEST)
    try:
        await asyncio.Event().wait()
    finally:
        server.close()
        (folder / NAME).unlink(missing_ok=True)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


def _listen(folder: Path) -> socket.socket:
    """Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        (folder / NAME).unlink(missing_ok=True)  # of a worker that died
        with _address(folder) as address:
            listener.bind(address)
        os.chmod(folder / NAME, 0o600)
    except OSError:
        listener.close()
        raise
    return listener


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer) -> None:
    """Answer the one question of a client. One that is too slow gets no answer."""
    writer.transport.set_write_buffer_limits(0)  # `drain` waits until everything is sent
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            line = await reader.readline()
            try:
                answered = json.dumps(await answer(json.loads(line)))
            except Exception as error:  # a question may hold anything, and the worker goes on
                told = f"The worker cannot answer: {type(error).__name__}: {error}"
                answered = json.dumps({"error": told})
            writer.write(answered.encode() + b"\n")
            await writer.drain()
    except (OSError, ValueError):  # TimeoutError is an OSError
        pass
    finally:
        writer.transport.abort()


def ask_worker(folder: Path, question: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of the worker that serves the pool with this folder. Blocks. Raises NoAnswer."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, _address(folder) as address:
            connection.settimeout(ANSWER_WITHIN_S)
            connection.connect(address)
            connection.sendall(json.dumps(question).encode() + b"\n")
            with connection.makefile("rb") as lines:
                answer: dict[str, Any] = json.loads(lines.readline())
                return answer
    except (OSError, ValueError) as error:
        raise NoAnswer(str(error)) from None


@contextlib.contextmanager
def _address(folder: Path) -> Iterator[str]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}/{NAME}"
    finally:
        os.close(handle)
