"""Conservative backfill: every job has a reservation."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Any

from pydantic import Field

from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.policy_support.backfill import Forecast, Slot
from gpu_flows.schedulers.policy_support.starting import start_in_order


class ConservativeOptions(PlacementOptions):
    depth: int = Field(default=100, ge=1, title="Reservations")
    """How many waiting jobs, the oldest first, get a reservation. The jobs behind them wait."""


class Conservative(Policy[ConservativeOptions]):
    """Each job starts at the first moment at which it delays no earlier job.

    All waiting jobs get a reservation in arrival order, on devices that running and earlier jobs
    will have released by then (Mu'alem and Feitelson 2001). No job starves; as long as running jobs
    end when expected, no reservation moves to a later time. A job starts on the devices reserved for
    it, a new job that need not wait on those of its placement. A job whose duration is neither stated
    nor predicted counts as endless. Shared devices are used strictly in order, because it is unknown when
    they become free."""

    name = "conservative"
    needs = ("expected duration",)
    optimizes = "reliable start times, on well-filled devices"
    promises = ("no starvation",)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._forecast: Forecast | None = None

    @property
    def reservations(self) -> list[Slot]:
        """The reservations of the last plan, in order."""
        return self._forecast.slots if self._forecast else []

    def plan(self, state: State) -> None:
        if self.options.sharing == "shared":
            start_in_order(state, self.options, strict=True)
        elif state.cluster.idle:
            if not self.reservations:
                start_in_order(state, self.options, strict=True)  # no forecast is needed until a job waits
            if state.queue.groups(state.cluster.idle):
                self._forecast = self._reserve(state)

    def _reserve(self, state: State) -> Forecast:
        """Give each job in order the first slot there is, and start the jobs whose time has come."""
        forecast = Forecast(state)
        came_true = self._forecast is not None and forecast.was_foreseen_by(self._forecast)
        earlier = iter(self.reservations if came_true else ())
        jobs = state.queue.in_order(where=forecast.can_serve)
        ahead = deque(islice(jobs, self.options.depth))
        while ahead and len(forecast.slots) < self.options.depth:
            job = ahead.popleft()
            ahead.extend(islice(jobs, 1))
            slot = next(earlier, None)
            if slot and slot.job is not job:
                earlier, slot = iter(()), None  # the queue is not what the earlier forecast saw
            if not slot and not forecast.has_spare(min(map(forecast.duration, (job, *ahead)))):
                break  # not even the shortest of the others can start now
            devices = forecast.devices_now(slot) if slot else forecast.room_now(job, self.options)
            if devices:
                state.draft.start(job, devices)
                forecast.started(job)
            elif slot:
                forecast.keep(slot)
            else:
                forecast.reserve(job)
        return forecast
