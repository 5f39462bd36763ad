"""GPU memory on a real server with a real worker: it is predicted, shared, exceeded and raised."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
from conftest import eventually
from live import Pool

from gpu_flows.bootstrap.local_stack import Stack

pytestmark = pytest.mark.slow

USES = f"{sys.executable} -m gpu_flows.devices.simulated_memory --mb {{}} --seconds {{}}"


def test_a_job_is_given_the_memory_that_its_like_used_and_shares_a_device(
    new_stack: Callable[..., Stack],
) -> None:
    pool = Pool(new_stack("1x1:T4:16"))
    pool.use_policy("schedtune")
    first = pool.command(USES.format(5000, 3))  # of which nothing is known: it gets the whole device
    pool.until(first, "Completed")
    pool.until_recorded("select outcome from job_ends", ("completed",))  # before that, its use is learned
    alike = [pool.command(USES.format(5000, 600)) for _ in range(2)]

    def find_both() -> list[dict[str, Any]]:
        running = pool.status().running
        return running if {job["id"] for job in running} == set(alike) else []

    both = eventually(find_both, "both run on the only device")
    for job in both:
        assert (job["memory"]["how"], job["memory"]["value"]) == ("history", 5000)
    said = r"GPU memory 4\.88 GB, at most [\d.]+ GB \(predicted, history"
    eventually(
        lambda: all(re.search(said, pool.logs(run)) for run in alike), "their logs say what was predicted"
    )
    known = "select how, count(*) from predictions where quantity = 'memory_mb' group by how"
    pool.until_recorded(known, ("history", 2))
    for run in alike:
        assert pool.state(run) == "Running", "neither ran out of memory"
        pool.cancel(run)


@pytest.mark.parametrize("cluster", ["1x1:T4:16", "1x1"])  # the model `GPU` of the latter is not known
def test_the_train_flow_is_traced_before_its_first_run(new_stack: Callable[..., Stack], cluster: str) -> None:
    pytest.importorskip("torch")
    pool = Pool(new_stack(cluster), flow="train")
    pool.use_policy("schedtune", prediction={"wait_seconds": 300})  # a busy machine may take long
    run = pool.submit(parameters={"config": {"model": "mlp", "epochs": 1, "samples": 256}})
    pool.until(run, "Completed", patience_s=300.0)
    traced = (
        "from predictions where quantity = 'memory_mb' and how = 'traced' and value < upper and upper < 2000"
    )
    pool.until_recorded(f"select job_id, count(*) {traced} group by job_id", (run, 1))
    if cluster == "1x1":
        known = "select count(*) from predictions where detail like '%''GPU'' is not known%'"
        pool.until_recorded(known, (1,))
    pool.until_recorded("select predicted from job_features", ('["memory_mb"]',))


def test_a_job_that_runs_out_of_memory_waits_for_more_and_completes(new_stack: Callable[..., Stack]) -> None:
    pool = Pool(new_stack("1x1:T4:16"))
    pool.use_policy("fifo", sharing="shared")
    flow = pool.submit(USES.format(5000, 4), retries=1, gpu_memory_gb=4)  # a flow, which reports itself
    command = pool.command(USES.format(6000, 4), gpu_memory_gb=4)
    for run, raised in ((flow, "7.32"), (command, "8.79")):  # half as much again as each needs
        assert pool.until(run, "Completed", "Crashed", "Refused")["state"]["name"] == "Completed"
        names = pool.states(run)
        assert "OutOfMemory" in names, names
        assert "Failed" not in names, names
        assert pool.run(run)["run_count"] == 1, "running out of memory is not a retry"
        said = f"It ran out of GPU memory with 4 GB; it waits for {raised} GB (1 of 2)."
        eventually(lambda run=run, said=said: said in pool.logs(run), "its log says so")
    outcomes = eventually(
        lambda: (
            len(rows := pool.sql("select job_id, outcome from attempt_ends order by job_id, attempt")) == 4
            and rows
        ),
        "all ends are recorded",
    )
    assert sorted(outcomes) == sorted(
        (run, outcome) for run in (flow, command) for outcome in ("out_of_memory", "completed")
    )
    raised = "select count(distinct job_id) from predictions where quantity = 'memory_mb' and how = 'raised'"
    pool.until_recorded(raised, (2,))
    pool.until_recorded("select max(peak_mb), any_value(source) from memory_peaks", (6000, "reported"))
