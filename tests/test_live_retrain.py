"""The retrain flow as a job of a pool: it learns from the pool's warehouse and stores what it learned."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from analytics_history import History
from conftest import eventually
from learning_history import PARAMETERS, record_jobs
from live import Pool

from gpu_flows.bootstrap.local_stack import Stack
from gpu_flows.prediction.predictor_store import PredictorStore
from gpu_flows.schedulers.prediction.estimate import JobFeatures

pytestmark = pytest.mark.slow


@pytest.mark.long
def test_retrain_learns_from_the_warehouse_of_its_pool(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack("1x1:GTX 1080 Ti:11", worker=False)
    history = History(stack.home)
    record_jobs(history, 60)
    history.query("select 1")
    stack.start_worker()
    pool = Pool(stack, flow="retrain")
    store = PredictorStore(stack.home / "predictors")
    _retrain(pool)
    predictors = store.load_current()
    assert predictors is not None
    assert predictors.memory_history is not None
    found = predictors.memory_history.estimate(JobFeatures("f", "d", "ann", 1, PARAMETERS), "GTX")
    assert found is not None
    assert found.value == 1002
    again = _retrain(pool)
    eventually(lambda: "0 of them new" in pool.logs(again), "the flow tells that nothing is new")
    assert store.versions() == [predictors.version]


def _retrain(pool: Pool) -> str:
    run_id = pool.submit(parameters={"fresh": False}, coordinator=True)
    ended = pool.until(run_id, "Completed", "Failed", "Crashed")
    assert ended["state"]["name"] == "Completed", pool.logs(run_id)
    return run_id
