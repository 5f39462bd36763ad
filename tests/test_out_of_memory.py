"""A job that runs out of GPU memory waits for more, at most twice; then it has failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fake_pool import FakePool, in_event_loop

from gpu_flows.analytics.facts import AttemptEnded, JobEnded
from gpu_flows.checkpoints import contract
from gpu_flows.schedulers.policy import make_policy

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
KNOWN = f"{OOM} Including non-PyTorch memory, this process has 2.50 GiB memory in use."  # 4.5 GiB in all
SHARED = ("fifo", {"sharing": "shared"})


def open_pool(
    folder: Path, cluster: str = "1x1:A100:16", policy: tuple[str, dict[str, object]] = SHARED
) -> FakePool:
    return FakePool(folder, cluster, make_policy(*policy))


def is_live(pool: FakePool, attempt: int) -> bool:
    live = pool.runtime.live.get("a")
    return live is not None and live.launch.attempt == attempt


@in_event_loop
async def test_a_predicted_bound_is_raised_twice_and_then_the_job_fails(tmp_path: Path) -> None:
    pool = open_pool(tmp_path)
    pool.submit("a", memory_mb=4096, predicted=("memory_mb",))
    await pool.wait_for_running("a")
    for attempt, bound in ((2, 6912), (3, 16384)):  # the last raise gives the whole device
        pool.runtime.exit("a", 1, KNOWN)
        await pool.wait_for(lambda number=attempt: is_live(pool, number), "the next attempt")
        assert pool.runtime.shares[f"a.{attempt}"] == bound
    assert "(2 of 2)" in pool.gateway.messages["a"]
    pool.runtime.exit("a", 1, OOM)
    await pool.wait_for_outcomes("a", "out_of_memory", "out_of_memory", "failed")
    assert pool.gateway.states["a"] == "failed"
    assert "raised 2 times" in pool.gateway.told["a"][-1]


@in_event_loop
async def test_a_stated_bound_on_a_whole_device_fails_as_before(tmp_path: Path) -> None:
    pool = open_pool(tmp_path, policy=("fifo", {}))
    pool.submit("a", memory_mb=4096)
    await pool.wait_for_running("a")
    assert pool.runtime.shares["a.1"] == 0
    pool.runtime.exit("a", 1, OOM)
    await pool.wait_for(lambda: pool.gateway.states["a"] == "failed", "it fails")
    verdict = pool.gateway.told["a"][-1]
    assert "whole device" in verdict
    # A flow reports its end itself, so the verdict is not in its state: it must be in the records.
    await pool.wait_for(lambda: not pool.runtime.known, "the end is recorded")
    ends = [fact for fact in pool.facts if isinstance(fact, (AttemptEnded, JobEnded))]
    assert [end.detail for end in ends] == [verdict, verdict]


@in_event_loop
async def test_a_stated_bound_on_a_shared_device_is_raised(tmp_path: Path) -> None:
    pool = open_pool(tmp_path)
    pool.submit("a", memory_mb=4096)
    await pool.wait_for_running("a")
    pool.runtime.exit("a", 1, OOM)
    await pool.wait_for(lambda: is_live(pool, 2), "the second attempt")
    assert pool.runtime.live["a"].launch.job.predicted == ("memory_mb",)


@in_event_loop
async def test_a_job_without_a_bound_moves_to_a_larger_device_or_fails(tmp_path: Path) -> None:
    pool = open_pool(tmp_path, "1x1:T4:16+1x1:A100:40", policy=("fifo", {}))
    pool.submit("a")
    await pool.wait_for_running("a")
    assert pool.runtime.live["a"].launch.devices[0].model == "T4"
    pool.runtime.exit("a", 1, OOM)
    await pool.wait_for(lambda: is_live(pool, 2), "the second attempt")
    assert pool.runtime.live["a"].launch.devices[0].model == "A100"
    pool.runtime.exit("a", 1, OOM)  # on the largest device of the pool
    await pool.wait_for(lambda: pool.gateway.states["a"] == "failed", "it fails")


@in_event_loop
async def test_the_raised_bound_survives_a_restart_of_the_worker(tmp_path: Path) -> None:
    pool = open_pool(tmp_path)
    pool.submit("a", memory_mb=4096, predicted=("memory_mb",))
    await pool.wait_for_running("a")
    pool.runtime.exit("a", 1, OOM)
    await pool.wait_for(lambda: is_live(pool, 2), "the second attempt")
    await pool.dispatcher.close()
    store = open_pool(tmp_path).job_store
    raised = store.load_raise("a")
    assert raised is not None
    assert (raised.bound_mb, raised.count, raised.attempt) == (16384, 1, 1)
    store.finish("a")
    assert store.load_raise("a") is None


@in_event_loop
async def test_a_decision_that_was_not_reported_is_repeated_and_not_counted_twice(tmp_path: Path) -> None:
    pool = open_pool(tmp_path)
    pool.submit("a", memory_mb=4096, predicted=("memory_mb",))
    await pool.wait_for_running("a")
    await pool.dispatcher.close()
    pool.runtime.exit("a", 1, OOM)
    unforgotten = dict(pool.runtime.known)
    for _ in range(2):  # the first worker is killed before it forgets the attempt
        pool.runtime.known, pool.gateway.states["a"] = dict(unforgotten), "claimed"
        worker = FakePool(
            tmp_path, "1x1:A100:16", make_policy(*SHARED), runtime=pool.runtime, gateway=pool.gateway
        )
        worker.dispatcher.active = False  # so that it does not launch the next attempt
        worker.dispatcher.adopt_latest(await pool.runtime.find())
        await worker.wait_for(lambda: not pool.runtime.known, "the end is reported")
        raised = worker.job_store.load_raise("a")
        assert raised is not None
        assert raised.count == 1
        await worker.dispatcher.close()


@in_event_loop
async def test_a_preempted_or_cancelled_job_is_not_raised(tmp_path: Path) -> None:
    pool = open_pool(tmp_path)
    pool.submit("a", memory_mb=4096, predicted=("memory_mb",))
    await pool.wait_for_running("a")
    pool.cancel("a")
    pool.runtime.exit("a", 1, OOM)
    await pool.wait_for(lambda: pool.gateway.states["a"] == "cancelled", "it is cancelled")


@in_event_loop
async def test_the_end_of_an_attempt_can_be_learned_from(tmp_path: Path) -> None:
    pool = open_pool(tmp_path)
    pool.submit("a", memory_mb=4096, predicted=("memory_mb",))
    await pool.wait_for_running("a")
    pool.runtime.now += 30
    pool.runtime.exit("a", 1, OOM)
    await pool.wait_for(lambda: pool.ended, "it is learned")
    assert (pool.ended[0].outcome, pool.ended[0].ran_s, pool.ended[0].needed_mb) == (
        "out_of_memory",
        30,
        4096,
    )


@in_event_loop
async def test_a_job_waits_again_even_if_nothing_can_be_learned(tmp_path: Path) -> None:
    pool = open_pool(tmp_path)

    def fail(*_: object) -> Any:
        raise ZeroDivisionError("in a predictor")

    memory = pool.dispatcher._runner.memory
    memory.on_attempt_end = memory.take_peaks = fail
    pool.submit("a", memory_mb=4096, predicted=("memory_mb",))
    await pool.wait_for_running("a")
    pool.runtime.exit("a", 1, OOM)
    await pool.wait_for(lambda: is_live(pool, 2), "the second attempt")
    pool.runtime.exit("a", 0)
    await pool.wait_for(lambda: pool.gateway.states["a"] == "completed", "it completes")


@in_event_loop
async def test_a_flow_that_survived_the_error_is_not_told_that_it_died_of_it(tmp_path: Path) -> None:
    pool = open_pool(tmp_path, policy=("fifo", {}))
    pool.gateway.handles_intents = True  # a flow: its output is read also if it has completed
    pool.submit("a", memory_mb=4096)
    await pool.wait_for_running("a")
    pool.runtime.exit("a", 0, f"{OOM}\nusing a smaller batch\n")
    await pool.wait_for(lambda: pool.job_ends() == {"a": "completed"}, "it completes")
    assert "a" not in pool.gateway.told
    assert pool.ended[0].needed_mb is None


@in_event_loop
async def test_the_exit_code_counts_if_the_output_says_nothing(tmp_path: Path) -> None:
    pool = open_pool(tmp_path)
    pool.submit("a", memory_mb=4096)
    await pool.wait_for_running("a")
    pool.runtime.exit("a", contract.OUT_OF_MEMORY, "ValueError: something else\n")
    await pool.wait_for(lambda: is_live(pool, 2), "the second attempt")
    assert pool.outcomes("a") == ["out_of_memory"]
