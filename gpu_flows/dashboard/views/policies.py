"""The policy in force, its shadows, and what would happen under others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from starlette.datastructures import QueryParams

from gpu_flows.analytics.query_runner import run_query
from gpu_flows.dashboard.answers import Answer
from gpu_flows.dashboard.replays import Question
from gpu_flows.dashboard.views.history import PERIODS
from gpu_flows.dashboard.views.look import Look, Sources
from gpu_flows.schedulers.policy import policies

NOW = "now"
MOST_GPUS, MOST_POLICIES = 4096, 12
KEEP_RANKING_S = 30.0
OVER = {NOW: "the jobs that wait and run now", **{name: text for name, (text, *_) in PERIODS.items()}}


class BadQuestion(ValueError):
    """The form cannot be answered. The message says why."""


def read_question(params: QueryParams) -> Question:
    """Return what the form asks. Raises BadQuestion."""
    chosen = tuple(dict.fromkeys(params.getlist("policy")))
    if unknown := [name for name in chosen if name not in policies()]:
        raise BadQuestion(f"There is no policy {unknown[0]}.")
    if len(chosen) > MOST_POLICIES:
        raise BadQuestion(f"Choose at most {MOST_POLICIES} policies.")
    text = params.get("gpus") or "0"
    try:
        gpus = int(text)
    except ValueError:
        raise BadQuestion("GPUs must be a whole number, such as 4 or -2.") from None
    if abs(gpus) > MOST_GPUS:
        raise BadQuestion(f"GPUs must be between -{MOST_GPUS} and {MOST_GPUS}.")
    over = params.get("over") or NOW
    if over not in OVER:
        raise BadQuestion(f"The jobs must be those of {', '.join(OVER)}.")
    if not chosen and not gpus:
        raise BadQuestion("Choose a policy, or change the number of GPUs.")
    return Question(chosen, gpus, over)


def make_request(sources: Sources, question: Question) -> dict[str, Any]:
    """Return the question as a simulating process understands it."""
    plan = {"policies": question.policies, "gpus": question.gpus}
    if question.over == NOW:
        return {"ask": "present", "state": str(sources.watch.folder), **plan}
    since = time.time() - PERIODS[question.over][1]
    settings = sources.settings
    return {
        "ask": "recorded",
        "database": str(settings.database),
        "pool": settings.pool,
        "since": since,
        **plan,
    }


def values(look: Look) -> dict[str, Any]:
    question, mistake = None, ""
    asked = bool(look.params.getlist("policy") or look.get("gpus"))
    try:
        question = read_question(look.params)
    except BadQuestion as error:
        mistake = str(error) if asked else ""
    policy = look.snapshot.policy
    known = {name: policy.rule() for name, policy in policies().items()}
    return {
        "known": known,
        "chosen": look.params.getlist("policy"),
        "gpus": look.get("gpus"),
        "over": look.get("over") or NOW,
        "overs": OVER,
        "question": question,
        "mistake": mistake,
        "replay": look.sources.replays.find(question) if question else None,
        "change": describe_change,
        "measures": list_measures,
        "base_row": find_base,
        "options": sorted(policy["options"].items()),
        "shadows": policy["shadows"],
        "ranking": _ask_ranking(look),
    }


MEASURES = {
    "makespan_s": "All done after",
    "avg_turnaround_s": "Mean turnaround",
    "p90_turnaround_s": "p90 turnaround",
    "avg_queueing_s": "Mean queueing",
    "avg_wait_s": "Mean wait from now",
    "p90_wait_s": "p90 wait from now",
    "allocation": "Allocation",
    "preemptions": "Preemptions",
}


def list_measures(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the columns of an answer: the measures that its rows have."""
    return [(key, label) for key, label in MEASURES.items() if any(key in row for row in rows)]


def find_base(rows: Sequence[Mapping[str, Any]]) -> int:
    """Return the place of the row that others are compared with: the replay of what ran, or the present."""
    return next((place for place, row in enumerate(rows) if row["label"].endswith(", replayed")), 0)


def _ask_ranking(look: Look) -> Answer:
    """Return what is recorded of the shadows of this pool: how they compare with each policy in force."""
    settings = look.sources.settings
    ask = partial(run_query, settings.database, "shadows", {"pool": settings.pool})
    return look.sources.queries.ask("shadows", lambda: asyncio.to_thread(ask), KEEP_RANKING_S)


def describe_change(value: float | None, base: float | None, unit: str = "%") -> str:
    """`-12%`; empty where there is nothing to compare."""
    if value is None or not base:
        return ""
    change = 100 * (value / base - 1)
    return "same" if abs(change) < 0.5 else f"{change:+.0f}%".replace("-", "−")
