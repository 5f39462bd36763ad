"""A request to stop, remembered until a good moment.

SIGTERM may come anywhere, also halfway through a step. Here it only leaves a mark. The job looks at it
where its state is consistent, saves, and then leaves the way it would have left: whoever handled SIGTERM
before us (Prefect's engine does, inside a flow) gets it now; where nobody did, the exit code says that the
job has saved.
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
    """Listens for SIGTERM from `listen` on, until `close` or until the job has left."""

    def __init__(self) -> None:
        self.made = False
        self._made_at = 0.0
        self._listener = 0
        self._before: signal._HANDLER = signal.SIG_DFL

    def listen(self) -> None:
        self._listener = os.getpid()
        try:
            self._before = signal.signal(signal.SIGTERM, self._hear)
        except ValueError:
            self._listener = 0
            log.warning(
                "a request to stop is not heard: only a main thread can listen for SIGTERM. "
                "Checkpoints are still saved now and then."
            )

    @property
    def seconds_ago(self) -> float:
        return time.monotonic() - self._made_at if self.made else 0.0

    def close(self) -> None:
        if self._listener and signal.getsignal(signal.SIGTERM) == self._hear:
            signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)
        self._listener = 0

    def leave(self, saved: bool) -> NoReturn:
        """Go, as whoever listened before us would have gone."""
        self.close()
        if callable(self._before):
            self._before(signal.SIGTERM, None)
        if not saved:  # then die as one who never listened: the code for "saved" would be a lie
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        raise SystemExit(CHECKPOINTED)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._listener:
            # A child that was forked with this handler in it, such as one that loads data: nobody
            # there looks at the mark, so it ends as it would have without us.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif not self.made:
            self._made_at = time.monotonic()
            self.made = True
