"""The memory of simulated devices: one account per device, from which jobs allocate and can run out.

A simulated device has no memory, and a job on it runs on the CPU. A job that states here what it would
allocate on a GPU is held to it as a GPU would: it fails with torch's words if the device is full, or if it
exceeds its share of a shared device. Readings of the device show what all jobs have allocated. Accounts are
files in the pool's folder, which all processes of the machine share; what a dead process had is free.

    python -m gpu_flows.devices.simulated_memory --mb 6000 --seconds 20

is such a job: it allocates in two halves, waits, and reports its peak.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from gpu_flows.checkpoints import contract

FOLDER = "simulated_memory"  # in the folder of a pool


class SimulatedOutOfMemory(RuntimeError):
    """The device has too little free memory, or the job exceeds its share."""


@dataclass(frozen=True, slots=True)
class SimulatedMemory:
    """The accounts of the simulated devices of one pool."""

    folder: Path

    def used(self, device_id: str) -> dict[str, float]:
        """Return what each attempt has allocated on the device, in MiB."""
        try:
            total: dict[str, float] = {}
            for entry in filter(_is_alive, json.loads((self.folder / device_id).read_text() or "[]")):
                total[entry["attempt"]] = total.get(entry["attempt"], 0.0) + entry["mb"]
        except (OSError, ValueError, KeyError, TypeError):  # a job can write anything into this file
            return {}
        return total

    def set(self, device_id: str, size_mb: float, attempt: str, mb: float, share_mb: float = 0) -> None:
        """Let this process have so much of the device. Raises SimulatedOutOfMemory if that is not free."""
        with self._open(device_id) as account:
            others = [entry for entry in account.entries if entry["pid"] != os.getpid()]
            own = sum(entry["mb"] for entry in account.entries) - sum(entry["mb"] for entry in others)
            free = size_mb - sum(entry["mb"] for entry in others)
            if mb > min(free, share_mb or size_mb):
                share = f" {share_mb / 1024:.2f} GiB allowed;" if share_mb else ""
                raise SimulatedOutOfMemory(
                    f"CUDA out of memory. Tried to allocate {(mb - own) / 1024:.2f} GiB. {device_id} has a "
                    f"total capacity of {size_mb / 1024:.2f} GiB of which {(free - own) / 1024:.2f} GiB is "
                    f"free.{share} Of this, this process has {own / 1024:.2f} GiB memory in use."
                )
            started = psutil.Process().create_time()
            account.entries = [
                *others,
                {"pid": os.getpid(), "started": started, "attempt": attempt, "mb": mb},
            ]

    @contextlib.contextmanager
    def _open(self, device_id: str) -> Iterator[_Account]:
        """Open an account. No other process changes it meanwhile."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / device_id).open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            account = _Account([entry for entry in json.loads(file.read() or "[]") if _is_alive(entry)])
            yield account
            file.truncate(0)
            file.write(json.dumps(account.entries))


@dataclass(slots=True)
class _Account:
    entries: list[dict[str, Any]]  # of the processes that are alive: pid, started, attempt, mb


def _is_alive(entry: Mapping[str, Any]) -> bool:
    try:
        return bool(abs(psutil.Process(entry["pid"]).create_time() - entry["started"]) < 1)
    except psutil.Error:
        return False


def allocate(mb: float) -> None:
    """Let this process have so much memory of each device of its job, in all. Raises SimulatedOutOfMemory. To
    be called within a job of a pool with simulated devices."""
    attempt_folder = Path(os.environ["GPU_FLOWS_ATTEMPT_FOLDER"])
    launch = json.loads((attempt_folder / "attempt.json").read_text())
    accounts = SimulatedMemory(attempt_folder.parent.parent / FOLDER)
    for device in launch["devices"]:
        accounts.set(
            device["id"], device["memory_mb"], attempt_folder.name, mb, launch.get("memory_share_mb", 0)
        )
    entry = contract.Entry("memory", contract.attempt_number(), time.time(), bytes=round(mb * 2**20))
    contract.write_entry(Path(os.environ[contract.DIRECTORY]), entry)


def main() -> None:
    parser = argparse.ArgumentParser(description="A job that uses memory of its simulated devices.")
    parser.add_argument("--mb", type=float, required=True, help="what it uses of each device, in MiB")
    parser.add_argument("--seconds", type=float, default=1.0, help="for how long")
    wanted = parser.parse_args()
    try:
        for part in (0.5, 1.0):
            allocate(part * wanted.mb)
            print(f"allocated {part * wanted.mb:.0f} MiB", flush=True)
            time.sleep(wanted.seconds / 2)
    except SimulatedOutOfMemory as error:
        sys.exit(f"SimulatedOutOfMemory: {error}")


if __name__ == "__main__":
    main()
