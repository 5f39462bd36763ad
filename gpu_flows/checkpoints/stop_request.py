"""A request to stop (SIGTERM), kept until the job can act on it.

SIGTERM may arrive at any time, also in the middle of a training step. The handler only records it. The job
checks for it between two steps, where its state is consistent, and saves. Then the previous handler of
SIGTERM is called (inside a flow, that is the one of Prefect's engine). If there was none, the job exits with
the code that means "saved".
"""

from __future__ import annotations

import logging
import os
import signal
import time
from types import FrameType
from typing import NoReturn

from gpu_flows.checkpoints.contract import CHECKPOINTED

log = logging.getLogger(__name__)


class StopRequest:
    """Handles SIGTERM between `open` and `close`."""

    def __init__(self) -> None:
        self.received = False
        self._received_at = 0.0
        self._handling_process = 0
        self._previous_handler: signal._HANDLER = signal.SIG_DFL

    def open(self) -> None:
        """Install the handler. Outside the main thread Python does not allow that, so nothing is handled."""
        self._handling_process = os.getpid()
        try:
            self._previous_handler = signal.signal(signal.SIGTERM, self._receive)
        except ValueError:
            self._handling_process = 0
            log.warning(
                "requests to stop cannot be handled, because only a main thread can install a handler for "
                "SIGTERM. Checkpoints are still saved at their interval. Run the loop in the main thread."
            )

    @property
    def seconds_ago(self) -> float:
        return time.monotonic() - self._received_at if self.received else 0.0

    def close(self) -> None:
        """Put the previous handler back."""
        if self._handling_process and signal.getsignal(signal.SIGTERM) == self._receive:
            signal.signal(signal.SIGTERM, self._previous_handler or signal.SIG_DFL)
        self._handling_process = 0

    def exit(self, saved: bool) -> NoReturn:
        """End this process, through the previous handler if there was one."""
        self.close()
        if callable(self._previous_handler):
            self._previous_handler(signal.SIGTERM, None)
        if not saved:  # the exit code must not claim a checkpoint, so end by the signal itself
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        raise SystemExit(CHECKPOINTED)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._handling_process:
            # A forked child, such as a data loader, inherits this handler but never checks `received`.
            # It ends by the signal, as it would without the handler.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif not self.received:
            self._received_at = time.monotonic()
            self.received = True
