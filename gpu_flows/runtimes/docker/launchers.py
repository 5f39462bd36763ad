"""How a command line comes to run once per device: torchrun, Horovod, or as it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

Launcher = Literal["auto", "torchrun", "horovodrun", "none"]

_PYTHON = re.compile(r"(?:.*/)?python(?:3(?:\.\d+)?)?")
_NOT_PER_DEVICE = (
    "torch",
    "accelerate",
    "deepspeed",
    "horovod",
    "lightning",
    "pytest",
    "pip",
)  # python -m ...


def launched_by(launcher: Launcher, command: Sequence[str], gpus: int) -> tuple[str, ...]:
    """The command line for a job with so many devices. `auto` gives a Python program on several devices to
    torchrun, with the interpreter that was named, and leaves everything else as it is."""
    words = tuple(command)
    if not words or not gpus or launcher == "none":
        return words
    if launcher == "horovodrun":
        return ("horovodrun", "-np", str(gpus), *words)
    interpreter, program = _split(words)
    if launcher == "auto" and (
        gpus == 1 or not program or (program[1:2] and _module(program) in _NOT_PER_DEVICE)
    ):
        return words
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}")
    if program:
        return (*interpreter, *torchrun, *program)
    return ("python", *torchrun, "--no-python", *words)


def _split(words: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """`python -u` and `train.py ...` (or `-m package ...`). No program where there is none that torchrun
    could start: another command than Python, or a line of code after -c."""
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c"):
        at += 2 if words[at] in ("-X", "-W") else 1
    if not _PYTHON.fullmatch(words[0]) or words[at : at + 1] == ("-c",):
        return words, ()
    return words[:at], words[at:]


def _module(program: Sequence[str]) -> str:
    """The package that `-m` names."""
    return program[1].partition(".")[0] if program[0] == "-m" else ""
