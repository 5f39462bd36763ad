"""A plain torch training loop that can be stopped anywhere and goes on where it was:

    from gpu_flows.checkpoints import resumable

    with resumable(model=model, optimizer=optimizer) as run:
        for step in run.steps(10_000):
            ...  # one step of training, as before

On entering, everything handed over is put back to where the newest checkpoint had it, random numbers
included, and the steps go on from there. Checkpoints are saved every minute, between two steps. SIGTERM
does not interrupt a step either: after it, the job saves and leaves.

Under torchrun the same lines do, after init_process_group: the processes agree on when to save and when to
leave, the first one writes, and a job may go on with another number of processes than it left with.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol

from gpu_flows.checkpoints import contract
from gpu_flows.checkpoints.peers import Peers, processes_started
from gpu_flows.checkpoints.randomness import random_state, restore_random_state
from gpu_flows.checkpoints.stopping import StopRequest
from gpu_flows.checkpoints.store import KEEP, Content, Saved, Store, Unfit

log = logging.getLogger(__name__)

EVERY_S = 60.0

_WHAT_CAN_BE_KEPT = (
    "Keep numbers, text, tensors, and lists and dicts of them in `values` and in what state_dict() answers."
)


class Stateful(Protocol):
    """A model, an optimizer, a learning rate schedule, a gradient scaler, or anything of your own."""

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


class CheckpointError(RuntimeError):
    """A checkpoint cannot be made or does not fit; the message says why and what to do."""


def resumable(
    directory: str | os.PathLike[str] | None = None,
    /,
    *,
    every_s: float = EVERY_S,
    keep: int = KEEP,
    clock: Callable[[], float] = time.monotonic,
    **things: Stateful,
) -> Resumable:
    """Make a training loop resumable; to be entered with `with`.

    Args:
        directory: Where checkpoints are kept. A job of a gpu pool is told by its worker, in
            GPU_FLOWS_CHECKPOINT_DIR. Without one nothing is kept, and SIGTERM means what it always means.
        every_s: Seconds between two checkpoints, and so the most work a kill can lose.
        keep: How many checkpoints to keep.
        clock: What tells the seconds.
        things: What changes while training, each under a name of its own.
    """
    place = directory or os.environ.get(contract.DIRECTORY)
    return Resumable(Path(place) if place else None, every_s, keep, clock, things)


class Resumable:
    """A training on its way: how many steps are done, and plain values that are kept with it.

    `values` is for what else the loop must remember, such as the best loss so far: numbers, text, tensors,
    and lists and dicts of them.
    """

    def __init__(
        self,
        directory: Path | None,
        every_s: float,
        keep: int,
        clock: Callable[[], float],
        things: Mapping[str, Stateful],
    ) -> None:
        self.step = 0
        self.values: dict[str, Any] = {}
        self.directory = directory
        self.every_s = every_s
        self.keep = keep
        self._clock = clock
        self._things = {name: _without_wrapper(thing) for name, thing in things.items()}
        self._stop = StopRequest()
        self._store: Store | None = None  # only the first process has one
        self._saved_at = 0.0
        self._saved_step: int | None = None
        self._loads_safely = False

    # -- what a loop uses -------------------------------------------------------------------------

    def steps(self, total: int) -> Iterator[int]:
        """The numbers of the steps that are left, from 0 to total - 1; each is done when the next is asked
        for."""
        while self.step < total:
            yield self.step
            self.step_done()

    def step_done(self) -> None:
        """A step is complete: now is the moment to save if it is time, and to leave if we are asked to."""
        self.step += 1
        if self.directory is None:
            return
        is_time = self._store is not None and self._clock() - self._saved_at >= self.every_s
        must_leave, must_save = self._peers.any_of(self._stop.made, is_time)
        if must_leave:
            self._leave()
        elif must_save:
            self.save()

    def save(self) -> bool:
        """Save now. Only between two steps, and in all processes alike. A full disk is no reason to stop
        training: it is told in the log, in the answer, and the checkpoints there were are still there."""
        if self.directory is None:
            return False
        randomness = self._peers.to_first(random_state())
        self._saved_at = self._clock()
        if self._store is None:
            return False
        began = time.perf_counter()
        try:
            saved = self._store.save(lambda content: self._write(content, randomness))
        except OSError as error:
            log.warning("no checkpoint at step %d: %s. Make room in %s.", self.step, error, self.directory)
            return False
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise CheckpointError(f"this state cannot be saved: {error}. {_WHAT_CAN_BE_KEPT}") from error
        if not self._loads_safely:
            self._prove(saved)
        self._saved_step = self.step
        self._note("saved", time.perf_counter() - began, saved.bytes)
        return True

    @property
    def should_stop(self) -> bool:
        """Whether this process was asked to stop. `step_done` acts on it; nobody else needs to."""
        return self._stop.made

    # -- from beginning to end --------------------------------------------------------------------

    def __enter__(self) -> Resumable:
        if self.directory is None:
            return self
        self._peers = Peers()
        if self._peers.size < processes_started():
            raise CheckpointError(
                f"this is one of {processes_started()} processes, and they have not met, so each would save "
                "for itself. Call torch.distributed.init_process_group before entering `resumable`."
            )
        self._stop.listen()
        try:
            self._restore(self.directory)
            self._saved_at = self._clock()
            if self._peers.any_of(self._stop.made)[0]:
                self._leave()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None and self.directory is not None and self._peers.any_of(self._stop.made)[0]:
                self._leave()  # asked after the last step: what follows would only be cut short
        finally:
            self._close()

    def _close(self) -> None:
        self._stop.close()
        if self._store is not None:
            self._store.close()
            self._store = None

    def _leave(self) -> None:
        (saved,) = self._peers.any_of(self._store is not None and self._saved_step == self.step)
        if not saved:
            (saved,) = self._peers.any_of(self.save())  # nobody leaves before the checkpoint is whole
        if saved:
            self._note("left", self._stop.seconds_ago)
        self._stop.leave(saved)

    # -- checkpoints ------------------------------------------------------------------------------

    def _write(self, content: Content, randomness: list[dict[str, Any]]) -> None:
        import torch

        state = {
            "step": self.step,
            "values": self.values,
            "random": randomness,
            "things": {name: thing.state_dict() for name, thing in self._things.items()},
        }
        torch.save(state, content)  # type: ignore[arg-type]  # it needs no more of a file than to write

    def _prove(self, saved: Saved) -> None:
        """What cannot be loaded safely should be known at the first checkpoint, not when it is needed."""
        assert self._store is not None
        try:
            _loaded(self._store.read(saved.number))
        except Unfit as why:
            raise CheckpointError(
                f"this checkpoint could not be loaded again: {why}. {_WHAT_CAN_BE_KEPT}"
            ) from None
        self._loads_safely = True

    def _restore(self, directory: Path) -> None:
        began = time.perf_counter()
        content, state = b"", dict[str, Any]()
        if self._peers.is_first:
            self._store = Store(directory, self.keep)
            content, state = self._store.newest(lambda found: (found, _loaded(found))) or (content, state)
        content = self._peers.from_first(content)
        if not content:
            return
        self._fit(state or _loaded(content))
        self._saved_step = self.step
        self._note("restored", time.perf_counter() - began, len(content))

    def _fit(self, state: dict[str, Any]) -> None:
        stored, mine = set(state["things"]), set(self._things)
        try:
            if stored != mine:
                raise ValueError(f"it holds {sorted(stored)}, and this loop has {sorted(mine)}")
            for name, thing in self._things.items():
                thing.load_state_dict(state["things"][name])
            restore_random_state(state["random"], self._peers.rank)
        except (ValueError, TypeError, KeyError, RuntimeError) as error:
            why = " ".join(str(error).split()).rstrip(".")
            raise CheckpointError(
                f"the checkpoint in {self.directory} does not fit this training: {why}. "
                "Train what it was made by, or use another directory."
            ) from error
        self.step, self.values = int(state["step"]), state["values"]

    def _note(self, event: Literal["saved", "restored", "left"], seconds: float, size: int = 0) -> None:
        if self._store is None:
            return
        entry = contract.Entry(
            event, contract.attempt_number(), time.time(), self.step, round(seconds, 6), size
        )
        try:
            contract.note(self._store.directory, entry)
        except OSError as error:  # the journal is for others; the checkpoints do without it
            log.warning("not noted in the journal: %s", error)


def _without_wrapper(thing: Any) -> Stateful:
    """The model inside DistributedDataParallel, so that it can go on with any number of processes."""
    wrapped = type(thing).__name__ in ("DistributedDataParallel", "DataParallel")
    return thing.module if wrapped else thing  # type: ignore[no-any-return]


def _loaded(content: bytes) -> dict[str, Any]:
    """A checkpoint's state. Tensors and plain values only: a pickle that wants more is not obeyed."""
    import torch

    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever the file holds, and whatever torch says to it
        raise Unfit(f"it does not load safely ({str(error).splitlines()[0]})") from error
    if not isinstance(state, dict) or not {"step", "values", "random", "things"} <= state.keys():
        raise Unfit("it was not saved by a resumable training")
    return state
