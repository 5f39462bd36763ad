"""The recorder: brings facts into the warehouse without delaying the code that reports them.

    write ---> memory ---> spool file ---> warehouse
                     job facts at once,   every two seconds,
                     samples each second  unless it is being read

`write` only appends to a queue; a thread of the recorder does the rest. A kill loses at most one second
of samples, and facts about jobs only if it comes before the thread wakes or `flush` returns. If a step
fails, facts wait in the place before it, and `trouble` says why. The thread also rolls up old samples and
deletes those that are not kept (sample_minutes).
"""

from __future__ import annotations

import atexit
import logging
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Lock, Thread

from gpu_flows.analytics.fact_spool import FILE_BYTES, Spool
from gpu_flows.analytics.facts import Fact, Sampled
from gpu_flows.analytics.warehouse import Warehouse, WarehouseError

logger = logging.getLogger(__name__)

FLUSH_EVERY_S = 1.0
AGE_EVERY_S = 60.0  # looks for samples that are old enough to be rolled up or deleted
FACTS_PER_WRITE = 1_000  # small, so that repeated attempts to write to a full disk stay cheap
WAIT_FOR_READER_S = 1.0  # a query that takes longer counts as trouble
MOST_IN_MEMORY = 200_000  # facts while the spool cannot be written, about 60 MB


class Recorder:
    """Records facts; one per process. Any thread may call any method, and none of them raises."""

    def __init__(
        self, database: Path, spool: Path, drain_every: float = 2.0, keep_samples: timedelta | None = None
    ) -> None:
        self.database = database
        self._keep_samples = keep_samples  # None: for ever
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
        """Why facts do not reach the warehouse at the moment; empty if they do."""
        return " ".join(filter(None, self._troubles.values()))

    def start(self) -> None:
        """Start a thread that loads facts in the background, also those of an earlier process."""
        if self._thread is None:
            self._stopping.clear()
            self._thread = Thread(target=self._run, name="recorder", daemon=True)
            self._thread.start()
            atexit.register(self.close)  # a thread inside DuckDB at exit would abort the process

    def write(self, *facts: Fact) -> None:
        """Accept facts, without waiting for the disk."""
        self._waiting.extend(facts)
        if not all(isinstance(fact, Sampled) for fact in facts):
            self._wake.set()

    def flush(self) -> bool:
        """Hand everything written so far to the operating system, so that it outlives this process.
        Returns False if the spool cannot be written; then facts stay in memory."""
        with self._flushing:
            while self._waiting:
                facts = [self._waiting.popleft() for _ in range(min(len(self._waiting), FACTS_PER_WRITE))]
                try:
                    self._spool.append(facts)
                except OSError as error:
                    self._waiting.extendleft(reversed(facts))
                    self._drop_old_samples()
                    self._report("spool", self._describe_spool_error(error))
                    return False
            self._report("spool", "")
            return True

    def drain(self) -> bool:
        """Load everything written so far into the warehouse. Returns False if some facts have to wait."""
        flushed = self.flush()
        with self._draining:
            try:
                if self._spool.holds_facts() or not self._warehouse.is_prepared:
                    self._warehouse.load(self._first_batch, WAIT_FOR_READER_S)
                while self._spool.ready():
                    self._warehouse.load(self._next_batch, WAIT_FOR_READER_S)
            except WarehouseError as error:
                self._report("warehouse", str(error))
                return False
            except Exception as error:  # a programming error must not stop the thread
                logger.exception("Draining the spool failed")
                self._report("warehouse", f"Draining the spool failed: {error!r}. Facts wait there.")
                return False
            self._report("warehouse", "")
            return flushed

    def age_samples(self, now: datetime) -> bool:
        """Roll up old samples, or delete some that are not kept any longer. Returns whether there may be more
        to do."""
        with self._draining:
            try:
                return self._warehouse.age_samples(now, self._keep_samples)
            except WarehouseError as error:  # most often a reader; it is tried again
                logger.debug("Samples are not rolled up now: %s", error.problem)
                return False

    def close(self) -> None:
        """Stop the thread and load what is left. If that fails, it stays in the spool for the next start."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            atexit.unregister(self.close)
        self.drain()
        if self._waiting:
            logger.critical("%d facts are lost: %s", len(self._waiting), self.trouble)
        with suppress(OSError):  # the next start adopts the file
            self._spool.close()
        self._warehouse.close()

    def _run(self) -> None:
        next_drain = next_aging = 0.0
        while not self._stopping.is_set():
            if time.monotonic() >= next_drain:
                if (
                    self.drain()
                    and time.monotonic() >= next_aging
                    and not self.age_samples(datetime.now(UTC))
                ):
                    next_aging = time.monotonic() + AGE_EVERY_S
                next_drain = time.monotonic() + self._drain_every
            else:
                self.flush()
            self._wake.wait(min(FLUSH_EVERY_S, self._drain_every))
            self._wake.clear()

    def _first_batch(self) -> Sequence[Path]:
        """Return the first files to load, including the facts written until now. Facts that are written
        during a drain wait for the next one, so that a drain ends."""
        self._spool.rotate()
        return self._next_batch()

    def _next_batch(self) -> Sequence[Path]:
        """Return the oldest files, as many as make one short transaction."""
        batch: list[Path] = []
        size = 0
        for path in self._spool.ready():
            size += path.stat().st_size
            if batch and size > FILE_BYTES:
                break
            batch.append(path)
        return batch

    def _drop_old_samples(self) -> None:
        """Keep memory bounded by dropping samples, never facts about jobs."""
        if len(self._waiting) <= MOST_IN_MEMORY:
            return
        # Down to nine tenths of the limit, so that this is not done every second.
        excess = len(self._waiting) - MOST_IN_MEMORY * 9 // 10
        for _ in range(len(self._waiting)):
            fact = self._waiting.popleft()
            if excess and isinstance(fact, Sampled):
                excess -= 1
                self._samples_dropped += 1
            else:
                self._waiting.append(fact)

    def _describe_spool_error(self, error: OSError) -> str:
        return (
            f"The spool cannot be written ({error.strerror}: {error.filename or self._spool.directory});"
            f" {len(self._waiting)} facts wait in memory, {self._samples_dropped} samples were dropped."
            " Free some space or fix the permissions; the facts are then written."
        )

    def _report(self, where: str, trouble: str) -> None:
        """Store the trouble (empty: none), and log when it begins and when it ends."""
        before, self._troubles[where] = self._troubles[where], trouble
        if trouble and not before:
            logger.warning(trouble)
        elif before and not trouble:
            logger.info("The %s accepts facts again.", where)
