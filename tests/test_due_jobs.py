"""Due runs become jobs: paging, job variables, users, and what is recorded of a job."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from fake_prefect import POOL, FakePrefect
from prefect.client.schemas.objects import CreatedBy, StateType
from prefect.states import Completed, Running

from gpu_flows.blocks import GpuCluster
from gpu_flows.common.clock import utc_now
from gpu_flows.prediction import live
from gpu_flows.prefect_api.conventions import CONTAINER_FLOW, TRAIN_FLOW, TRAIN_STEP
from gpu_flows.prefect_api.due_jobs import DueJobs, FoundJobs
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.prediction.estimate import JobFeatures


@pytest.fixture
def prefect() -> FakePrefect:
    return FakePrefect()


def due_jobs(prefect: FakePrefect, *served_queues: str) -> DueJobs:
    return DueJobs(prefect.client, prefect.pool, set(served_queues))


def find_all(prefect: FakePrefect, *served_queues: str) -> FoundJobs:
    return asyncio.run(due_jobs(prefect, *served_queues).find_all())


def find_one(prefect: FakePrefect, **fields: Any) -> Job:
    prefect.add_run(**fields)
    (due,) = find_all(prefect).jobs
    return due.job


# -- main memory ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"image": "train", "memory_gb": 1.5, "cpus": 2}, (2.0, 1536)),
        ({"image": "train", "memory_gb": "8"}, (0.0, 8192)),
        ({"image": "train"}, (0.0, 0)),
        ({"memory_gb": 8, "cpus": 2}, (0.0, 0)),
        ({"image": "train", "memory_gb": "{{ prefect.variables.memory }}"}, (0.0, 0)),
    ],
)
def test_a_container_asks_for_processors_and_main_memory(
    prefect: FakePrefect, variables: dict[str, Any], expected: tuple[float, int]
) -> None:
    job = find_one(prefect, job_variables=variables)
    assert (job.cpus, job.ram_mb) == expected


@pytest.mark.parametrize(("hosts", "may_span"), [([], True), (["a=ssh://a", "b=ssh://b"], False)])
def test_a_job_on_docker_hosts_does_not_span_nodes(
    prefect: FakePrefect, hosts: list[str], may_span: bool
) -> None:
    """Without listed hosts all nodes are one machine, and one container sees the devices of all of them."""
    prefect.add_run(job_variables={"image": "train", "may_span_nodes": True})
    jobs = due_jobs(prefect)
    jobs.cluster = GpuCluster.of(hosts=hosts, docker=True)
    (due,) = asyncio.run(jobs.find_all()).jobs
    assert due.job.may_span_nodes is may_span
    assert bool(due.notice) is not may_span


# -- prediction -------------------------------------------------------------------------------


class FakePrediction:
    """Completes every job with a bound, once it is told to."""

    basis: tuple[object, ...] = ()

    def __init__(self) -> None:
        self.is_ready = False
        self.asked: list[tuple[JobFeatures, str, Mapping[str, Any]]] = []

    def complete(
        self, job: Job, features: JobFeatures, step: str, options: Mapping[str, Any]
    ) -> live.Completed:
        self.asked.append((features, step, options))
        return live.Completed(replace(job, memory_mb=1000) if self.is_ready else job, not self.is_ready)


def test_jobs_are_completed_and_rebuilt_when_more_is_known(prefect: FakePrefect) -> None:
    prediction = FakePrediction()
    jobs = due_jobs(prefect)
    jobs.prediction = cast(live.LivePrediction, prediction)
    deployment = prefect.add_deployment(TRAIN_FLOW)
    parameters = {"config": {"size": 2, "seed": 3}}
    prefect.add_run(
        deployment_id=deployment.id,
        updated=utc_now(),
        parameters=parameters,
        job_variables={"gpus": 2},
    )
    (due,) = asyncio.run(jobs.find_all()).jobs
    assert due.is_predicting
    asyncio.run(jobs.find_all())
    ((features, step, options),) = prediction.asked  # a job that has not changed is not asked about again
    assert (features.flow, features.deployment, step) == ("train", "nightly", TRAIN_STEP)
    assert options == {"size": 2, "batch_size": 32}
    prediction.is_ready = True
    jobs.rebuild([due.job.id])
    (due,) = asyncio.run(jobs.find_all()).jobs
    assert (due.job.memory_mb, due.is_predicting) == (1000, False)
    prediction.basis = ("other devices",)
    asyncio.run(jobs.find_all())
    assert len(prediction.asked) == 3


def test_a_step_of_a_users_code_is_not_traced_where_jobs_run_in_containers(prefect: FakePrefect) -> None:
    prediction, jobs = FakePrediction(), due_jobs(prefect)
    jobs.prediction = cast(live.LivePrediction, prediction)
    jobs.cluster = GpuCluster(runtime="docker")
    prefect.add_run(job_variables={"memory_step": "mine:make_step"}, parameters={"layers": 3})
    asyncio.run(jobs.find_all())
    jobs.cluster = GpuCluster()
    asyncio.run(jobs.find_all())
    assert [step for _, step, _ in prediction.asked] == ["", "mine:make_step"]
    assert prediction.asked[-1][2] == {"gpus": 1, "layers": 3}


def test_predictors_get_no_secrets(prefect: FakePrefect) -> None:
    prediction, jobs = FakePrediction(), due_jobs(prefect)
    jobs.prediction = cast(live.LivePrediction, prediction)
    parameters = {"config": {"hf_token": "hidden", "epochs": 3}}
    prefect.add_run(parameters=parameters, job_variables={"command": "train.py --password hidden --batch 8"})
    asyncio.run(jobs.find_all())
    assert prediction.asked[0][0].parameters == {"epochs": 3, "command": "train.py", "batch": 8}


@pytest.mark.parametrize(("batch_size", "share"), [("64", 32), ("many", "many"), ([64], [64]), (65.0, 33)])
def test_a_batch_size_of_any_kind_is_accepted(
    prefect: FakePrefect, batch_size: object, share: object
) -> None:
    prediction, jobs = FakePrediction(), due_jobs(prefect)
    jobs.prediction = cast(live.LivePrediction, prediction)
    parameters = {"config": {"batch_size": batch_size}}
    deployment = prefect.add_deployment(TRAIN_FLOW)
    prefect.add_run(deployment_id=deployment.id, parameters=parameters, job_variables={"gpus": 2})
    assert len(asyncio.run(jobs.find_all()).jobs) == 1
    assert prediction.asked[0][2] == {"batch_size": share}


def test_a_prediction_that_fails_holds_up_no_job(
    prefect: FakePrefect, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(FakePrediction):
        def complete(self, job: Job, *rest: Any) -> live.Completed:
            if job.name == "odd":
                raise ZeroDivisionError
            return super().complete(job, *rest)

    jobs = due_jobs(prefect)
    jobs.prediction = cast(live.LivePrediction, Failing())
    for name in ("odd", "usual"):
        prefect.add_run(name=name, updated=utc_now())
    found = {due.job.name: due for due in asyncio.run(jobs.find_all()).jobs}
    asyncio.run(jobs.find_all())
    assert {name: due.is_predicting for name, due in found.items()} == {"odd": False, "usual": True}
    assert [record.getMessage() for record in caplog.records if "run odd" in record.getMessage()] == [
        "Nothing is predicted of run odd, because its prediction failed."
    ]


# -- finding ----------------------------------------------------------------------------------


def test_all_pages_of_due_runs_are_read(prefect: FakePrefect) -> None:
    ids = [str(prefect.add_run().id) for _ in range(401)]
    assert [due.job.id for due in find_all(prefect).jobs] == ids


def test_runs_that_are_not_due_or_not_scheduled_are_left_out(prefect: FakePrefect) -> None:
    due = prefect.add_run()
    prefect.set_state(prefect.add_run().id, Running())
    later = prefect.add_run(due_in_s=600)
    found = find_all(prefect)
    assert [due.job.id for due in found.jobs] == [str(due.id)]
    assert found.next_due == later.expected_start_time


def test_a_full_search_marks_the_work_queues_as_ready(prefect: FakePrefect) -> None:
    find_all(prefect)
    assert "poll" in prefect.calls


def test_single_runs_are_found_by_id(prefect: FakePrefect) -> None:
    due, later = prefect.add_run(), prefect.add_run(due_in_s=600)
    prefect.add_run()
    found = asyncio.run(due_jobs(prefect).find([due.id, later.id, uuid4()]))
    assert [due.job.id for due in found.jobs] == [str(due.id)]
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


# -- which runs are served --------------------------------------------------------------------


def test_only_served_work_queues_are_read(prefect: FakePrefect) -> None:
    prefect.add_run(queue="other")
    served = prefect.add_run(queue="served")
    assert [due.job.id for due in find_all(prefect, "served").jobs] == [str(served.id)]


def test_a_run_that_retries_in_its_own_process_is_not_served(prefect: FakePrefect) -> None:
    run = prefect.add_run()
    run.empirical_policy.retry_type = "in_process"
    assert find_all(prefect).jobs == []


def test_a_postponed_run_is_no_longer_due(prefect: FakePrefect) -> None:
    jobs, run, later = due_jobs(prefect), prefect.add_run(), prefect.add_run(due_in_s=600)
    asyncio.run(jobs.find_all())
    due_state, later_state = (prefect.history[each.id][-1] for each in (run, later))
    assert jobs.is_due(str(run.id), due_state)
    assert not jobs.is_due(str(run.id), later_state)


def test_an_unchanged_run_is_built_once(prefect: FakePrefect) -> None:
    deployment, edited = prefect.add_deployment(), utc_now()
    jobs, run = due_jobs(prefect), prefect.add_run(deployment_id=deployment.id, updated=edited)
    first, again = (asyncio.run(jobs.find_all()).jobs[0] for _ in range(2))
    assert again is first
    changes = {"job_variables": {"priority": 5}, "updated": edited + timedelta(seconds=1)}
    prefect.runs[run.id] = prefect.runs[run.id].model_copy(update=changes)
    assert asyncio.run(jobs.find_all()).jobs[0].job.priority == 5
    prefect.pool.base_job_template["variables"]["properties"]["preemptible"]["default"] = False
    assert not asyncio.run(jobs.find_all()).jobs[0].job.preemptible, "the pool's defaults were edited"


def test_limits_are_read_again_only_if_they_are_old(prefect: FakePrefect) -> None:
    jobs = due_jobs(prefect)

    async def read() -> None:
        await asyncio.gather(*(jobs.read_limits(at_most_s=60) for _ in range(5)))
        await jobs.read_limits()

    asyncio.run(read())
    assert prefect.calls.count("read_work_pool") == prefect.calls.count("read_work_queues") == 2


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
        ({"after": ["train-1"]}, "The job variable after names 'train-1', which is not the id of a run"),
        ({"after_any": ["train-1"]}, "The job variable after_any names 'train-1'"),
        ({"image": "busybox", "cpus": "many"}, "cpus is 'many', which is no number."),
    ],
)
def test_unusable_job_variables_are_reported(
    prefect: FakePrefect, variables: dict[str, Any], message: str
) -> None:
    good = prefect.add_run()
    bad = prefect.add_run(job_variables=variables)
    found = find_all(prefect)
    assert [due.job.id for due in found.jobs] == [str(good.id)]
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
    (due,) = asyncio.run(jobs.find_all()).jobs
    assert (due.job.gpus, due.job.name) == (2, "mnist")
    asyncio.run(jobs.describe(due.job))
    assert prefect.runs[run.id].name == "mnist", "the run shows the name as well"


def test_hold_and_after_are_read(prefect: FakePrefect) -> None:
    other = str(uuid4())
    prefect.add_run(queue="q", job_variables={"hold": True, "after": [other.upper()]})
    (due,) = find_all(prefect).jobs
    assert (due.work_queue, due.held, due.after) == ("q", True, (other,))


def test_tags_name_user_and_experiment(prefect: FakePrefect) -> None:
    deployment = prefect.add_deployment()
    jobs = due_jobs(prefect)
    prefect.add_run(deployment_id=deployment.id, tags=["user:ada", "experiment:e1", "x"])
    (due,) = asyncio.run(jobs.find_all()).jobs
    fact = asyncio.run(jobs.describe(due.job))
    assert due.job.user == fact.user_name == "ada"
    assert (fact.pool, fact.flow, fact.deployment, fact.experiment) == (POOL, "train", "nightly", "e1")
    assert json.loads(fact.tags) == ["experiment:e1", "user:ada", "x"]
    assert UUID(fact.job_id) in prefect.runs


def test_a_run_with_unusable_variables_is_described_as_far_as_it_is_known(prefect: FakePrefect) -> None:
    deployment = prefect.add_deployment()
    variables = {"gpsu": 2, "gpus": 3, "user": "ada"}
    jobs, run = due_jobs(prefect), prefect.add_run(deployment_id=deployment.id, job_variables=variables)
    ((bad, _),) = asyncio.run(jobs.find_all()).bad
    fact = asyncio.run(jobs.describe_unusable(bad))
    assert (fact.job_id, fact.name, fact.user_name) == (str(run.id), run.name, "ada")
    assert (fact.gpus, fact.flow, fact.deployment) == (3, "train", "nightly")


# -- users ------------------------------------------------------------------------------------


def creator(name: str, type: str = "AUTOMATION") -> CreatedBy:
    return CreatedBy(id=uuid4(), type=type, display_value=name)


def test_the_user_is_the_first_that_is_stated(prefect: FakePrefect) -> None:
    """Each statement is added to those that count for less, and wins."""
    of_deployment: dict[str, Any] = {}
    of_run: dict[str, Any] = {}
    users = [find_user_of(prefect, of_deployment, of_run)]
    for fields, statement in [
        (of_run, {"created_by": creator("CronSchedule", "SCHEDULE")}),
        (of_deployment, {"created_by": creator("deployer")}),
        (of_run, {"created_by": creator("automation")}),
        (of_deployment, {"tags": ["x", "user:deployment-tag"]}),
        (of_deployment, {"job_variables": {"user": "deployment-variable"}}),
        (of_run, {"tags": ["user:run-tag"]}),
        (of_run, {"job_variables": {"user": " run-variable "}}),
    ]:
        fields |= statement
        users.append(find_user_of(prefect, of_deployment, of_run))
    assert users == [
        "",
        "CronSchedule",
        "deployer",
        "automation",
        "deployment-tag",
        "deployment-variable",
        "run-tag",
        "run-variable",
    ]


def test_the_pool_can_have_a_default_user(prefect: FakePrefect) -> None:
    prefect.pool.base_job_template["variables"]["properties"]["user"]["default"] = "lab"
    assert find_user_of(prefect, {"created_by": creator("deployer")}, {}) == "lab"
    assert find_user_of(prefect, {"tags": ["user:ada"]}, {}) == "ada"


def test_tags_of_the_deployment_are_not_the_runs_own(prefect: FakePrefect) -> None:
    """Prefect merges the deployment's tags into those of the run."""
    of_deployment = {"tags": ["user:ann"]}
    assert find_user_of(prefect, of_deployment, {"tags": ["user:ann", "user:carl"]}) == "carl"
    assert find_user_of(prefect, of_deployment, {"tags": ["user:ann"]}) == "ann"
    by_variable = {**of_deployment, "job_variables": {"user": "bob"}}
    assert find_user_of(prefect, by_variable, {"tags": ["user:ann"]}) == "bob"


def find_user_of(prefect: FakePrefect, of_deployment: dict[str, Any], of_run: dict[str, Any]) -> str:
    prefect.runs.clear()
    deployment = prefect.add_deployment(**of_deployment)
    return find_one(prefect, deployment_id=deployment.id, **of_run).user
