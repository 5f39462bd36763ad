"""Asks a process of its own (`simulating`), which may take its time, and never delays the page."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

LONGEST_LINE = 32 << 20  # of an answer, in bytes
LAST_WORDS = 4096  # bytes of what a process that stops writes to stderr


class QuestionError(Exception):
    """The question has no answer. The message says why."""


async def ask_process(
    question: dict[str, Any], timeout_s: float, on_progress: Callable[[str], None] = lambda text: None
) -> Any:
    """Return the answer. Raises QuestionError. The process is killed when the time is up, or the caller is
    cancelled."""
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gpu_flows.dashboard.simulating"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LONGEST_LINE,
        )
    except OSError as error:
        raise QuestionError(f"No process can be started: {error.strerror or error}.") from None
    assert process.stderr
    last_words = asyncio.create_task(_read_end(process.stderr))
    try:
        async with asyncio.timeout(timeout_s):
            return await _exchange(process, question, on_progress, last_words)
    except TimeoutError:
        raise QuestionError(f"There is no answer within {timeout_s:g} s, so it was stopped.") from None
    except (OSError, ValueError, TypeError) as error:
        raise QuestionError(f"The simulation gives no answer that can be read: {error}") from None
    finally:
        last_words.cancel()
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _read_end(stream: asyncio.StreamReader) -> bytes:
    """Read the stream as it comes, so that its writer never waits, and return the end of it."""
    end = b""
    while some := await stream.read(65_536):
        end = (end + some)[-LAST_WORDS:]
    return end


async def _exchange(
    process: asyncio.subprocess.Process,
    question: dict[str, Any],
    on_progress: Callable[[str], None],
    last_words: asyncio.Task[bytes],
) -> Any:
    assert process.stdin
    assert process.stdout
    process.stdin.write(json.dumps(question).encode())
    process.stdin.close()
    while line := await process.stdout.readline():
        kind, value = json.loads(line)
        if kind == "answer":
            return value
        if kind == "error":
            raise QuestionError(value)
        on_progress(value)
    last_line = (await last_words).decode(errors="replace").strip().rpartition("\n")[2]
    raise QuestionError(f"The simulation has stopped: {last_line or 'without a message'}.")
