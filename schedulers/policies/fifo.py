"""First in, first out, as Schedulearn does it: over devices under a utilization threshold."""

from __future__ import annotations

from pydantic import Field

from gpu_flows.schedulers.policy import Policy, State
from gpu_flows.schedulers.policy_support.elastic import MaybeElasticOptions
from gpu_flows.schedulers.policy_support.resizing import run_elastic
from gpu_flows.schedulers.policy_support.starting import start_in_order


class FifoOptions(MaybeElasticOptions):
    skip: bool = Field(default=False, title="Skip what does not fit")
    """Let later jobs pass the head of the queue while it does not fit."""


class Fifo(Policy[FifoOptions]):
    """The oldest job starts first, on the first node that has room for it.

    Strict: the head of the queue blocks the jobs behind it, so no job starves. With `skip` they may
    pass it. Nodes are tried in order and their devices taken in index order, which fills the first
    nodes and leaves the last ones idle (Schedulearn, section 4.4.1).

    With `elastic` the oldest jobs get the fewest devices they can run on, then one more each, in
    rounds; running jobs shrink to let a new job start and grow when one ends.
    """

    name = "fifo"
    optimizes = "fairness by arrival; nothing must be known about jobs"
    promises = ("no starvation",)

    def plan(self, state: State) -> None:
        strict = not self.options.skip
        if self.options.elastic:
            run_elastic(state, self.options, strict=strict)
        else:
            start_in_order(state, self.options, strict)
