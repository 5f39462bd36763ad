"""The recorder: what happens becomes facts in the warehouse, at almost no cost to who reports it.

    write ---> memory ---> spool file ---> warehouse
                     job facts at once,   every two seconds,
                     samples each second  unless somebody reads

`write` only appends to a queue; a thread of the recorder's own does the rest. A kill loses at
most a second of samples, and facts about jobs only if it comes before the thread wakes or `flush`
returns. Whatever fails, facts wait one place earlier and `trouble` says why.
"""

from __future__ import annotations

import atexit
import logging
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Thread

from gpu_flows.analytics.facts import Fact, Sampled
from gpu_flows.analytics.spool import FILE_BYTES, Spool
from gpu_flows.analytics.warehouse import Warehouse, WarehouseError

logger = logging.getLogger(__name__)

FLUSH_EVERY_S = 1.0
FLUSH_AT_ONCE = 1_000  # facts; so trying a full disk again and again stays cheap
READERS_TURN_S = 1.0  # how long somebody may read before it counts as trouble
MOST_WAITING = 200_000  # facts in memory while the spool takes none, some 60 MB


class Recorder:
    """One per process. Every method may be called from any thread, and none raises."""

    def __init__(self, database: Path, spool: Path, drain_every: float = 2.0) -> None:
        self._spool = Spool(spool)
        self._warehouse = Warehouse(database)
        self._drain_every = drain_every
        self._waiting: deque[Fact] = deque()
        self._samples_dropped = 0
        self._troubles = {"spool": "", "warehouse": ""}
        self._flushing, self._draining = Lock(), Lock()
        self._wake, self._stopping = Event(), Event()
        self._thread: Thread | None = None

    @property
    def trouble(self) -> str:
        """Why facts only pile up at the moment; empty when they do not."""
        return " ".join(filter(None, self._troubles.values()))

    def start(self) -> None:
        """Drain in the background from now on, beginning with what an earlier process left."""
        if self._thread is None:
            self._stopping.clear()
            self._thread = Thread(target=self._run, name="recorder", daemon=True)
            self._thread.start()
            atexit.register(self.close)  # a thread that is inside DuckDB at exit would abort the process

    def write(self, *facts: Fact) -> None:
        """Take these facts and return at once."""
        self._waiting.extend(facts)
        if not all(isinstance(fact, Sampled) for fact in facts):
            self._wake.set()

    def flush(self) -> bool:
        """Everything written so far is with the operating system, and outlives this process.
        False when the spool takes nothing; then it is kept in memory."""
        with self._flushing:
            while self._waiting:
                facts = [self._waiting.popleft() for _ in range(min(len(self._waiting), FLUSH_AT_ONCE))]
                try:
                    self._spool.append(facts)
                except OSError as error:
                    self._waiting.extendleft(reversed(facts))
                    self._forget_old_samples()
                    self._report("spool", self._spool_is_stuck(error))
                    return False
            self._report("spool", "")
            return True

    def drain(self) -> bool:
        """Everything written so far is in the warehouse. False when some of it has to wait."""
        flushed = self.flush()
        with self._draining:
            try:
                if self._spool.holds_facts() or not self._warehouse.is_prepared:
                    self._warehouse.load(self._first_batch, READERS_TURN_S)
                while self._spool.ready():
                    self._warehouse.load(self._next_batch, READERS_TURN_S)
            except WarehouseError as error:
                self._report("warehouse", str(error))
                return False
            except Exception as error:  # a mistake of ours must not stop the thread
                logger.exception("Draining the spool failed")
                self._report("warehouse", f"Draining the spool failed: {error!r}. Facts wait there.")
                return False
            self._report("warehouse", "")
            return flushed

    def close(self) -> None:
        """Stop. What the warehouse does not take now stays in the spool for the next start."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            atexit.unregister(self.close)
        self.drain()
        if self._waiting:
            logger.critical("%d facts are lost: %s", len(self._waiting), self.trouble)
        with suppress(OSError):  # then the next start adopts the file as it is
            self._spool.close()
        self._warehouse.close()

    def _run(self) -> None:
        next_drain = 0.0
        while not self._stopping.is_set():
            if time.monotonic() >= next_drain:
                self.drain()
                next_drain = time.monotonic() + self._drain_every
            else:
                self.flush()
            self._wake.wait(min(FLUSH_EVERY_S, self._drain_every))
            self._wake.clear()

    def _first_batch(self) -> Sequence[Path]:
        """Includes what was written until now; what comes during a drain waits for the next."""
        self._spool.rotate()
        return self._next_batch()

    def _next_batch(self) -> Sequence[Path]:
        """The oldest files, as many as make one short transaction."""
        batch: list[Path] = []
        size = 0
        for path in self._spool.ready():
            size += path.stat().st_size
            if batch and size > FILE_BYTES:
                break
            batch.append(path)
        return batch

    def _forget_old_samples(self) -> None:
        """Only samples are given up to keep memory bounded, never a fact about a job."""
        if len(self._waiting) <= MOST_WAITING:
            return
        excess = len(self._waiting) - MOST_WAITING * 9 // 10  # some room, so this is not done each second
        for _ in range(len(self._waiting)):
            fact = self._waiting.popleft()
            if excess and isinstance(fact, Sampled):
                excess -= 1
                self._samples_dropped += 1
            else:
                self._waiting.append(fact)

    def _spool_is_stuck(self, error: OSError) -> str:
        return (
            f"The spool cannot be written ({error.strerror}: {error.filename or self._spool.directory});"
            f" {len(self._waiting)} facts wait in memory, {self._samples_dropped} samples were dropped."
            " Free some space or fix its permissions, and they follow."
        )

    def _report(self, where: str, trouble: str) -> None:
        """Remember it, and log the moment it begins and the moment it is over."""
        before, self._troubles[where] = self._troubles[where], trouble
        if trouble and not before:
            logger.warning(trouble)
        elif before and not trouble:
            logger.info("The %s takes facts again.", where)
