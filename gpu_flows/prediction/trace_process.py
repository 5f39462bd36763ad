"""Predicts a step's memory in a process of its own.

The step is code of its owner: it is imported there, may take long, print and allocate much, start processes,
and end its own. Nothing of that reaches the caller, except an error that says what happened.

`python -m gpu_flows.prediction.trace_process FOLDER SECONDS` reads a request from a file in the folder and
writes the answer to another. scikit-learn is hidden from the step at first: transformers imports it wherever
it finds it, which takes a second, and few training steps use it. A step that does is traced again with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu_flows.schedulers.prediction.estimate import Estimate

TIME_LIMIT_S = 120.0  # for one trace
MOST_MEMORY = 16 * 2**30  # bytes of the process; beyond it an allocation fails
OUTPUT_SHOWN = 4096  # bytes of its output's end, which says why it ended
CHECK_EVERY_S = 0.05
REQUEST, ANSWER, OUTPUT = "request.json", "answer.json", "output"
HIDDEN = "sklearn"
SHOW_ALL = "--all"
STEPS = 2  # optimizer state exists after the first one; what a step leaves behind is there in the next


class TraceError(Exception):
    """A step could not be traced. The message says why and what to do."""


class TraceOptionError(TraceError):
    """The name of the step or an option is wrong, whatever the step does."""


@dataclass(frozen=True, slots=True)
class TracedMemory:
    """The memory of a step on one GPU model: the estimate, and for people what it consists of."""

    estimate: Estimate
    gpu: str
    fits: bool
    parts_mib: dict[str, float]
    seconds: float


def trace_in_process(
    step: str,
    options: Mapping[str, Any],
    gpu: str,
    memory_mib: int = 0,
    time_limit_s: float = TIME_LIMIT_S,
    stop: threading.Event | None = None,
) -> Estimate:
    """Return the memory, in MiB on the device, of the training that `package.module:function` makes.

    `options` are passed to the function as far as it declares them. `memory_mib` is that of the GPU, for one
    whose model is not known. Raises TraceError, also soon after another thread has set `stop`.
    """
    return trace_with_parts(
        step, options, gpu, memory_mib=memory_mib, time_limit_s=time_limit_s, stop=stop
    ).estimate


def trace_with_parts(
    step: str,
    options: Mapping[str, Any],
    gpu: str,
    *,
    needed: tuple[str, ...] = (),
    steps: int = STEPS,
    memory_mib: int = 0,
    time_limit_s: float = TIME_LIMIT_S,
    stop: threading.Event | None = None,
) -> TracedMemory:
    """The same with all that is known. An option in `needed` that has no effect is an error."""
    request = {
        "step": step,
        "options": dict(options),
        "gpu": gpu,
        "memory_mib": memory_mib,
        "needed": list(needed),
        "steps": steps,
    }
    with tempfile.TemporaryDirectory(prefix="gpu-flows-trace-") as name:
        folder = Path(name)
        (folder / REQUEST).write_text(json.dumps(request))
        exit_code = _run(folder, step, time_limit_s, stop or threading.Event())
        if exit_code or not (folder / ANSWER).exists():
            why = _read_end(folder / OUTPUT).rpartition("\n")[2] or f"exit code {exit_code}"
            raise TraceError(f"Tracing {step} ended its process: {why}")
        answer = json.loads((folder / ANSWER).read_text())
    if "error" in answer:
        raise (TraceOptionError if answer.get("is_option") else TraceError)(answer["error"])
    return TracedMemory(**{**answer, "estimate": Estimate(**answer["estimate"])})


def _run(folder: Path, step: str, time_limit_s: float, stop: threading.Event) -> int:
    """Run the process and return its exit code. Nothing that it started is left."""
    deadline = time.monotonic() + time_limit_s
    with (folder / OUTPUT).open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", __name__, str(folder), str(time_limit_s)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},  # a trace needs no device and must not touch one
        )
    try:
        while child.poll() is None:
            if stop.wait(CHECK_EVERY_S):
                raise TraceError(f"Tracing {step} was stopped.")
            if time.monotonic() > deadline:
                raise TraceError(
                    f"Tracing {step} took longer than {time_limit_s:g} s. Make the step from a smaller "
                    "dataset, or allow more time."
                )
        return child.returncode
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _read_end(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - OUTPUT_SHOWN))
        return file.read().decode(errors="replace").strip()


def main() -> None:
    folder, time_limit_s, shows_all = Path(sys.argv[1]), float(sys.argv[2]), SHOW_ALL in sys.argv
    signal.setitimer(signal.ITIMER_REAL, time_limit_s + 5)  # ends this process also if its caller is gone
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    if not shows_all:
        sys.modules[HIDDEN] = None  # type: ignore[assignment]  # importing it fails then
    answer = _answer(json.loads((folder / REQUEST).read_text()))
    if answer.pop("lacks_hidden", False) and not shows_all:
        os.execv(sys.executable, [*sys.orig_argv, SHOW_ALL])  # begins anew, within the same time limit
    (folder / ANSWER).write_text(json.dumps(answer))


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    if find_spec("torch") is None:
        return {"error": "Tracing needs torch, which is not installed. Run: pip install 'gpu-flows[train]'"}
    from gpu_flows.prediction.memory_prediction import predict_step
    from gpu_flows.prediction.step import StepError, StepOptionError

    try:
        return asdict(predict_step(**request))
    except StepError as error:
        return {
            "error": str(error),
            "is_option": isinstance(error, StepOptionError),
            "lacks_hidden": _lacks_hidden(error),
        }


def _lacks_hidden(error: BaseException | None) -> bool:
    """Return whether an import of the hidden package is behind the error."""
    while error:
        if isinstance(error, ImportError) and any(name in str(error) for name in (HIDDEN, "scikit-learn")):
            return True
        error = error.__cause__ or error.__context__
    return False


if __name__ == "__main__":
    main()
