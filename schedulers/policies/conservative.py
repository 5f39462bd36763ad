"""Conservative backfill: everybody has a reservation."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Any

from pydantic import Field

from gpu_flows.schedulers.model import Plan
from gpu_flows.schedulers.placement.options import PlacementOptions
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.policy_support.backfill import Forecast, Slot, in_order
from gpu_flows.schedulers.policy_support.starting import serve


class ConservativeOptions(PlacementOptions):
    depth: int = Field(
        default=100,
        ge=1,
        title="Reservations",
        description="How many waiting jobs, the oldest first, get a reservation. Those behind them wait.",
    )


class Conservative(Policy):
    """Each job starts at the first moment at which it delays nobody before it.

    All waiting jobs get a reservation in arrival order, on devices that running and earlier jobs
    will have left by then (Mu'alem and Feitelson 2001). Nothing starves; as long as running jobs
    end when expected, no reservation moves to a later time. A job starts on the devices reserved for
    it, a newcomer that need not wait on those its placement likes. A job without an expected duration
    counts as endless. Shared devices are served strictly in order: nobody can tell when they come free.
    """

    name = "conservative"
    Options = ConservativeOptions
    options: ConservativeOptions
    needs = ("expected duration",)
    optimizes = "start times that can be relied on, on well-filled devices"
    promises = ("no starvation",)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._forecast: Forecast | None = None

    @property
    def reservations(self) -> list[Slot]:
        """What was reserved when devices were last handed out, in order."""
        return self._forecast.slots if self._forecast else []

    def plan(self, state: State) -> Plan:
        if self.options.sharing == "shared":
            serve(state, self.options, strict=True)
        elif state.cluster.idle:
            if not self.reservations:
                serve(state, self.options, strict=True)  # nothing to look ahead for, until one has to wait
            if state.queue.heads(state.cluster.idle):
                self._forecast = self._reserve(state)
        return state.draft.plan()

    def _reserve(self, state: State) -> Forecast:
        """Give everybody in order the first slot there is, and start those whose time has come."""
        forecast = Forecast(state)
        foreseen = iter(self.reservations if self._forecast and forecast.foreseen_by(self._forecast) else ())
        groups = (group for _, _, job, group in state.queue.heads() if forecast.can_serve(job))
        jobs = (job for _, _, job in in_order(groups))
        ahead = deque(islice(jobs, self.options.depth))
        while ahead and len(forecast.slots) < self.options.depth:
            job = ahead.popleft()
            ahead.extend(islice(jobs, 1))
            slot = next(foreseen, None)
            if slot and slot.job is not job:
                foreseen, slot = iter(()), None  # others stand before it than it seemed
            if not slot and not forecast.has_spare(min(map(forecast.takes, (job, *ahead)))):
                break  # not even the shortest of the others can start now
            devices = forecast.devices_now(slot) if slot else forecast.room_now(job, self.options)
            if devices:
                state.draft.start(job, devices)
                forecast.started(job)
            elif slot:
                forecast.keep(slot)
            else:
                forecast.promise(job)
        return forecast
