"""The offers that waiting jobs declined: until when each waits for a better one, and which offers are news.

A policy that lets jobs wait for better placed devices offers them the free ones in every plan. Most of these
offers repeat the last one, so only the others are for the history.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from gpu_flows.common.clock import describe_time
from gpu_flows.schedulers.model import Offer, Tier

FOREVER_S = 3.2e8  # ten years: a job that waits longer for a better offer waits for it without end


class Declined(NamedTuple):
    """The last offer that a job declined."""

    offer: Offer
    until: float  # when it will take such devices

    def describe(self, now: float | None) -> str:
        """Say which placement the job declined, and for which one it waits. With `now`, say how long."""
        tier = self.offer.tier
        declined, better = f"declined a placement {tier}", "one rack" if tier == Tier.CLUSTER else "one node"
        if now is None or not now < self.until < now + FOREVER_S:
            return f"{declined}; waits for {better}"
        left_s = self.until - now
        at = describe_time(self.until, now, with_zone=True)
        return f"{declined}; waits up to {_round(left_s)} more for {better} (until {at})"


class OfferLog:
    def __init__(self) -> None:
        self._declined: dict[str, Declined] = {}  # by job id

    def add(self, offers: Iterable[Offer], now: float) -> tuple[Offer, ...]:
        """Note the offers of a plan. Return those that do not repeat the job's last one: a job that declines
        the same tier again, with the same patience, is no news."""
        news: list[Offer] = []
        for offer in offers:
            job_id = offer.job.id
            if offer.accepted:
                news.append(offer)
                continue
            known, answer = self._declined.get(job_id), (offer.tier, offer.patience_s)
            if known is None or (known.offer.tier, known.offer.patience_s) != answer:
                news.append(offer)
            self._declined[job_id] = Declined(offer, now + offer.patience_s - offer.waited_s)
        return tuple(news)

    def declined(self, job_id: str) -> Declined | None:
        return self._declined.get(job_id)

    def describe(self, job_id: str, now: float | None) -> str:
        """Say what the job declined and what it waits for; empty if it declined nothing."""
        declined = self._declined.get(job_id)
        return declined.describe(now) if declined else ""

    def forget(self, job_id: str) -> None:
        """Drop what a job declined that does not wait any more, or asks for something else."""
        self._declined.pop(job_id, None)

    def clear(self) -> None:
        """Drop everything: another policy decides."""
        self._declined.clear()


def _round(seconds: float) -> str:
    if seconds < 120:
        return f"{math.ceil(seconds)} s"
    return f"{seconds / 60:.0f} min" if seconds < 120 * 60 else f"{seconds / 3600:.0f} h"
