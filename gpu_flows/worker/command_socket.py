"""A socket in the pool's folder, through which commands of this user on this machine ask the worker.

A question and its answer are one JSON object each, in a line. The socket's path may be longer than an address
may be, so it is opened relative to its folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

NAME = "ask.sock"
LONGEST = 64_000_000  # bytes
ANSWER_WITHIN_S = 30.0

Answer = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class NoAnswer(Exception):
    """No worker answers."""


async def answer_commands(folder: Path, answer: Answer) -> None:
    """Answer every question, until cancelled."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError):
            question = json.loads(await asyncio.wait_for(reader.readline(), ANSWER_WITHIN_S))
            try:
                answered = await answer(question)
            except Exception as error:  # a question may hold anything, and the worker goes on
                answered = {"error": f"The worker cannot answer: {type(error).__name__}: {error}"}
            writer.write(json.dumps(answered).encode() + b"\n")
            await writer.drain()
        writer.close()

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    (folder / NAME).unlink(missing_ok=True)  # of a worker that died
    with _address(folder) as address:
        listener.bind(address)
    os.chmod(folder / NAME, 0o600)
    server = await asyncio.start_unix_server(serve, sock=listener, limit=LONGEST)
    async with server:
        try:
            await server.serve_forever()
        finally:
            (folder / NAME).unlink(missing_ok=True)


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
