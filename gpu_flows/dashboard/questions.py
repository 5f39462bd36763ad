"""Asks a process of its own (`simulating`), which may take its time, and never delays the page."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

LONGEST_LINE = 32 << 20  # of an answer, in bytes


class QuestionError(Exception):
    """The question has no answer. The message says why."""


async def ask_process(
    question: dict[str, Any], timeout_s: float, on_progress: Callable[[str], None] = lambda text: None
) -> Any:
    """Return the answer. Raises QuestionError. The process is killed when the time is up, or the caller is
    cancelled."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpu_flows.dashboard.simulating"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=LONGEST_LINE,
    )
    try:
        async with asyncio.timeout(timeout_s):
            return await _exchange(process, question, on_progress)
    except TimeoutError:
        raise QuestionError(f"There is no answer within {timeout_s:g} s, so it was stopped.") from None
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _exchange(
    process: asyncio.subprocess.Process, question: dict[str, Any], on_progress: Callable[[str], None]
) -> Any:
    assert process.stdin
    assert process.stdout
    assert process.stderr
    process.stdin.write(json.dumps(question).encode())
    process.stdin.close()
    while line := await process.stdout.readline():
        kind, value = json.loads(line)
        if kind == "answer":
            return value
        if kind == "error":
            raise QuestionError(value)
        on_progress(value)
    last_line = (await process.stderr.read()).decode(errors="replace").strip().rpartition("\n")[2]
    raise QuestionError(f"The simulation has stopped: {last_line or 'without a message'}.")
