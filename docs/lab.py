"""The lab of the tour: a real pool of simulated GPUs, in which four users work for some minutes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_flows.bootstrap.local_stack import Stack
from gpu_flows.common.retry import wait_until
from gpu_flows.worker.status import read_status

CLUSTER, POOL = "3x4:A100:80", "gpu"
SHADOWS = ("srtf", "fair_share")
START_S = 4  # about what a job needs to start, on a machine with other work
PROTECTION = "40s"  # the long jobs of the pictures run for minutes; the short ones are not stopped
# User, name, GPUs, jobs, seconds of each. The first of them fill the cluster, and the later ones wait.
MORNING = (
    ("bob", "resnet-sweep", 1, 6, 40),
    ("carla", "llama-pretrain", 4, 1, 260),
    ("dan", "vit-base", 2, 2, 120),
    ("carla", "whisper-large", 4, 1, 120),
    ("dan", "eval-nightly", 1, 3, 30),
    ("bob", "tokenize", 1, 2, 20),
)
AFTERNOON = (
    ("bob", "resnet-sweep", 1, 8, 25),
    ("dan", "eval-nightly", 1, 6, 15),
    ("carla", "whisper-large", 4, 1, 60),
    ("dan", "vit-base", 2, 2, 40),
    ("bob", "tokenize", 1, 4, 12),
)
# A job of the lab: an epoch takes a second. If it is stopped, it saves how far it is and goes on there later.
TRAIN = """\
import argparse, os, pathlib, signal, sys, time

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
epochs = parser.parse_args().epochs
saved = pathlib.Path(os.environ["GPU_FLOWS_CHECKPOINT_DIR"], "epoch")
first = int(saved.read_text()) if saved.exists() else 1

began = time.monotonic()

def save_and_stop(*_):
    saved.write_text(str(epoch))
    sys.exit(85)

for epoch in range(first, epochs + 1):
    signal.signal(signal.SIGTERM, save_and_stop)
    print(f"Epoch {epoch}/{epochs}", flush=True)
    time.sleep(max(0, began + epoch - first + 1 - time.monotonic()))
"""


class Lab:
    """The pool, and the folder in which its users type commands."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.folder = stack.home / "lab"
        self.folder.mkdir()
        (self.folder / "train.py").write_text(TRAIN)

    def environment(self, user: str = "ann") -> dict[str, str]:
        return {**self.stack.environment(), "LOGNAME": user, "USER": user}

    def cli(self, *words: str, user: str = "ann") -> None:
        command = [sys.executable, "-m", "gpu_flows.cli", *words]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment(user), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"gpu-flows {' '.join(words)}: {done.stdout}{done.stderr}")

    def submit(self, jobs: tuple[tuple[str, str, int, int, int], ...]) -> None:
        for user, name, gpus, count, seconds in jobs:
            array = ("--array", f"1-{count}") if count > 1 else ()
            needs = (*array, "--name", name, "--gpus", str(gpus), "--expected", f"{seconds}s")
            epochs = str(seconds - START_S)
            self.cli("submit", *needs, "--", "python", "train.py", "--epochs", epochs, user=user)

    def wait_for_forecast(self, name: str) -> str:
        """Wait until the start of a waiting job is forecast. Returns the id of its run."""

        def find() -> str:
            status = read_status(POOL)
            jobs = [job for job in status.waiting if job["name"] == name] if status else []
            return next((str(job["id"]) for job in jobs if (job["eta"] or {}).get("start_p50")), "")

        if found := wait_until(find, 60):
            return found
        raise RuntimeError(f"There is no forecast of {name}.")


@contextmanager
def open_lab(home: Path) -> Iterator[Lab]:
    """A pool in the middle of its morning: its jobs run and wait, and shadows plan beside its policy."""
    with Stack(home, pool=POOL) as stack:
        os.environ.update(stack.environment())
        lab = Lab(stack)
        stack.start_server()
        stack.set_up(CLUSTER)
        stack.deploy()
        stack.start_worker()
        lab.cli("policy", "set", "fifo", "--protect", PROTECTION)
        for shadow in SHADOWS:
            lab.cli("policy", "shadow", "add", shadow)
        lab.submit(MORNING)
        yield lab
