"""What a launched flow's interpreter runs: Prefect's engine, with a handler for requests to stop.

To stop the job, a worker writes its intent into the attempt's folder and sends SIGUSR1. The handler
passes the intent to Prefect's engine and then raises SIGTERM, which the engine handles: a cancelled run
reports itself as cancelled, and a preempted run is not reported as crashed. This needs no connection to
the worker, so it also works after the worker was restarted.

In a container this file is copied in together with `prefect_private.py` and must work without the rest
of the package: the image needs Prefect and the flow only. Secrets arrive there as files and become
variables here.
"""

from __future__ import annotations

import os
import runpy
import signal
from pathlib import Path

try:
    from gpu_flows.prefect_private import announce_intent
except ImportError:
    from prefect_private import announce_intent  # type: ignore[import-not-found,no-redef]

INTENT_FILE = "intent"


def main() -> None:
    signal.signal(signal.SIGUSR1, _stop)
    _load_secrets()
    runpy.run_module("prefect.engine", run_name="__main__")


def _load_secrets() -> None:
    secrets = Path(os.environ.get("GPU_FLOWS_ATTEMPT_FOLDER", "/nowhere"), "secrets")
    for file in secrets.iterdir() if secrets.is_dir() else ():
        os.environ[file.name] = file.read_text()


def _stop(*_: object) -> None:
    folder = os.environ.get("GPU_FLOWS_ATTEMPT_FOLDER", "")
    intent = Path(folder, INTENT_FILE)
    announce_intent(intent.read_text().strip() if intent.exists() else "")
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
