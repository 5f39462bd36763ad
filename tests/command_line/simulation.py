"""Writing a small trace, and running `gpu-flows simulate` on it."""

from __future__ import annotations

from pathlib import Path

from command_line.run import CommandResult, gpu_flows


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def simulate(trace: Path, *words: str, command: str = "simulate") -> CommandResult:
    return gpu_flows(command, "--trace", str(trace), "--cluster", "1x2", *words)
