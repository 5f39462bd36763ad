"""A policy that offers jobs what is free: they wait for one node, for at most as long as they may."""

from __future__ import annotations

from itertools import chain

from gpu_flows.schedulers.model import Offer, Tier
from gpu_flows.schedulers.network.shape import tier_of
from gpu_flows.schedulers.policy import Options, Policy, State


class OfferingOptions(Options):
    patience_s: float = 40.0


class Offering(Policy[OfferingOptions]):
    """A job starts on one node, or on several after it has waited for as long as it may."""

    name = "offering"

    def plan(self, state: State) -> None:
        patience_s = self.options.patience_s
        for job in list(state.waiting):
            idle = [[s.device for s in node.devices if not s.holders] for node in state.cluster]
            whole = [devices for devices in idle if len(devices) >= job.gpus]
            devices = tuple(whole[0] if whole else chain(*idle))[: job.gpus]
            if len(devices) < job.gpus:
                continue
            shape, waited_s = state.cluster.shape(devices), state.now - job.submitted
            tier, slowdown = tier_of(shape), state.network(job, shape)
            accepted = tier == Tier.NODE or waited_s >= patience_s
            state.draft.note(Offer(job, tier, accepted, waited_s, patience_s, slowdown, 0.25))
            if accepted:
                state.draft.start(job, devices)
            else:
                state.draft.wake_at(job.submitted + patience_s)
