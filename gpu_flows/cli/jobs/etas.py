"""How forecasts are shown: when jobs start and end, and what would let them start earlier."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gpu_flows.cli import output
from gpu_flows.common.clock import describe_late, describe_time


def find_eta_columns(
    jobs: list[dict[str, Any]], moments: Sequence[str], wide: bool
) -> dict[str, Callable[[dict[str, Any]], str]]:
    """The columns for these moments (start, end); none if nothing is forecast of any of these jobs."""
    if not any(job.get("eta") for job in jobs):
        return {}
    return {f"{moment}s": partial(_show, moment=moment, wide=wide) for moment in moments}


def _show(job: dict[str, Any], moment: str, wide: bool) -> str:
    return describe_eta(job.get("eta"), moment, wide)


def describe_eta(eta: dict[str, float] | None, moment: str, wide: bool = True) -> str:
    """`14:20 (90%: 14:35)`; empty if nothing is forecast."""
    if not eta:
        return ""
    now, p50, p90 = time.time(), eta[f"{moment}_p50"], eta[f"{moment}_p90"]
    text, late = describe_time(p50, now), describe_late(p50, p90, now)
    return f"{text} (90%: {late})" if wide and late else text


def describe_head(job: dict[str, Any]) -> str:
    """What a job at the head of the queue waits for, and the change that would help it most."""
    now = time.time()
    waits_for, alternatives = job.get("waits_for") or [], job.get("alternatives") or []
    texts = [f"It waits for {describe_holders(waits_for, now)}."] if waits_for else []
    texts += [f"It would start {describe_alternative(alternatives[0], now)}."] if alternatives else []
    return " ".join(texts)


def describe_alternative(alternative: dict[str, Any], now: float) -> str:
    """`now on 1 GPU instead of 2`, or `about 13:55 with priority + 1`."""
    start, label = alternative["start"], alternative["label"]
    return f"now {label}" if start <= now + NOW_S else f"about {describe_time(start, now)} {label}"


def describe_holders(waits_for: list[dict[str, Any]], now: float, most: int = 3) -> str:
    """`train-7 (until about 14:20), eval (which is stopped for it)`."""
    names = [f"{each['name']} ({_describe_end(each, now)})" for each in waits_for[:most]]
    rest = len(waits_for) - most
    return ", ".join(names) + (f" and {rest} more" if rest > 0 else "")


def _describe_end(holder: dict[str, Any], now: float) -> str:
    if holder.get("is_stopped"):
        return "which is stopped for it"
    return f"until about {describe_time(holder['until'], now)}"


def describe_miss(seconds: float) -> str:
    """`3m 20s later than forecast`."""
    direction = "later" if seconds > 0 else "earlier"
    return f"{output.format_duration(abs(seconds))} {direction} than forecast"


NOW_S = 3.0  # a start that is nearer counts as now: what is shown is up to so old
