"""Builds the stand-in for NVIDIA's library and writes the file with the values that it returns."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("standin.c")
CONTROL_VARIABLE = "NVML_STANDIN"
XID, DOUBLE_BIT_ECC = 8, 2  # NVML's event types
NO_PERMISSION, DRIVER_NOT_LOADED, GPU_IS_LOST, UNKNOWN_ERROR = 4, 9, 15, 999


def build(folder: Path) -> Path:
    """Compile the library into this folder, under the name that the dynamic loader expects, and return it."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("The stand-in for libnvidia-ml needs a C compiler: install gcc or clang.")
    library = folder / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run([compiler, *flags, "-o", str(library), str(SOURCE)], check=True)
    return library


class StandIn:
    """The GPUs that the stand-in library reports. The next NVML call sees a change."""

    def __init__(self, library: Path, control: Path) -> None:
        self.library = str(library)
        self._control = control
        self._values: dict[str, object] = {"count": 0}
        self._events = 0
        self._write()

    def add_gpu(self, **fields: object) -> str:
        """Add a GPU with usual values except for these fields, and return its UUID."""
        index = self.count
        usual: dict[str, object] = {
            "name": "NVIDIA H100",
            "uuid": f"GPU-{index}",
            "memory": "81920 1024",
            "utilization": 37,
            "power": 250500,
            "temperature": 54,
            "ecc": 0,
            "processes": "",
            "events": XID | DOUBLE_BIT_ECC,
            **fields,
        }
        self.set({f"gpu{index}.{name}": value for name, value in usual.items()}, count=index + 1)
        return str(usual["uuid"])

    def add_slice(self, gpu: int, index: int, **fields: object) -> str:
        """Add a MIG slice to a GPU, which is in MIG mode from then on, and return its UUID."""
        usual: dict[str, object] = {
            "name": "NVIDIA H100 MIG 1g.10gb",
            "uuid": f"MIG-{gpu}-{index}",
            "memory": "9984 12",
            "gi": index + 7,
            "ci": 0,
            **fields,
        }
        self.set({f"gpu{gpu}.mig{index}.{name}": value for name, value in usual.items()})
        self.set({f"gpu{gpu}.mig": 1})
        return str(usual["uuid"])

    def add_event(self, gpu: int, event: int, data: int = 0, instance: tuple[int, int] = (-1, -1)) -> None:
        """Make NVML report an event now."""
        line = f"gpu{gpu} {event} {data} {instance[0]} {instance[1]}"
        self.set({f"event{self._events}": line})
        self._events += 1

    def set(self, values: dict[str, object] | None = None, **more: object) -> None:
        self._values |= (values or {}) | more
        self._write()

    def unset(self, key: str) -> None:
        del self._values[key]
        self._write()

    @property
    def count(self) -> int:
        return int(str(self._values["count"]))

    def _write(self) -> None:
        new = self._control.with_suffix(".new")
        new.write_text("".join(f"{key}={value}\n" for key, value in self._values.items()))
        os.replace(new, self._control)
