"""The `regret` flow: replays what the pool's jobs of the last day would have had under other policies.

It is an ordinary job of the pool that holds no device, so it runs on the worker's machine, where the
warehouse is. It changes nothing: it records how much worse the policy was than the best one, shows the
comparison as an artifact, and emits an event to which an automation may react.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import acreate_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.events import emit_event

from gpu_flows.analytics.facts import Regretted
from gpu_flows.analytics.recorder import Recorder
from gpu_flows.analytics.whatif import Choice, NoRecord, Scenario, WhatIf, replay
from gpu_flows.config.paths import pool_folder
from gpu_flows.config.pool_blocks import PolicyChoice, read_policy
from gpu_flows.deployments.own_pool import OwnPool, find_own_pool
from gpu_flows.schedulers.policy import PolicyError, make_policy
from gpu_flows.schedulers.policy_choice import describe_options
from gpu_flows.worker.pool_tables import key_of, to_markdown

ALWAYS = ("fifo", "sjf", "srtf", "fair_share")  # are replayed with their default options
EVENT = "gpu-flows.policy.regret"


@dataclass(frozen=True, slots=True)
class Regret:
    """How much longer the mean turnaround was than under the best of the policies, and which that is."""

    since: float
    until: float
    policy: str
    best: str
    regret_percent: float
    jobs: int


@flow(name="regret", timeout_seconds=3600)
async def regret(
    hours: float = 24.0, policies: list[str] | None = None, notify_percent: float = 5.0
) -> dict[str, Any]:
    """Compare the policy of the pool with its shadows and others, on the jobs of the last day.

    Args:
        hours: The jobs that were submitted in so many last hours are replayed.
        policies: Policies to replay besides the shadows, with their default options; default: common ones.
        notify_percent: From this regret on, an event is emitted, to which an automation may react.
    """
    async with get_client() as client:
        pool = await find_own_pool(client)
        chosen = await read_policy(client, pool.blocks.scheduler)
    log = get_run_logger()
    choices = choose(chosen, ALWAYS if policies is None else policies, log.warning)
    now = time.time()
    try:
        found = await asyncio.to_thread(
            replay, pool.warehouse, pool.name, now - 3600 * hours, policies=choices
        )
    except NoRecord as error:
        log.info("Nothing to compare: %s", error)
        return {"regret_percent": None, "reason": str(error)}
    outcome = find_regret(found)
    log.info(describe(outcome))
    await asyncio.to_thread(_record, pool, outcome, now)
    if outcome.regret_percent >= notify_percent:
        _emit(pool.name, outcome)
    await acreate_markdown_artifact(
        build_report(found, outcome),
        key=key_of("regret", pool.name),
        description="The last day under other policies.",
    )
    return asdict(outcome)


def choose(chosen: PolicyChoice, others: Sequence[str], warn: Any) -> list[Choice]:
    """Return the policies to replay: the one in the block, its shadows, and others that are not among them.
    What cannot be made is left out with a warning."""
    wanted = {chosen.name: chosen.options, **chosen.shadows} if chosen.name else dict(chosen.shadows)
    wanted |= {name: {} for name in others if name not in wanted}
    choices = []
    for name, options in wanted.items():
        try:
            make_policy(name, options)
        except PolicyError as error:
            warn("Left out: %s", error)
        else:
            choices.append(Choice(name, options, _label(name, options)))
    return choices


def _label(name: str, options: Any) -> str:
    defaults = make_policy(name).options.model_dump(mode="json")
    changed = {key: value for key, value in options.items() if defaults.get(key) != value}
    return f"{name} ({describe_options(changed)})" if changed else name


def find_regret(found: WhatIf) -> Regret:
    """Compare the policies that really decided with the best of all that let as many jobs finish."""
    real = found.replayed
    rivals = [each for each in found.alternatives if _is_comparable(each, real)]
    best = min([real, *rivals], key=lambda each: each.figures.avg_turnaround_s)
    turnaround_s, least_s = real.figures.avg_turnaround_s, best.figures.avg_turnaround_s
    percent = 100 * (turnaround_s / least_s - 1) if least_s > 0 else 0.0
    return Regret(found.since, found.until, real.label, best.label, percent, real.figures.finished)


def _is_comparable(other: Scenario, real: Scenario) -> bool:
    return not other.policy_error and other.figures.finished >= real.figures.finished


def describe(outcome: Regret) -> str:
    if outcome.best == outcome.policy:
        return f"No policy was better than {outcome.policy} on these {outcome.jobs} jobs."
    return (
        f"The mean turnaround of {outcome.jobs} jobs was {outcome.regret_percent:.1f}% longer under"
        f" {outcome.policy} than it would have been under {outcome.best}."
    )


def build_report(found: WhatIf, outcome: Regret) -> str:
    """A table with a row for each policy, the best one first, and what the replays rest on."""
    since, until = (f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}" for at in (found.since, found.until))
    lines = [
        describe(outcome),
        "",
        f"Jobs submitted from {since} to {until} UTC, replayed under each policy:",
        "",
        "| policy | mean turnaround s | against the pool's | p90 s | makespan s | preempted | unfinished |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    real = found.replayed
    scenarios = sorted([real, *found.alternatives], key=lambda each: each.figures.avg_turnaround_s)
    lines += [_build_row(each, real) for each in [*scenarios, found.recorded]]
    if found.assumed:
        lines += ["", "Assumed:", "", *(f"- {each}" for each in found.assumed)]
    return "\n".join(lines)


def _build_row(each: Scenario, real: Scenario) -> str:
    figures, base = each.figures, real.figures.avg_turnaround_s
    change = f"{100 * (figures.avg_turnaround_s / base - 1):+.1f}%" if base > 0 else ""
    name = to_markdown(each.label)
    label = f"**{name}**, replayed" if each is real else name
    note = f" (failed: {to_markdown(each.policy_error)})" if each.policy_error else ""
    cells = (
        f"{label}{note}",
        f"{figures.avg_turnaround_s:,.1f}",
        "" if each is real else change,
        f"{figures.p90_turnaround_s:,.1f}",
        f"{figures.makespan_s:,.1f}",
        str(figures.preemptions),
        str(figures.jobs - figures.finished),
    )
    return f"| {' | '.join(cells)} |"


def _record(pool: OwnPool, outcome: Regret, now: float) -> None:
    recorder = Recorder(pool.warehouse, pool_folder(pool.name) / "regret")
    recorder.write(Regretted(now, pool.name, **asdict(outcome)))
    recorder.close()


def _emit(pool: str, outcome: Regret) -> None:
    payload = asdict(outcome) | {"regret_percent": round(outcome.regret_percent, 1)}
    emit_event(EVENT, resource={"prefect.resource.id": f"gpu-flows.pool.{pool}"}, payload=payload)
