"""What a launched job's interpreter runs: Prefect's engine, with an ear for requests to stop.

A worker that wants the job to stop writes its intent beside the attempt and sends SIGUSR1. The
handler tells Prefect's engine the intent and then raises the SIGTERM that the engine knows, so
that a cancelled run reports itself cancelled and a preempted one is not reported as crashed.
This needs no connection to the worker, hence it works after the worker was restarted.

In a container this file comes along with `prefect_private.py` and stands alone, so that an image needs
Prefect and the flow, and nothing of ours. Secrets come there as files, and become variables here.
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
    _read_secrets()
    runpy.run_module("prefect.engine", run_name="__main__")


def _read_secrets() -> None:
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
