"""The worker's answers about runs that nobody has submitted: what would be refused or held back, and that the
pool goes on while it answers."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from fake_pool import in_event_loop
from fake_prefect import FakePrefect
from prefect.utilities.schema_tools import ValidationError, validate

from gpu_flows.forecasting.imagined import ImaginedJob, RunRequest
from gpu_flows.prediction.live import LivePrediction
from gpu_flows.prefect_api import imagined_jobs
from gpu_flows.prefect_api.due_jobs import DueJobs
from gpu_flows.prefect_api.imagined_jobs import MOST_IMAGINED, ImaginedJobs
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.cluster.state import Cluster

SCHEMA = {"type": "object", "properties": {"seed": {"type": "integer"}}}


class Pool:
    """A pool with two devices, and what its worker answers."""

    def __init__(self, **limits: Any) -> None:
        self.prefect = FakePrefect()
        self.prefect.pool = self.prefect.pool.model_copy(update=limits)
        self.due_jobs = DueJobs(self.prefect.client, self.prefect.pool, set())
        self.deployment = self.prefect.add_deployment(
            parameter_openapi_schema=SCHEMA, enforce_parameter_schema=True
        )
        prediction = LivePrediction(
            Cluster(declare("1x2")), print, lambda job_id, text: None, lambda ids: None
        )
        self.imagined = ImaginedJobs(self.prefect.client, self.due_jobs, prediction, lambda found: found)

    async def imagine(self, *requests: RunRequest) -> list[ImaginedJob]:
        return await self.imagined.imagine(self.deployment.id, list(requests))


def request(seed: Any = 1, **variables: Any) -> RunRequest:
    return RunRequest({"seed": seed}, variables)


@in_event_loop
async def test_what_the_server_or_the_worker_refuses_is_told_in_the_words_of_each() -> None:
    found = await Pool().imagine(request(), request("three"), request(gpus="many"), request(gpus=3))
    assert [each.code for each in found] == ["", "bad_request", "bad_request", "impossible"]
    with pytest.raises(ValidationError) as refusal:  # as the server finds it
        validate({"seed": "three"}, SCHEMA, raise_on_error=True)
    assert found[1].why == str(refusal.value)
    assert "field 'gpus'" in found[2].why


@pytest.mark.parametrize("seconds", [1e12, "inf"])
@in_event_loop
async def test_a_duration_beyond_every_calendar_is_refused(seconds: Any) -> None:
    (found,) = await Pool().imagine(request(expected_seconds=seconds))
    assert found.code == "bad_request"
    assert "expected_seconds" in found.why


@in_event_loop
async def test_jobs_that_are_held_back_and_the_others_asked_for_count_against_a_limit() -> None:
    pool = Pool(concurrency_limit=2)
    assert [each.code for each in await pool.imagine(*[request()] * 3)] == ["", "", "pool_limit"]
    for _ in range(5):
        pool.prefect.add_run(deployment_id=pool.deployment.id, parameters={"seed": 1})
    found = await pool.due_jobs.find_all()
    for due in found.jobs:
        pool.due_jobs.admission.put(due)
    pool.due_jobs.admission.update(set())
    started = next(due.job.id for due in found.jobs)
    pool.due_jobs.admission.update({started})
    (late,) = await pool.imagine(request())
    assert (late.code, late.job is not None) == ("pool_limit", True), "those before it wait too"
    assert len(pool.due_jobs.admission) == 4, "nothing is remembered"
    (held,) = await pool.imagine(request(hold=True))
    assert held.code == "held"


@in_event_loop
async def test_the_pool_goes_on_while_a_large_array_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, turns, threads = Pool(), 0, set()

    def note_thread(*given: Any, **rules: Any) -> Any:
        threads.add(threading.current_thread())
        return validate(*given, **rules)

    async def watch() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(imagined_jobs, "validate", note_thread)
    watching = asyncio.create_task(watch())
    found = await pool.imagine(*(request(number, env={"INDEX": str(number)}) for number in range(300)))
    watching.cancel()
    assert len([each for each in found if each.job]) == 300
    assert turns >= 300, "one job at a time"
    assert threads
    assert threading.main_thread() not in threads


@in_event_loop
async def test_a_question_about_too_many_runs_is_refused() -> None:
    requests: list[Any] = [{"parameters": {}, "variables": {}}] * (MOST_IMAGINED + 1)
    answer = await Pool().imagined.answer({"deployment_id": "unused", "requests": requests})
    assert "1,000 jobs at most; these are 1,001" in answer["error"]
