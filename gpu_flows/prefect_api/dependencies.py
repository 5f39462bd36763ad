"""The runs that waiting jobs depend on (job variables `after` and `after_any`), and how they ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import StateType

from gpu_flows.prefect_api.conventions import PAGE
from gpu_flows.prefect_api.due_runs import in_pages
from gpu_flows.schedulers.model import Reason

MOST_NAMED = 3
SHORT_ID = 8  # characters of an id, which are enough for the command line to find the run
ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Dependency:
    """A run that others wait for, as last read from the server."""

    name: str
    state: str
    completed: bool = False
    ended_otherwise: bool = False
    executing: bool = False  # a preempted run shows as crashed for a moment, while it is still executed


class Dependencies:
    def __init__(self, client: PrefectClient) -> None:
        self._client = client
        self._known: dict[str, Dependency] = {}
        self.version = 0  # grows with each change
        self.executing: frozenset[str] = frozenset()  # those of the runs that this pool executes now

    async def read(self, run_ids: Iterable[str]) -> None:
        """Read the state of these runs, of any pool, and forget all others. A completed run is not read
        again."""
        wanted = set(run_ids)
        known = {run_id: run for run_id, run in self._known.items() if run_id in wanted}
        unsettled = [run_id for run_id in wanted if run_id not in known or not known[run_id].completed]
        for some in in_pages(map(UUID, unsettled)):
            with_ids = FlowRunFilter(id=FlowRunFilterId(any_=some))
            found = await self._client.read_flow_runs(flow_run_filter=with_ids, limit=PAGE)
            for run_id in map(str, some):
                known[run_id] = Dependency(run_id, ABSENT, ended_otherwise=True)
            for run in found:
                completed = run.state_type == StateType.COMPLETED
                ended = bool(run.state and run.state.is_final())
                known[str(run.id)] = Dependency(
                    run.name or str(run.id),
                    run.state_name or "",
                    completed,
                    ended and not completed,
                    str(run.id) in self.executing,
                )
        if known != self._known:
            self._known = known
            self.version += 1

    def allow(self, after: Iterable[str], after_any: Iterable[str]) -> bool:
        """Return whether the runs of `after` are known to have completed, and those of `after_any` to have
        ended."""
        return all(map(self._has_completed, after)) and all(map(self._has_ended, after_any))

    def _has_completed(self, run_id: str) -> bool:
        run = self._known.get(run_id)
        return bool(run and run.completed)

    def _has_ended(self, run_id: str) -> bool:
        run = self._known.get(run_id)
        return bool(run and (run.completed or (run.ended_otherwise and not run.executing)))

    def find_refusal(self, run_ids: Iterable[str], may_continue: Iterable[str]) -> Reason | None:
        """Return why a job after these runs can never start. A run in `may_continue` is still being
        executed: a preempted run shows as crashed for a moment."""
        unfinished = set(may_continue)
        for run_id in run_ids:
            run = self._known.get(run_id)
            if run and run.ended_otherwise and run_id not in unfinished:
                how = "does not exist" if run.state == ABSENT else f"ended as {run.state}"
                named = run_id if run.name == run_id else f"{run.name!r} ({run_id})"
                return Reason(
                    "dependency",
                    f"It was to start after run {named} had completed, and that run {how}.",
                    "Submit it again without this run in `after`, or after a run that completes.",
                )
        return None

    def explain(self, after: Iterable[str], after_any: Iterable[str] = ()) -> Reason:
        """Return the reason of a job that waits for these runs to complete or to end."""
        to_complete = [self._name(run_id) for run_id in after if not self._has_completed(run_id)]
        to_end = [self._name(run_id) for run_id in after_any if not self._has_ended(run_id)]
        awaited = [_enumerate(to_complete, "completed"), _enumerate(to_end, "ended")]
        return Reason(
            "dependency",
            f"It starts after {', and after '.join(filter(None, awaited)) or 'other runs'}.",
            "`gpu-flows why RUN` tells what those wait for.",
        )

    def _name(self, run_id: str) -> str:
        run = self._known.get(run_id)
        return f"{run.name!r} ({run.state})" if run else f"run {run_id[:SHORT_ID]}"


def _enumerate(names: Sequence[str], what: str) -> str:
    """Return `'a' (Running) and 2 more have completed`; empty without names."""
    if not names:
        return ""
    more = len(names) - MOST_NAMED
    shown = [*names[:MOST_NAMED], *([f"{more} more"] if more > 0 else [])]
    return f"{' and '.join(shown)} {'has' if len(names) == 1 else 'have'} {what}"
