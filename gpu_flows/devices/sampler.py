"""Reads a source of devices at a fixed interval, in a thread of its own.

`on_readings` is called in the sampler's thread, and `latest()` returns the newest readings without waiting.
If reading takes longer than the interval, the sampler skips samples instead of catching up. A failure is
logged, and the next sample is taken as usual.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Self

from gpu_flows.devices.base import DeviceSource, Reading

log = logging.getLogger(__name__)


def next_sample_time(last: float, now: float, every_s: float) -> float:
    """Return the first sample time after now. Those that have passed are skipped."""
    missed = max(0.0, (now - last) // every_s)
    return last + (missed + 1) * every_s


class Sampler:
    """Takes the first sample immediately, and further ones until `close()`. The caller closes the source."""

    def __init__(
        self,
        source: DeviceSource,
        every_s: float,
        on_readings: Callable[[float, list[Reading]], None],
    ) -> None:
        if every_s <= 0:
            raise ValueError(f"The interval of readings must be above 0, not {every_s} s.")
        self._source = source
        self._every_s = every_s
        self._on_readings = on_readings
        self._latest: dict[str, Reading] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sampler-{source.name}", daemon=True)
        self._thread.start()

    def latest(self) -> dict[str, Reading]:
        """Return the newest reading of each device by device id; empty before the first sample."""
        return dict(self._latest)

    def close(self, patience_s: float = 5.0) -> None:
        """Stop sampling, and wait at most `patience_s` for a sample that is being taken."""
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
                self._sample()
            except Exception:
                log.exception(
                    "The devices of %s could not be read. They are read again at the next sample.",
                    self._source.name,
                )
            due = next_sample_time(due, time.monotonic(), self._every_s)

    def _sample(self) -> None:
        readings = self._source.read()
        self._latest = {reading.device_id: reading for reading in readings}
        if not self._closed.is_set():
            self._on_readings(time.time(), readings)
