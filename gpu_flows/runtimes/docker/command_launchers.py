"""Command lines that start one process per device: with torchrun, with horovodrun, or unchanged."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

Launcher = Literal["auto", "torchrun", "horovodrun", "none"]

_PYTHON = re.compile(r"(?:.*/)?python(?:3(?:\.\d+)?)?")
# Modules that `python -m` runs and that start their own processes, or need none.
_NOT_PER_DEVICE = ("torch", "accelerate", "deepspeed", "horovod", "lightning", "pytest", "pip")


def wrap_command(launcher: Launcher, command: Sequence[str], gpus: int) -> tuple[str, ...]:
    """Return the command line for a job with this number of devices.

    `auto` runs a Python program on several devices with torchrun, under the interpreter that the command
    names, and returns every other command unchanged.
    """
    arguments = tuple(command)
    if not arguments or not gpus or launcher == "none":
        return arguments
    if launcher == "horovodrun":
        return ("horovodrun", "-np", str(gpus), *arguments)
    interpreter, program = _split(arguments)
    if launcher == "auto" and (
        gpus == 1 or not program or (program[1:2] and _module(program) in _NOT_PER_DEVICE)
    ):
        return arguments
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}")
    if program:
        return (*interpreter, *torchrun, *program)
    return ("python", *torchrun, "--no-python", *arguments)


def _split(arguments: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split `python -u train.py ...` into `python -u` and `train.py ...` (or `-m package ...`). The second
    part is empty if torchrun cannot start it: not Python, or code after -c."""
    at = 1
    while at < len(arguments) and arguments[at].startswith("-") and arguments[at] not in ("-m", "-c"):
        at += 2 if arguments[at] in ("-X", "-W") else 1
    if not _PYTHON.fullmatch(arguments[0]) or arguments[at : at + 1] == ("-c",):
        return arguments, ()
    return arguments[:at], arguments[at:]


def _module(program: Sequence[str]) -> str:
    """Return the package that `-m` names."""
    return program[1].partition(".")[0] if program[0] == "-m" else ""
