"""First in, first out, as Schedulearn does it: over devices under a utilization threshold."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from gpu_flows.schedulers.model import Plan
from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.policy_support.elastic import MaybeElasticOptions
from gpu_flows.schedulers.policy_support.resizing import serve_elastic
from gpu_flows.schedulers.policy_support.starting import serve


class FifoOptions(MaybeElasticOptions):
    skip: bool = Field(
        default=False,
        title="Skip what does not fit",
        description="Let later jobs pass the head of the line while it does not fit.",
    )


class Fifo(Policy):
    """The oldest job starts first, on the first node that has room for it.

    Strict: the head of the line blocks those behind it, so nothing starves. With `skip` the
    rest may pass it. Machines are looked at in order and their devices taken in index order,
    which fills the first machines and leaves the last ones idle (Schedulearn, section 4.4.1).

    With `elastic` the oldest get the fewest devices they can run on, then one more each, in rounds,
    while there are any; running jobs shrink to let a newcomer in and grow when one ends.
    """

    name = "fifo"
    Options = FifoOptions
    options: FifoOptions
    optimizes = "fairness by arrival, with nothing to know"
    promises = ("no starvation",)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.moves_running = self.options.elastic  # growing needs nobody to wait

    def plan(self, state: State) -> Plan:
        strict = not self.options.skip
        if self.options.elastic:
            serve_elastic(state, self.options, self.rank, strict=strict)
        else:
            serve(state, self.options, strict)
        return state.draft.plan()
