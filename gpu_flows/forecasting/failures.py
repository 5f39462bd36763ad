"""Which policies are not simulated any more, because the process of the forecasts failed while they were."""

from __future__ import annotations

from gpu_flows.forecasting.messages import Settings
from gpu_flows.schedulers.policy import is_built_in

MOST_FAILURES = 3  # in a row


class Failures:
    """Counts how often the process ended or hung before it had made a forecast under a policy of another
    package. One that does so again and again is put aside until the block is saved."""

    def __init__(self) -> None:
        self._policy = ""  # and when it was saved
        self._count, self._last = 0, ""

    def add(self, settings: Settings | None, why: str) -> None:
        if settings and not is_built_in(settings.policy):
            self._follow(settings)
            self._count, self._last = self._count + 1, why

    def forget(self) -> None:
        """A forecast was made."""
        self._count = 0

    def why_not(self, settings: Settings) -> str:
        """Return why the policy is not to be simulated; empty if it is."""
        self._follow(settings)
        if self._count < MOST_FAILURES:
            return ""
        return (
            f"The forecasts failed {self._count} times under policy {settings.policy!r}: {self._last}."
            " Save the GPU Scheduler block to try it again."
        )

    def _follow(self, settings: Settings) -> None:
        policy = f"{settings.policy} {settings.saved}"
        if policy != self._policy:
            self._policy, self._count = policy, 0
