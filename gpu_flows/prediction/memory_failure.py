"""Recognizes in the last lines of a job's output that it ran out of GPU memory.

Only what a framework prints when it gives up counts, and only if it is the last error: a job that mentions
GPU memory in a log line, warns and goes on, or meets another error later, did not die of it. Errors that a
process meets because another one died are no others. Main memory is another thing: the kernel kills a process
for it without a word, and a container's end states it (`End.oom_killed`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_LINES = 300  # of the output's end: a failure of several processes prints a traceback for each
LONGEST_LINE = 2000  # characters that are searched: the time grows with the square of the length

_FAILURES = re.compile(
    "|".join(
        (
            r"\bOutOfMemoryError\b.*\b(?:CUDA|HIP|XPU|MPS|GPU)\b",  # torch, CuPy
            r"\b(?:CUDA|HIP) out of memory\. Tried to allocate",  # torch's message under any class
            r"\bRuntimeError: (?:CUDA|HIP)(?: error:)? out of memory",
            r"\bCUDA error: out of memory",  # an asynchronous allocation, or another library's
            r"\bcupy\S*\.OutOfMemoryError\b",
            r"\b(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_ALLOC_FAILED\b",
            r"\bCUFFT_ALLOC_FAILED\b",
            r"\bcudaErrorMemoryAllocation\b",
            r"\bRESOURCE_EXHAUSTED: Out of memory",  # JAX
            r"\bOOM when allocating tensor\b.*\bGPU",  # TensorFlow, which prints the same for main memory
            r"(?:Error|Exception): .*\bCUDA_ERROR_OUT_OF_MEMORY\b",  # alone it is TensorFlow's first, big try
        )
    )
)
# A line of a log at a level below an error: the program went on.
_HARMLESS = re.compile(r"\b(?:DEBUG|INFO|WARN|WARNING)\b|\w*Warning:|^[IW]\d{4} ", re.IGNORECASE)
# The last line of a traceback, after the number of its process as torchrun writes it.
_ERROR = re.compile(r"(\[\w+\]:\s*)?[\w.]*(?:Error|Exception)\b(?!\()")
_CAUSED = re.compile(r"(?:\[\w+\]:\s*)?The above exception was the direct cause of the following exception")
_CONSEQUENCE = re.compile(
    r"\b(?:ChildFailed|CalledProcess|Connection(?:Reset|Refused|Aborted)|BrokenPipe|EOF|Dist\w*)Error\b"
    r"|\bProcess(?:Raised|Exited)Exception\b|NCCL|[Gg]loo|Connection (?:closed|reset)|\bworker\b.*\bexited"
)

_SIZE = r"([\d.]+) ?([KMGT]i?B)"
_WANTED = re.compile(rf"Tried to allocate {_SIZE}")
_USED = re.compile(rf"this process has {_SIZE} memory in use|{_SIZE} already allocated")
_MIB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}


@dataclass(frozen=True, slots=True)
class MemoryFailure:
    """A job ran out of GPU memory."""

    line: str  # what it printed
    needed_mb: float | None = None  # at least so much: what it had, and what it asked for in addition


def find_memory_failure(output: str) -> MemoryFailure | None:
    """Return the failure for lack of GPU memory that is the last error in an output; None if it is not."""
    lines = [line[:LONGEST_LINE] for line in output.splitlines()[-MOST_LINES:]]
    for number in reversed(range(len(lines))):
        line = lines[number]
        failure = _FAILURES.search(line)
        if failure and not _HARMLESS.search(line[: failure.start()]):
            if _finds_another_error(line, lines[number + 1 :]):
                return None
            return MemoryFailure(line.strip()[:500], _find_need(line))
    return None


def _finds_another_error(line: str, later: list[str]) -> bool:
    """Return whether a process that met this error met another one later, which this one did not cause."""
    own, is_caused = _ERROR.match(line), False
    for text in later:
        is_caused = is_caused or bool(_CAUSED.match(text))
        if error := _ERROR.match(text):
            is_same_process = own is None or own[1] == error[1]
            if is_same_process and not is_caused and not _CONSEQUENCE.search(text):
                return True
            is_caused = False
    return False


def _find_need(line: str) -> float | None:
    wanted, used = _WANTED.search(line), _USED.search(line)
    if wanted is None or used is None:
        return None
    return _to_mib(*wanted.groups()) + _to_mib(*(part for part in used.groups() if part))


def _to_mib(number: str, unit: str) -> float:
    return float(number) * _MIB[unit[0]]
