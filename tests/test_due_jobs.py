"""Due runs become jobs: paging, pauses and limits, job variables, and what is recorded of a job."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID, uuid4

import pytest
from fake_prefect import POOL, FakePrefect
from prefect.client.schemas.objects import StateType
from prefect.states import Completed, Running

from gpu_flows.prefect_api.container_request import CONTAINER_FLOW
from gpu_flows.prefect_api.due_jobs import DueJobs, FoundJobs
from gpu_flows.schedulers.model import Job


@pytest.fixture
def prefect() -> FakePrefect:
    return FakePrefect()


def due_jobs(prefect: FakePrefect, *served_queues: str) -> DueJobs:
    return DueJobs(prefect.client, prefect.pool, set(served_queues))


def find_all(prefect: FakePrefect, *served_queues: str) -> FoundJobs:
    return asyncio.run(due_jobs(prefect, *served_queues).find_all())


def find_one(prefect: FakePrefect, **fields: Any) -> Job:
    prefect.add_run(**fields)
    (job,) = find_all(prefect).jobs
    return job


# -- finding ----------------------------------------------------------------------------------


def test_all_pages_of_due_runs_are_read(prefect: FakePrefect) -> None:
    ids = [str(prefect.add_run().id) for _ in range(401)]
    assert [job.id for job in find_all(prefect).jobs] == ids


def test_runs_that_are_not_due_or_not_scheduled_are_left_out(prefect: FakePrefect) -> None:
    due = prefect.add_run()
    prefect.set_state(prefect.add_run().id, Running())
    later = prefect.add_run(due_in_s=600)
    found = find_all(prefect)
    assert [job.id for job in found.jobs] == [str(due.id)]
    assert found.next_due == later.expected_start_time


def test_a_full_search_marks_the_work_queues_as_ready(prefect: FakePrefect) -> None:
    find_all(prefect)
    assert "poll" in prefect.calls


def test_single_runs_are_found_by_id(prefect: FakePrefect) -> None:
    due, later = prefect.add_run(), prefect.add_run(due_in_s=600)
    prefect.add_run()
    found = asyncio.run(due_jobs(prefect).find([due.id, later.id, uuid4()]))
    assert [job.id for job in found.jobs] == [str(due.id)]
    assert found.next_due == later.expected_start_time
    assert asyncio.run(due_jobs(prefect).find([])).jobs == []


def test_runs_are_found_by_state_and_by_id_in_any_state(prefect: FakePrefect) -> None:
    runs = [prefect.add_run() for _ in range(450)]
    prefect.set_state(runs[0].id, Completed())
    jobs = due_jobs(prefect)
    assert [run.id for run in asyncio.run(jobs.runs.find_in_state(StateType.COMPLETED))] == [runs[0].id]
    found = asyncio.run(jobs.runs.find_in_any_state([run.id for run in runs] + [uuid4()]))
    assert {run.id for run in found} == {run.id for run in runs}


def test_runs_stay_known_while_they_are_due_or_kept(prefect: FakePrefect) -> None:
    jobs = due_jobs(prefect)
    kept, dropped, due = (prefect.add_run() for _ in range(3))
    asyncio.run(jobs.find_all())
    for run in (kept, dropped):
        prefect.set_state(run.id, Running())
    asyncio.run(jobs.find_all(keep={str(kept.id)}))
    assert [jobs.run(str(run.id)) is not None for run in (kept, dropped, due)] == [True, False, True]


def test_deployments_are_read_once_for_many_runs(prefect: FakePrefect) -> None:
    deployment = prefect.add_deployment()
    for _ in range(3):
        prefect.add_run(deployment_id=deployment.id)
    jobs = due_jobs(prefect)
    for _ in range(3):
        asyncio.run(jobs.find_all())
    assert prefect.calls.count("read_deployments") == 1


# -- admission --------------------------------------------------------------------------------


def test_a_paused_pool_or_work_queue_admits_no_run(prefect: FakePrefect) -> None:
    prefect.add_queue("paused", is_paused=True)
    prefect.add_queue("open")
    prefect.add_run(queue="paused")
    admitted = prefect.add_run(queue="open")
    assert [job.id for job in find_all(prefect).jobs] == [str(admitted.id)]
    prefect.pool.is_paused = True
    assert find_all(prefect).jobs == []


def test_only_served_work_queues_are_admitted(prefect: FakePrefect) -> None:
    prefect.add_run(queue="other")
    served = prefect.add_run(queue="served")
    assert [job.id for job in find_all(prefect, "served").jobs] == [str(served.id)]


def test_a_run_that_retries_in_its_own_process_is_not_admitted(prefect: FakePrefect) -> None:
    run = prefect.add_run()
    run.empirical_policy.retry_type = "in_process"
    assert find_all(prefect).jobs == []


def test_a_postponed_or_paused_run_is_no_longer_due(prefect: FakePrefect) -> None:
    prefect.add_queue("queue")
    jobs, run, later = due_jobs(prefect), prefect.add_run(queue="queue"), prefect.add_run(due_in_s=600)
    asyncio.run(jobs.find_all())
    due_state, later_state = (prefect.history[each.id][-1] for each in (run, later))
    assert jobs.is_due(str(run.id), due_state)
    assert not jobs.is_due(str(run.id), later_state)
    prefect.work_queues[0].is_paused = True
    asyncio.run(jobs.find_all())
    assert not jobs.is_due(str(run.id), due_state)


def allowed(prefect: FakePrefect, active: int = 0) -> list[str]:
    """The names of the jobs that the limits allow while this many of the first runs are active."""
    jobs = due_jobs(prefect)
    found = asyncio.run(jobs.find_all()).jobs
    return [job.name for job in jobs.within_limits(found[active:], [job.id for job in found[:active]])]


def test_the_limit_of_the_pool_counts_active_jobs(prefect: FakePrefect) -> None:
    for name in "abcd":
        prefect.add_run(name=name)
    assert allowed(prefect) == ["a", "b", "c", "d"]
    prefect.pool.concurrency_limit = 2
    assert allowed(prefect) == ["a", "b"]
    assert allowed(prefect, active=1) == ["b"]
    assert allowed(prefect, active=3) == []


def test_the_limit_of_a_work_queue_leaves_other_queues_alone(prefect: FakePrefect) -> None:
    prefect.add_queue("narrow", concurrency_limit=1)
    prefect.add_queue("wide")
    for name, queue in [("a", "narrow"), ("b", "narrow"), ("c", "wide"), ("d", "wide")]:
        prefect.add_run(name=name, queue=queue)
    assert allowed(prefect) == ["a", "c", "d"]
    assert allowed(prefect, active=1) == ["c", "d"]
    prefect.pool.concurrency_limit = 2
    assert allowed(prefect) == ["a", "c"]


def test_a_coordinator_does_not_count_against_the_limits(prefect: FakePrefect) -> None:
    prefect.pool.concurrency_limit = 1
    prefect.add_run(name="a")
    prefect.add_run(name="coordinator", job_variables={"coordinator": True})
    prefect.add_run(name="b")
    assert allowed(prefect) == ["a", "coordinator"]


def test_the_priority_of_the_work_queue_orders_jobs(prefect: FakePrefect) -> None:
    prefect.add_queue("later", priority=2)
    prefect.add_queue("first", priority=1)
    prefect.pool.concurrency_limit = 1
    prefect.add_run(name="a", queue="later")
    prefect.add_run(name="b", queue="first")
    assert allowed(prefect) == ["b"]


# -- job variables ----------------------------------------------------------------------------


def test_run_variables_override_deployment_variables_and_pool_defaults(prefect: FakePrefect) -> None:
    prefect.pool.base_job_template["variables"]["properties"]["priority"]["default"] = 7
    deployment = prefect.add_deployment(job_variables={"gpus": 2, "gpu_memory_gb": 4})
    job = find_one(prefect, deployment_id=deployment.id, job_variables={"gpus": 3})
    assert (job.gpus, job.memory_mb, job.priority) == (3, 4096, 7)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"gpus": 0}, "gpus: Input should be greater than or equal to 1"),
        ({"gpus": 4, "max_gpus": 2}, "gpus is 4, which is not between"),
        ({"gpsu": 2}, "Did you mean 'gpus'?"),
        ({"image": "busybox", "cpus": "many"}, "cpus is 'many', which is no number."),
    ],
)
def test_unusable_job_variables_are_reported(
    prefect: FakePrefect, variables: dict[str, Any], message: str
) -> None:
    good = prefect.add_run()
    bad = prefect.add_run(job_variables=variables)
    found = find_all(prefect)
    assert [job.id for job in found.jobs] == [str(good.id)]
    ((run, error),) = found.bad
    assert run.id == bad.id
    assert message in error


def test_a_container_with_references_to_blocks_is_checked_at_launch(prefect: FakePrefect) -> None:
    find_one(prefect, job_variables={"image": "{{ prefect.variables.image }}", "cpus": 10_000})


def test_the_container_form_sets_variables_and_the_name(prefect: FakePrefect) -> None:
    form = prefect.add_deployment(CONTAINER_FLOW)
    parameters = {"container_image": "busybox", "required_gpus": 2, "name": "mnist"}
    jobs = due_jobs(prefect)
    run = prefect.add_run(deployment_id=form.id, parameters=parameters)
    (job,) = asyncio.run(jobs.find_all()).jobs
    assert (job.gpus, job.name) == (2, "mnist")
    asyncio.run(jobs.describe(job))
    assert prefect.runs[run.id].name == "mnist", "the run shows the name as well"


def test_tags_name_user_and_experiment(prefect: FakePrefect) -> None:
    deployment = prefect.add_deployment()
    jobs = due_jobs(prefect)
    prefect.add_run(deployment_id=deployment.id, tags=["user:ada", "experiment:e1", "x"])
    (job,) = asyncio.run(jobs.find_all()).jobs
    fact = asyncio.run(jobs.describe(job))
    assert job.user == fact.user_name == "ada"
    assert (fact.pool, fact.flow, fact.deployment, fact.experiment) == (POOL, "train", "nightly", "e1")
    assert json.loads(fact.tags) == ["experiment:e1", "user:ada", "x"]
    assert UUID(fact.job_id) in prefect.runs
