"""What a launched flow's interpreter runs: Prefect's engine, with a handler for requests to stop.

Prefect's engine ends with 0 also if the flow has failed. A flow that runs a command leaves the command's exit
code in an environment variable, and the process ends with that. One that runs out of GPU memory ends with a
code of its own.

To stop the job, a worker writes its intent into the attempt's folder and sends SIGUSR1. The handler
passes the intent to Prefect's engine and then raises SIGTERM, which the engine handles: a cancelled run
reports itself as cancelled, and a preempted run is not reported as crashed. This needs no connection to
the worker, so it also works after the worker was restarted.

In a container this file is copied in together with `prefect_private.py` and must work without the rest
of the package: the image needs Prefect and the flow only. Secrets arrive there as files and become
variables here.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import runpy
import signal
import sys
from collections.abc import MutableMapping
from pathlib import Path

try:
    from gpu_flows.prefect_private import LogErrorsOnce, announce_intent, leave_unreported
except ImportError:
    from prefect_private import (  # type: ignore[import-not-found,no-redef]
        LogErrorsOnce,
        announce_intent,
        leave_unreported,
    )

INTENT_FILE = "intent"
EXIT_CODE = "GPU_FLOWS_EXIT_CODE"  # as in `checkpoints.contract`, which an image may lack
OUT_OF_MEMORY = 86  # the same
WAITS_FOR_MEMORY = "GPU_FLOWS_WAITS_FOR_MEMORY"  # set if the job waits for more when it runs out of memory
MEMORY_FRACTION = "GPU_FLOWS_GPU_MEMORY_FRACTION"  # torch's part of its smallest device
ALLOCATOR_OPTIONS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # every torch reads the second one
FRACTION_OPTION = "per_process_memory_fraction"  # of torch's CUDA allocator


def main() -> None:
    signal.signal(signal.SIGUSR1, _stop)
    _load_secrets()
    limit_torch_memory(os.environ)
    LogErrorsOnce.install()
    _wait_for_memory()
    os.environ.pop(EXIT_CODE, None)  # of a job that started this one
    try:
        runpy.run_module("prefect.engine", run_name="__main__")
    except SystemExit as ending:
        if ending.code or not os.environ.get(EXIT_CODE):
            raise
    sys.exit(int(os.environ.get(EXIT_CODE) or 0))


def _load_secrets() -> None:
    secrets = Path(os.environ.get("GPU_FLOWS_ATTEMPT_FOLDER", "/nowhere"), "secrets")
    for file in secrets.iterdir() if secrets.is_dir() else ():
        os.environ[file.name] = file.read_text()


def _wait_for_memory() -> None:
    """Leave it to the worker to report a flow that runs out of GPU memory, if the worker lets it wait again.
    The exit code tells the worker so, the last lines of the output how much was missing. An image without
    gpu-flows cannot tell; its worker corrects the state of the run afterwards."""
    if not os.environ.get(WAITS_FOR_MEMORY):
        return
    with contextlib.suppress(ImportError):
        from gpu_flows.prediction.memory_failure import find_memory_failure

        def is_out_of_memory(error: str) -> bool:
            failure = find_memory_failure(error)
            if failure:
                os.environ[EXIT_CODE] = str(OUT_OF_MEMORY)
                print(failure.line, file=sys.stderr, flush=True)
            return failure is not None

        leave_unreported(os.environ.get("PREFECT__FLOW_RUN_ID", ""), is_out_of_memory)


def limit_torch_memory(environment: MutableMapping[str, str]) -> None:
    """Hold torch to the job's share of its devices, before the flow imports torch. A torch that is too old
    for the option would fail because of it, so its list of options is read first."""
    fraction = environment.get(MEMORY_FRACTION)
    torch = importlib.util.find_spec("torch") if fraction else None
    if torch is None or torch.origin is None:
        return
    options = Path(torch.origin).parent / "include/c10/cuda/CUDAAllocatorConfig.h"
    if options.exists() and FRACTION_OPTION in options.read_text(errors="replace"):
        new, old = ALLOCATOR_OPTIONS
        name = new if environment.get(new) else old
        before = environment.get(name, "")
        if FRACTION_OPTION not in before:
            environment[name] = ",".join(filter(None, (before, f"{FRACTION_OPTION}:{fraction}")))


def _stop(*_: object) -> None:
    folder = os.environ.get("GPU_FLOWS_ATTEMPT_FOLDER", "")
    intent = Path(folder, INTENT_FILE)
    announce_intent(intent.read_text().strip() if intent.exists() else "")
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
