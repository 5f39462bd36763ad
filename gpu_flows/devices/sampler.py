"""Reads a source of devices on a steady beat, in a thread of its own.

Nobody waits for a reading: the newest one is at hand in `latest()`, and `on_readings` is called in
the sampler's thread. A reading that takes longer than the beat makes the sampler skip beats, not
fall behind; one that fails is logged, and the next beat tries again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Self

from gpu_flows.devices.base import DeviceSource, Reading

log = logging.getLogger(__name__)


def next_beat(last: float, now: float, every_s: float) -> float:
    """The first beat after now; those that passed meanwhile are skipped."""
    missed = max(0.0, (now - last) // every_s)
    return last + (missed + 1) * every_s


class Sampler:
    """Starts at once, with a first reading; `close()` ends it. The source stays its owner's to close."""

    def __init__(
        self,
        source: DeviceSource,
        every_s: float,
        on_readings: Callable[[float, list[Reading]], None],
    ) -> None:
        if every_s <= 0:
            raise ValueError(f"Readings every {every_s} s make no sense; give a number above 0.")
        self._source = source
        self._every_s = every_s
        self._on_readings = on_readings
        self._latest: dict[str, Reading] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sampler-{source.name}", daemon=True)
        self._thread.start()

    def latest(self) -> dict[str, Reading]:
        """The newest reading of each device, by device id; empty before the first."""
        return dict(self._latest)

    def close(self, patience_s: float = 5.0) -> None:
        """End the beat and wait for the reading under way, but for no longer than `patience_s`."""
        self._closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join(patience_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._closed.wait(max(0.0, due - time.monotonic())):
            try:
                self._beat()
            except Exception:
                log.exception("Devices of %s could not be sampled; trying again", self._source.name)
            due = next_beat(due, time.monotonic(), self._every_s)

    def _beat(self) -> None:
        readings = self._source.read()
        self._latest = {reading.device_id: reading for reading in readings}
        if not self._closed.is_set():
            self._on_readings(time.time(), readings)
