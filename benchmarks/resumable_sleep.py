"""Sleeps for so many seconds in all, over any number of attempts: it saves what is left when it is stopped.

python -S benchmarks/resumable_sleep.py SECONDS [EPOCHS]

With EPOCHS, it prints its progress after each of them.
"""

import json
import os
import signal
import sys
import time

began = time.time()
folder, attempt = os.environ["GPU_FLOWS_CHECKPOINT_DIR"], os.environ["GPU_FLOWS_ATTEMPT"]
saved = os.path.join(folder, "slept")


def tell(event: str) -> None:
    line = {"event": event, "attempt": int(attempt.rpartition(".")[2]), "time": time.time(), "step": 1}
    with open(os.path.join(folder, "journal.jsonl"), "a") as journal:
        journal.write(json.dumps(line) + "\n")


def save(*_: object) -> None:
    with open(saved, "w") as file:
        file.write(str(slept + time.time() - began))
    tell("saved")
    os._exit(85)


slept = 0.0
signal.signal(signal.SIGTERM, save)
if os.path.exists(saved):
    with open(saved) as file:
        slept = float(file.read())
    tell("restored")
seconds, epochs = float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
for epoch in range(1, epochs + 1):
    left = seconds * epoch / epochs - slept - (time.time() - began)
    if left > 0:
        time.sleep(left)
        if epochs > 1:
            print(f"Epoch {epoch}/{epochs}", flush=True)
