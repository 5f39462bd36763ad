"""Makes a plain torch training loop resumable:

    from gpu_flows.checkpoints import resumable

    with resumable(model=model, optimizer=optimizer) as run:
        for step in run.steps(10_000):
            ...  # one step of training, as before

Entering the block restores every object from the newest checkpoint, together with the random number
generators, and the steps continue from there. Checkpoints are saved between two steps, every minute by
default. SIGTERM does not interrupt a step: after the step, the job saves and exits.

The same lines work under torchrun, after init_process_group: the processes agree on when to save and when to
stop, the first one reads and writes, and a job may resume with another number of processes.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from gpu_flows.checkpoints import contract
from gpu_flows.checkpoints.process_group import ProcessGroup, count_launched_processes
from gpu_flows.checkpoints.random_state import get_random_state, restore_random_state
from gpu_flows.checkpoints.stop_request import StopRequest
from gpu_flows.checkpoints.store import (
    KEEP,
    CheckpointStore,
    ContentWriter,
    SavedCheckpoint,
    UnusableCheckpoint,
)

log = logging.getLogger(__name__)

EVERY_S = 60.0

_WHAT_CAN_BE_SAVED = (
    "Keep numbers, text, tensors, and lists and dicts of them in `values` and in what state_dict() returns."
)


class Stateful(Protocol):
    """A model, an optimizer, a learning rate schedule, a gradient scaler, or anything with these methods."""

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


class CheckpointError(RuntimeError):
    """A checkpoint cannot be saved or does not fit; the message states why and what to do."""


def resumable(
    directory: str | os.PathLike[str] | None = None,
    /,
    *,
    every_s: float = EVERY_S,
    keep: int = KEEP,
    clock: Callable[[], float] = time.monotonic,
    **objects: Stateful,
) -> Resumable:
    """Make a training loop resumable. Use the result as a context manager.

    Args:
        directory: Where checkpoints are kept. By default it is the one that the worker names in
            GPU_FLOWS_CHECKPOINT_DIR. Without a directory nothing is saved and SIGTERM is not handled.
        every_s: Seconds between two checkpoints, and so the most work that a kill can lose.
        keep: How many checkpoints to keep.
        clock: Returns the time in seconds.
        objects: Everything that changes during training, each under a name of its own.
    """
    place = directory or os.environ.get(contract.DIRECTORY)
    return Resumable(Path(place) if place else None, every_s, keep, clock, objects)


class Resumable:
    """A resumable training: how many steps are done, and values that are saved with them.

    `values` is for whatever else the loop must remember, such as the best loss so far: numbers, text,
    tensors, and lists and dicts of them.
    """

    def __init__(
        self,
        directory: Path | None,
        every_s: float,
        keep: int,
        clock: Callable[[], float],
        objects: Mapping[str, Stateful],
    ) -> None:
        self.step = 0
        self.values: dict[str, Any] = {}
        self.directory = directory
        self.every_s = every_s
        self.keep = keep
        self._clock = clock
        self._objects = {name: _unwrap_model(value) for name, value in objects.items()}
        self._stop = StopRequest()
        self._store: CheckpointStore | None = None  # only in the first process
        self._saved_at = 0.0
        self._saved_step: int | None = None
        self._has_been_verified = False

    # -- called by the loop -----------------------------------------------------------------------

    def steps(self, total: int) -> Iterator[int]:
        """Yield the numbers of the remaining steps, up to total - 1. Asking for the next number completes the
        current step."""
        while self.step < total:
            yield self.step
            self.step_done()

    def step_done(self) -> None:
        """Complete a step: save if it is time to, and stop if the job was asked to."""
        self.step += 1
        if self.directory is None:
            return
        is_time = self._store is not None and self._clock() - self._saved_at >= self.every_s
        must_stop, must_save = self._processes.any(self._stop.received, is_time)
        if must_stop:
            self._save_and_exit()
        elif must_save:
            self.save()

    def save(self) -> bool:
        """Save a checkpoint now and return whether that succeeded.

        Call it between two steps only, and in all processes. A full disk does not stop the training: it is
        logged, and the older checkpoints stay.
        """
        if self.directory is None:
            return False
        random_states = self._processes.gather(get_random_state())
        self._saved_at = self._clock()
        if self._store is None:
            return False
        began = time.perf_counter()
        try:
            saved = self._store.save(lambda content: self._write(content, random_states))
        except OSError as error:
            log.warning("no checkpoint at step %d: %s. Make room in %s.", self.step, error, self.directory)
            return False
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise CheckpointError(f"this state cannot be saved: {error}. {_WHAT_CAN_BE_SAVED}") from error
        if not self._has_been_verified:
            self._verify(saved)
        self._saved_step = self.step
        self._write_entry("saved", time.perf_counter() - began, saved.bytes)
        return True

    @property
    def should_stop(self) -> bool:
        """Whether this process was asked to stop. `step_done` acts on it, so most loops need not check."""
        return self._stop.received

    # -- start and end ----------------------------------------------------------------------------

    def __enter__(self) -> Resumable:
        if self.directory is None:
            return self
        self._processes = ProcessGroup()
        if self._processes.size < (launched := count_launched_processes()):
            raise CheckpointError(
                f"this is one of {launched} processes without a process group, so each would save its own "
                "checkpoints. Call torch.distributed.init_process_group before entering `resumable`."
            )
        self._stop.open()
        try:
            self._restore(self.directory)
            self._saved_at = self._clock()
            if self._processes.any(self._stop.received)[0]:
                self._save_and_exit()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            # A request that arrives after the last step still ends the job here. What follows the block
            # would be killed at the end of the grace period.
            if kind is None and self.directory is not None and self._processes.any(self._stop.received)[0]:
                self._save_and_exit()
        finally:
            self._close()

    def _close(self) -> None:
        self._stop.close()
        if self._store is not None:
            self._store.close()
            self._store = None

    def _save_and_exit(self) -> None:
        (saved,) = self._processes.any(self._store is not None and self._saved_step == self.step)
        if not saved:
            # `any` also makes the other processes wait until the first one has saved.
            (saved,) = self._processes.any(self.save())
        if saved:
            self._write_entry("left", self._stop.seconds_ago)
        self._stop.exit(saved)

    # -- checkpoints ------------------------------------------------------------------------------

    def _write(self, content: ContentWriter, random_states: list[dict[str, Any]]) -> None:
        import torch

        state = {
            "step": self.step,
            "values": self.values,
            "random": random_states,
            "things": {name: stateful.state_dict() for name, stateful in self._objects.items()},
        }
        torch.save(state, content)  # type: ignore[arg-type]  # it calls only `write` and `flush`

    def _verify(self, saved: SavedCheckpoint) -> None:
        """Load the first checkpoint once, so that a state that cannot be restored is an error now."""
        assert self._store is not None
        try:
            _load(self._store.read(saved.number))
        except UnusableCheckpoint as error:
            raise CheckpointError(
                f"this checkpoint could not be loaded again: {error}. {_WHAT_CAN_BE_SAVED}"
            ) from None
        self._has_been_verified = True

    def _restore(self, directory: Path) -> None:
        began = time.perf_counter()
        content, state = b"", dict[str, Any]()
        if self._processes.is_first:
            self._store = CheckpointStore(directory, self.keep)
            content, state = self._store.load_newest(lambda found: (found, _load(found))) or (content, state)
        content = self._processes.broadcast(content)
        if not content:
            return
        self._apply(state or _load(content))
        self._saved_step = self.step
        self._write_entry("restored", time.perf_counter() - began, len(content))

    def _apply(self, state: dict[str, Any]) -> None:
        stored, present = set(state["things"]), set(self._objects)
        try:
            if stored != present:
                raise ValueError(f"it holds {sorted(stored)}, and this loop has {sorted(present)}")
            for name, stateful in self._objects.items():
                stateful.load_state_dict(state["things"][name])
            restore_random_state(state["random"], self._processes.rank)
        except (ValueError, TypeError, KeyError, RuntimeError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise CheckpointError(
                f"the checkpoint in {self.directory} does not fit this training: {reason}. "
                "Restore the training that saved it, or use another directory."
            ) from error
        self.step, self.values = int(state["step"]), state["values"]

    def _write_entry(self, event: contract.EventKind, seconds: float, size: int = 0) -> None:
        if self._store is None:
            return
        attempt = contract.attempt_number()
        entry = contract.Entry(event, attempt, time.time(), self.step, round(seconds, 6), size)
        try:
            contract.write_entry(self._store.directory, entry)
        except OSError as error:  # checkpoints work without the journal
            log.warning("the journal in %s cannot be written: %s", self.directory, error)


def _unwrap_model(stateful: Any) -> Stateful:
    """Return the model inside DistributedDataParallel, so that it fits any number of processes."""
    is_wrapper = type(stateful).__name__ in ("DistributedDataParallel", "DataParallel")
    return stateful.module if is_wrapper else stateful  # type: ignore[no-any-return]


def _load(content: bytes) -> dict[str, Any]:
    """Return a checkpoint's state. Only tensors and plain values are loaded; no pickled code is executed."""
    import torch

    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # the content may be anything, and torch raises many kinds of errors
        raise UnusableCheckpoint(f"it does not load safely ({str(error).splitlines()[0]})") from error
    if not isinstance(state, dict) or not {"step", "values", "random", "things"} <= state.keys():
        raise UnusableCheckpoint("it was not saved by a resumable training")
    return state
