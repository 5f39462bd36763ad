"""A policy that carries out decisions made elsewhere, one at a time, and knows which are possible."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpu_flows.schedulers.learning.decisions import Decisions, Start, Stop
from gpu_flows.schedulers.learning.features import LEASE_S, NAMES, Floats, JobTable
from gpu_flows.schedulers.model import Job, Running
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.policy_support.making_room import count_accepted, count_gained, without_spare

_RATE, _DEVICES = NAMES.index("rate_like"), NAMES.index("devices")


class DecidedPolicy(Policy):
    """Moves as it is told.

    A moment begins with `begin_moment`, which looks at all jobs and puts them into slots. Then `mask` and
    `decide` alternate; after a decision that `has_moves`, the engine must plan.
    """

    name = "decided"
    preempts = True
    moves_running = True

    def __init__(self, decisions: Decisions, placements: Sequence[str]) -> None:
        super().__init__()
        self._decisions = decisions
        self._placing = [PlacementOptions.model_validate({"placement": name}) for name in placements]
        self._table = JobTable()
        self._state: State | None = None
        self._rows: dict[str, Floats] = {}  # the features of this moment, by job id
        self._waiting: list[Job] = []  # by slot
        self._running: list[Running] = []  # by slot
        self._fixed: set[str] = set()  # jobs that were started or given up at this moment
        self._target: tuple[Job, int] | None = None  # the job that is to start, and its placement
        self._stops: list[Running] = []  # what is stopped for the target
        self.has_moves = False

    @property
    def has_target(self) -> bool:
        return self._target is not None

    # -- plans --------------------------------------------------------------------------------

    def plan(self, state: State) -> None:
        self._state = state
        if self.has_moves:
            self._move(state)
        else:
            self._table.learn_from_ended(state)
        self._table.remember_running(state)
        if len(state.queue):
            state.draft.wake_at(self._table.next_review(state))

    def _move(self, state: State) -> None:
        """Stop what is to be stopped, and start the target."""
        assert self._target is not None
        job, placement = self._target
        draft, checkpoint = state.draft, state.draft.checkpoint()
        for running in self._stops:
            draft.preempt(running.job.id)
        devices = self._placing[placement].place(job, state.cluster)
        if devices:
            draft.start(job, devices)
        else:
            draft.rollback(checkpoint)
        self._fixed.add(job.id)
        self._target, self._stops, self.has_moves = None, [], False

    # -- moments ------------------------------------------------------------------------------

    def begin_moment(self) -> bool:
        """Put the jobs into slots. Return whether any job waits."""
        state = self._state
        if state is None or not len(state.queue):
            return False
        view = self._table.view(state)
        order = range(len(view.waiting))
        if len(view.waiting) > self._decisions.waiting:  # show those with the best Gittins index per device
            count = len(view.waiting)
            index = view.rows[:count, _DEVICES] - view.rows[:count, _RATE]
            order = np.argsort(index, kind="stable")[: self._decisions.waiting].tolist()
        self._waiting = [view.waiting[each] for each in order]
        self._running = list(view.running[: self._decisions.running])
        rows = view.rows
        self._rows = {view.waiting[each].id: rows[each] for each in order}
        first = len(view.waiting)
        self._rows.update((each.job.id, rows[first + i]) for i, each in enumerate(self._running))
        self._fixed = set()
        self._target, self._stops = None, []
        return True

    def mask(self) -> NDArray[np.bool_]:
        """Return which decisions are possible now."""
        assert self._state is not None
        self._update_slots(self._state)
        mask = np.zeros(self._decisions.total, bool)
        if self._target is not None:
            first = self._decisions.first_stop
            for slot in self._helpful(self._target[0]):
                mask[first + slot] = True
            mask[-1] = True
        else:
            self._mask_starts(mask, self._state)
        return mask

    def decide(self, decision: Start | Stop | None) -> None:
        """Take the decision in. `has_moves` tells whether the engine must plan now."""
        if decision is None:
            assert self._target is not None
            self._fixed.add(self._target[0].id)
            self._target, self._stops = None, []
        elif isinstance(decision, Start):
            self._target = self._waiting[decision.slot], decision.placement
            self.has_moves = self._fits(self._target[0])
        else:
            self._stops.append(self._running[decision.slot])
            assert self._target is not None
            self._finish_room(self._target[0])

    def show(self, observation: dict[str, Floats]) -> None:
        """Write the features of the jobs in their slots."""
        rows, shown = self._rows, observation["shown"]
        for slot, job in enumerate(self._waiting):
            observation["waiting"][slot] = rows[job.id]
            shown[slot] = 1.0
            if self._target is not None and self._target[0] is job:
                observation["target"][slot] = 1.0
        for slot, running in enumerate(self._running):
            observation["running"][slot] = rows[running.job.id]
            shown[self._decisions.waiting + slot] = running.job.id not in self._fixed

    # -- what is possible ---------------------------------------------------------------------

    def _update_slots(self, state: State) -> None:
        """Drop jobs from their slots that no longer wait or run; show stopped ones where there is room."""
        queue, running = state.queue, state.running
        stopped = [each.job for each in self._running if each.job.id in queue]
        self._running = [each for each in self._running if running.get(each.job.id) is each]
        self._waiting = [job for job in self._waiting if job.id in queue] + stopped
        del self._waiting[self._decisions.waiting :]

    def _mask_starts(self, mask: NDArray[np.bool_], state: State) -> None:
        fits: dict[object, bool] = {}
        placements, fixed = self._decisions.placements, self._fixed
        for slot, job in enumerate(self._waiting):
            found = fits.get(job.request)
            if found is None:
                found = fits[job.request] = self._fits(job)
            if found and job.id not in fixed:
                mask[slot * placements : (slot + 1) * placements] = True
        if mask.any():
            return  # no job waits while it fits
        mask[-1] = True
        could: dict[object, bool] = {}
        for slot, job in enumerate(self._waiting):
            found = could.get(job.request)
            if found is None:
                found = could[job.request] = bool(self._helpful(job))
            if found and job.id not in fixed:
                mask[slot * placements : (slot + 1) * placements] = True

    def _fits(self, job: Job) -> bool:
        assert self._state is not None
        cluster = self._state.cluster
        return cluster.idle >= job.gpus and bool(self._placing[0].place(job, cluster))

    def _stoppable(self) -> list[tuple[int, Running]]:
        assert self._state is not None
        may_preempt, now = self._state.may_preempt, self._state.now
        return [
            (slot, each)
            for slot, each in enumerate(self._running)
            if each.since + LEASE_S <= now and may_preempt(each) and each not in self._stops
        ]

    def _room(self, job: Job, stopped: Sequence[Running]) -> dict[str, int]:
        """Count the devices by node that the job would have; under "" those of all nodes together."""
        assert self._state is not None
        state = self._state
        counts = {node.name: count_accepted(node, job, state) for node in state.cluster}
        for running in stopped:
            for name, count in count_gained(job, running, state).items():
                counts[name] = counts.get(name, 0) + count
        return {"": sum(counts.values())} if job.may_span_nodes else counts

    def _helpful(self, job: Job) -> list[int]:
        """Return the slots of the running jobs that may be stopped for the job; none if that is in vain."""
        assert self._state is not None
        stoppable = self._stoppable()
        room = self._room(job, [*self._stops, *(each for _, each in stoppable)])
        enough = {name for name, count in room.items() if count >= job.gpus}
        if not enough:
            return []
        return [
            slot
            for slot, each in stoppable
            if ("" in enough or not enough.isdisjoint(each.by_node)) and count_gained(job, each, self._state)
        ]

    def _finish_room(self, job: Job) -> None:
        """Let the target start if there is room now, without stopping more jobs than needed."""
        assert self._state is not None
        for name, count in self._room(job, self._stops).items():
            if count >= job.gpus:
                met = []
                for running in self._stops:
                    gained = count_gained(job, running, self._state)
                    met.append((gained.get(name, 0) if name else sum(gained.values()), running))
                self._stops = without_spare(met, count - job.gpus)
                self.has_moves = True
                return
