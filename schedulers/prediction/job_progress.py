"""How far a job is, from everything that its output told so far.

Jobs count epochs, steps in an epoch, or steps in all, and a line rarely says which. The loops are told apart
by what they do: a loop that begins anew is part of another one, a bar that opens while another one is
unfinished is inside it, steps that go on counting in the next epoch count the whole job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gpu_flows.schedulers.prediction.progress_lines import (
    Loop,
    Reading,
    may_tell_progress,
    read_line,
    read_step,
    read_table_row,
    starts_table,
)
from gpu_flows.schedulers.prediction.run_parameters import flatten
from gpu_flows.schedulers.prediction.work_amount import find_epochs, find_steps

MOST_LOOPS = 16
SAME = 0.02  # two fractions that differ by less are the same


class ProgressPoint(NamedTuple):
    """How far a job is."""

    fraction: float | None  # of the whole job; None: its loops turned out to be part of something unknown
    source: str  # what it was read from


class JobProgress:
    """Reads the output of one attempt. The parameters of its run may tell how many epochs or steps it has."""

    def __init__(self, parameters: Mapping[str, Any] | None = None) -> None:
        known = flatten(parameters or {})
        self._epochs = find_epochs(known)  # of the whole job; 0: unknown
        self._all_steps = find_steps(known)
        self._first_epoch: int | None = None  # the number of the first epoch that was seen
        self._done: float | None = None  # epochs; None: no line told an epoch
        self._within = 0.0  # the part of the present epoch that is done
        self._loops: dict[str, Loop] = {}  # loops that are no epochs, the outermost first
        self._passes = 0  # how often the outermost loop began anew
        self._whole = ""  # the loop that counts the steps of the whole job
        self._at_change: dict[str, Loop] = {}  # where the loops were when the epoch changed
        self._reads_table = False

    def read(self, line: str) -> ProgressPoint | None:
        """Return how far the job is, if the line tells it."""
        if not may_tell_progress(line):
            if self._reads_table:
                reading = read_table_row(line)
            elif self._all_steps and ("step" in line or "iter" in line):
                reading = read_step(line)
            else:
                return None
        elif starts_table(line):
            self._reads_table, reading = True, None
        else:
            reading = read_line(line) or (read_step(line) if self._all_steps else None)
        return self._apply(reading) if reading else None

    def _apply(self, reading: Reading) -> ProgressPoint | None:
        if reading.whole is not None:
            return ProgressPoint(reading.whole, reading.source)
        if reading.all_steps:
            self._all_steps = reading.all_steps
        if reading.epochs:
            self._epochs = reading.epochs
        if reading.step is not None and self._all_steps:
            return ProgressPoint(min(1.0, reading.step / self._all_steps), reading.source)
        if reading.epoch is not None:
            self._set_epochs_done(self._count_done(reading))
        elif reading.epochs_done is not None:
            self._set_epochs_done(reading.epochs_done)
        if reading.steps:
            return self._follow_steps(reading.steps, reading.source, of_epoch=reading.epoch is not None)
        if self._done is None or not self._epochs:
            return None
        return ProgressPoint(min(1.0, (self._done + self._within) / self._epochs), reading.source)

    # -- epochs -------------------------------------------------------------------------------

    def _count_done(self, reading: Reading) -> float:
        """Return how many epochs are done. Whether they are counted from 0 or from 1 shows in the first."""
        assert reading.epoch is not None
        if self._first_epoch is None or reading.epoch < self._first_epoch:
            self._first_epoch = reading.epoch
        from_zero = self._first_epoch == 0 or (self._first_epoch > 1 and not reading.epochs)
        if from_zero and reading.epochs and reading.epoch == reading.epochs:
            self._epochs = reading.epochs + 1  # such as 0/9 to 9/9
        return reading.epoch - (0 if from_zero else 1) + int(reading.at_end)

    def _set_epochs_done(self, done: float) -> None:
        if done != self._done:
            if self._done is not None:
                self._at_change = dict(self._loops)
            self._done, self._within = done, 0.0

    # -- steps --------------------------------------------------------------------------------

    def _follow_steps(self, loop: Loop, source: str, of_epoch: bool) -> ProgressPoint | None:
        key = f"{loop.name}/{loop.total:g}"
        before, outermost = self._loops.get(key), next(iter(self._loops), key)
        if before and loop.done < before.done and key == outermost:
            self._passes += 1
        elif before is None and self._done is None and all(one.fraction >= 1 for one in self._loops.values()):
            self._loops.clear()  # what was counted before has ended: this is the next part of the job
            self._passes = 0
        self._loops[key] = loop
        if len(self._loops) > MOST_LOOPS:  # the numbers mean something else
            self._loops.clear()
            return None
        self._check_whole(key, loop)
        if self._whole:
            return ProgressPoint(loop.fraction, source) if key == self._whole else None
        if of_epoch or (self._done is not None and self._epochs):
            return self._within_epoch(loop, source)
        return self._without_epochs(source)

    def _check_whole(self, key: str, loop: Loop) -> None:
        """Find out whether the loop counts the steps of the whole job."""
        if loop.total == self._all_steps:
            self._whole = key
        if not self._epochs or not self._done:
            return
        ahead = loop.fraction - self._done / self._epochs
        before = self._at_change.pop(key, None)
        went_on = before and before.done < loop.done and before.fraction < 1 - SAME
        if went_on and 0 <= ahead < 1 / self._epochs:
            self._whole = key  # it went on in the next epoch, and is as far as the epochs are
        elif self._done % 1 and abs(ahead) < SAME:
            self._whole = key  # the logged part of an epoch shows it

    def _within_epoch(self, loop: Loop, source: str) -> ProgressPoint | None:
        self._within = max(self._within, loop.fraction)
        if not self._epochs or self._done is None:
            return None
        return ProgressPoint(min(1.0, (self._done + self._within) / self._epochs), source)

    def _without_epochs(self, source: str) -> ProgressPoint:
        """Judge a job whose lines tell no epoch. Its outermost loop is the whole job, unless it begins anew
        or the parameters state epochs that it can only be a part of."""
        outer, *inner = self._loops.values()
        done = outer.done + (inner[0].fraction if len(inner) == 1 and outer.fraction < 1 else 0.0)
        fraction = min(1.0, done / outer.total)
        if self._epochs > 1 and (self._passes or outer.total % self._epochs):
            return ProgressPoint(min(1.0, (self._passes + fraction) / self._epochs), source)
        return ProgressPoint(None if self._passes else fraction, source)
