"""Which forecasts are worth a row in the warehouse.

A job's forecast is recorded when it is the first one, when the job starts or returns to the queue, and when
it has moved noticeably; but the more time remains, the less often. So the rows of a job grow with the
logarithm of its time, however many changes of the pool move its forecast.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpu_flows.schedulers.forecast.eta import Eta

NOTICEABLE, NOTICEABLE_S = 0.05, 1.0  # of the time that remains, and at least
SELDOM = 0.1  # the least time between two rows, as a part of what remains
MOST_ROWS = 500  # of one forecast; further jobs get theirs by the next one

Row = tuple[str, float, float, float, float, float]  # job id, when it was made, and the forecast


class Thinning:
    """Knows the last recorded forecast of each job."""

    def __init__(self) -> None:
        self._recorded: dict[str, tuple[float, bool, Eta]] = {}  # when, whether it ran, and what

    def choose(self, etas: Mapping[str, Eta], running: Collection[str], now: float) -> list[Row]:
        """Return the rows to record of a forecast that was made now. They count as recorded."""
        self._recorded = {job_id: known for job_id, known in self._recorded.items() if job_id in etas}
        rows: list[Row] = []
        for job_id, eta in etas.items():
            if len(rows) < MOST_ROWS and self._is_news(job_id, eta, job_id in running, now):
                self._recorded[job_id] = (now, job_id in running, eta)
                rows.append((job_id, now, eta.start_p50, eta.start_p90, eta.end_p50, eta.end_p90))
        return rows

    def _is_news(self, job_id: str, eta: Eta, is_running: bool, now: float) -> bool:
        known = self._recorded.get(job_id)
        if known is None or known[1] != is_running:
            return True
        recorded_at, _, before = known
        remaining = max(0.0, eta.end_p50 - now)
        if now - recorded_at < max(NOTICEABLE_S, SELDOM * remaining):
            return False
        return has_moved(before, eta, now, NOTICEABLE, NOTICEABLE_S)


def has_moved(before: Eta, after: Eta, now: float, part: float, least_s: float) -> bool:
    """Return whether a time of the forecast has moved by more than this part of what remains until then."""
    pairs = (
        (before.start_p50, after.start_p50),
        (before.start_p90, after.start_p90),
        (before.end_p50, after.end_p50),
        (before.end_p90, after.end_p90),
    )
    return any(abs(new - old) > max(least_s, part * (new - now)) for old, new in pairs)
