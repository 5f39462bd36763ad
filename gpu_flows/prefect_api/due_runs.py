"""Finds the runs of a work pool: all that are due, or single ones by id.

Prefect's own poll returns at most 200 runs to a worker, which would hide the end of a long queue.
`DueRuns` reads all pages instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterNextScheduledStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort

from gpu_flows.common.clock import utc_now
from gpu_flows.prefect_api.conventions import PAGE
from gpu_flows.prefect_api.job_builder import due_time


@dataclass(frozen=True, slots=True)
class FoundRuns:
    """Scheduled runs that are due, and when the next one becomes due."""

    due: list[FlowRun]
    next_due: datetime | None = None


class DueRuns:
    def __init__(self, client: PrefectClient, pool: str, served_queues: set[str]) -> None:
        self._client, self._pool = client, pool
        self._served_queues = served_queues  # empty: all work queues of the pool
        self._in_pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[pool]))

    async def find_all(self) -> FoundRuns:
        """Return every due run of the pool."""
        await self._mark_queues_ready()
        due = await self._read_all(
            state=_in_state(StateType.SCHEDULED), next_scheduled_start_time=_until_now()
        )
        later = await self._client.read_flow_runs(
            flow_run_filter=FlowRunFilter(
                state=_in_state(StateType.SCHEDULED), next_scheduled_start_time=_from_now()
            ),
            work_pool_filter=self._in_pool,
            sort=FlowRunSort.NEXT_SCHEDULED_START_TIME_ASC,
            limit=1,
        )
        return FoundRuns(due, due_time(later[0]) if later else None)

    async def find(self, run_ids: Iterable[UUID]) -> FoundRuns:
        """Return those of these runs that are Scheduled and due."""
        found: list[FlowRun] = []
        for some in in_pages(run_ids):
            found += await self._read_all(id=FlowRunFilterId(any_=some), state=_in_state(StateType.SCHEDULED))
        now = utc_now()
        later = [due_time(run) for run in found if due_time(run) > now]
        return FoundRuns([run for run in found if due_time(run) <= now], min(later, default=None))

    async def find_in_state(self, *types: StateType) -> list[FlowRun]:
        """Return the pool's runs in these states, due or not."""
        return await self._read_all(state=_in_state(*types))

    async def find_in_any_state(self, run_ids: Iterable[UUID]) -> list[FlowRun]:
        """Return these runs, except for deleted ones and those that moved to another pool."""
        found: list[FlowRun] = []
        for some in in_pages(run_ids):
            found += await self._read_all(id=FlowRunFilterId(any_=some))
        return found

    async def _mark_queues_ready(self) -> None:
        """Show that a worker serves the pool.

        Prefect marks work queues and deployments as ready while a worker uses its own poll. A poll for
        runs that were due in 1970 has this effect and returns no runs.
        """
        await self._client.get_scheduled_flow_runs_for_work_pool(
            self._pool, sorted(self._served_queues) or None, datetime.fromtimestamp(0, UTC)
        )

    async def _read_all(self, **conditions: Any) -> list[FlowRun]:
        found: list[FlowRun] = []
        while True:
            page = await self._client.read_flow_runs(
                flow_run_filter=FlowRunFilter(**conditions),
                work_pool_filter=self._in_pool,
                sort=FlowRunSort.NEXT_SCHEDULED_START_TIME_ASC,
                limit=PAGE,
                offset=len(found),
            )
            found += page
            if len(page) < PAGE:
                # A run that moves between pages while we read is returned twice.
                return list({run.id: run for run in found}.values())


def in_pages(ids: Iterable[UUID]) -> Iterator[list[UUID]]:
    """Split ids into lists that the server accepts in one filter."""
    remaining = list(ids)
    for start in range(0, len(remaining), PAGE):
        yield remaining[start : start + PAGE]


def _in_state(*types: StateType) -> FlowRunFilterState:
    return FlowRunFilterState(type=FlowRunFilterStateType(any_=list(types)))


def _until_now() -> FlowRunFilterNextScheduledStartTime:
    return FlowRunFilterNextScheduledStartTime.model_validate({"before_": utc_now()})


def _from_now() -> FlowRunFilterNextScheduledStartTime:
    return FlowRunFilterNextScheduledStartTime.model_validate({"after_": utc_now()})
