"""`gpu-flows history` and `why` on recorded jobs, and the tables of jobs on a narrow terminal."""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path

import pytest
from analytics_history import History, T
from command_line.pool_server import PoolServer, at
from command_line.run import gpu_flows, gpu_flows_in_terminal
from command_line.worker import device, running_job, waiting_job, write_status

from gpu_flows.analytics.facts import (
    Allocated,
    AttemptEnded,
    DeviceSeen,
    JobEnded,
    MemoryPeak,
    NodeSeen,
    Offered,
    Predicted,
)
from gpu_flows.schedulers.model import Job, Offer, Tier

pytest_plugins = ["command_line.fixtures"]


@pytest.fixture
def recorded(pool_server: PoolServer) -> History:
    """The warehouse of a pool: one job preempted and finished, one failed, one refused, one waiting."""
    home = Path(os.environ["GPU_FLOWS_HOME"])
    home.mkdir()
    history = History(home)
    for index in (0, 1):
        history.record(DeviceSeen(f"GPU-{index}", "gpu", "n0", index, "GTX", 11_000, T))
    history.job("10000000-twice", 0, pool="gpu")
    history.start("10000000-twice", 10, "GPU-0", "GPU-1")
    history.stop("10000000-twice", 40, outcome="preempted")
    history.start("10000000-twice", 60, "GPU-1", attempt=2)
    history.stop("10000000-twice", 100, attempt=2)
    history.end("10000000-twice", 100)
    history.job("20000000-bad", 50, pool="gpu")
    history.start("20000000-bad", 55, "GPU-0")
    history.record(AttemptEnded("20000000-bad", 1, T + 58, "failed", 3, "exit code 3"))
    history.end("20000000-bad", 58, "failed")
    history.job("30000000-big", 60, pool="gpu")
    history.record(JobEnded("30000000-big", T + 61, "refused", "The pool has 2."))
    history.job("40000000-patient", 70, pool="gpu")
    history.job("50000000-elsewhere", 80, pool="other")
    history.query("select 1")  # waits until the facts are in the warehouse
    return history


def list_history(*words: str) -> list[str]:
    return [job["job_id"].partition("-")[2] for job in gpu_flows("history", *words, "--json").json]


@pytest.mark.usefixtures("recorded")
def test_history_lists_the_jobs_of_the_pool() -> None:
    jobs = {job["job_id"].partition("-")[2]: job for job in gpu_flows("history", "--json").json}
    assert list(jobs) == ["patient", "twice", "big", "bad"], "the newest end first, after those without one"
    twice = jobs["twice"]
    assert (twice["state"], twice["waited_s"], twice["ran_s"], twice["attempts"]) == ("completed", 30, 70, 2)
    assert twice["devices"] == "n0:1", "of its last attempt"
    assert (jobs["big"]["state"], jobs["big"]["devices"]) == ("refused", "")
    assert datetime.fromisoformat(twice["ended"]).timestamp() == T + 100


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--state", "failed"], ["bad"]),
        (["--state", "ended"], ["twice", "big", "bad"]),
        (["--state", "waiting"], ["patient"]),
        (["--limit", "2"], ["patient", "twice"]),
        (["--user", "ann", "--limit", "1"], ["patient"]),
        (["--user", "bob"], []),
        (["--since", "2h"], []),
        (["--pool", "other"], ["elsewhere"]),
    ],
)
def test_history_is_filtered(words: list[str], expected: list[str]) -> None:
    assert list_history(*words) == expected


@pytest.mark.usefixtures("recorded")
def test_history_as_csv_has_one_line_per_job() -> None:
    lines = gpu_flows("history", "--csv").out.splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("job_id,name,user_name,state,gpus,submitted")


# why


@pytest.mark.usefixtures("recorded")
def test_why_of_an_ended_run_has_its_figures(pool_server: PoolServer) -> None:
    end = {"message": "The command ended with exit code 3.", "end_time": at(-30)}
    pool_server.add_run("bad", "FAILED", id="20000000-bad", **end)
    found = gpu_flows("why", "bad", "--json").json
    assert (found["state"], found["exit_code"], found["on"]) == ("Failed", 3, "n0:0")
    assert (found["waited_s"], found["ran_s"]) == (5, 3)
    [attempt] = found["attempts"]
    assert (attempt["nodes"], attempt["outcome"]) == (["n0"], "failed"), "a list, not JSON in a text"
    printed = gpu_flows("why", "bad").out
    values = dict(line.split("  ", 1) for line in printed.splitlines())
    assert {name: value.strip() for name, value in values.items()} == {
        "run": "bad",
        "id": "20000000-bad",
        "user": "ada",
        "state": "Failed",
        "why": "The command ended with exit code 3.",
        "exit code": "3",
        "on": "n0:0",
        "attempt": "1",
        "policy": "fifo",
        "waited": "5s",
        "ran": "3s",
        "ended": found["ended"],
        "output": "gpu-flows logs 20000000",
        "ui": found["ui"],
    }


def test_why_of_an_ended_run_compares_what_was_predicted_with_what_was_used(
    pool_server: PoolServer, recorded: History
) -> None:
    job = "20000000-bad"
    recorded.record(
        Predicted(job, T + 50, "memory_mb", "GTX", 2048, 3072, "traced"),
        Predicted(job, T + 58, "memory_mb", "GTX", 4096, 4096, "raised"),
        MemoryPeak(job, 1, "GPU-0", 2560, "nvml"),
    )
    recorded.query("select 1")
    pool_server.add_run("bad", "FAILED", id=job, message="bad", end_time=at(-30))
    found = gpu_flows("why", "bad", "--json").json
    assert (found["memory"]["how"], found["peak_gpu_memory_mb"]) == ("raised", 2560)
    assert found["memory"]["unit"] == "MiB"
    printed = gpu_flows("why", "bad").out
    assert "4 GB per device (raised, because it ran out of memory)" in printed
    assert "2.5 GB" in printed


def test_why_and_history_of_an_ended_run_say_how_near_its_devices_were(
    pool_server: PoolServer, recorded: History
) -> None:
    job = "60000000-wide"
    recorded.record(*(NodeSeen(T, "gpu", node, "east") for node in ("n0", "n1")))
    recorded.job(job, 100, pool="gpu")
    for waited_s, tier, accepted in ((0, Tier.CLUSTER, False), (2, Tier.RACK, False), (40, Tier.RACK, True)):
        offer = Offer(Job(job), tier, accepted, waited_s, 40.0, 1.5, 0.25)
        recorded.record(Offered.of(offer, job, "gpu", "dally", T + 100 + waited_s))
    recorded.start(job, 140, "GPU-0", policy="dally")
    recorded.record(Allocated(job, 1, "GPU-9", "n1", 0, T + 140))
    recorded.stop(job, 150)
    recorded.end(job, 150)
    recorded.query("select 1")
    pool_server.add_run("wide", "COMPLETED", id=job)
    found = gpu_flows("why", "wide", "--json").json
    assert (found["attempts"][0]["tier"], found["declined_offers"]) == ("rack", 2)
    assert found["offer"] == {
        "tier": "rack",
        "accepted": True,
        "waited_s": 40.0,
        "patience_s": 40.0,
        "slowdown": 1.5,
        "sensitivity": 0.25,
    }
    assert "in one rack, after 2 declined offers" in gpu_flows("why", "wide").out
    jobs = {each["name"]: each for each in gpu_flows("history", "--json").json}
    assert (jobs[job]["tier"], jobs[job]["declined_offers"]) == ("rack", 2)
    assert (jobs["20000000-bad"]["tier"], jobs["20000000-bad"]["declined_offers"]) == ("node", 0)


def test_why_of_a_flow_that_ran_out_of_memory_has_the_verdict_of_the_worker(
    pool_server: PoolServer, recorded: History
) -> None:
    job, message = "20000000-bad", "Flow run encountered an exception: CUDA out of memory."
    verdict = "It ran out of GPU memory with 16 GB. Use less memory."
    recorded.record(JobEnded(job, time.time(), "failed", f"{message} {verdict}"))
    recorded.query("select 1")
    pool_server.add_run("bad", "FAILED", id=job, message=f"{message}\nsecond line", end_time=at(-30))
    why = gpu_flows("why", "bad", "--json").json["why"]
    assert why.splitlines() == [message, "second line", verdict]


@pytest.mark.usefixtures("recorded")
def test_why_does_not_count_the_run_time_of_a_preempted_run_as_waiting(pool_server: PoolServer) -> None:
    pool_server.add_run("twice", "COMPLETED", id="10000000-twice")
    found = gpu_flows("why", "twice", "--json").json
    assert (found["waited_s"], found["ran_s"], found["preempted"]) == (30, 70, 1)
    printed = gpu_flows("why", "twice").out
    assert "preempted  1 time" in printed
    assert "n0:0,1" in printed, "the attempts with their devices"
    write_status(waiting=[waiting_job("again", waited=7.0, attempts=0, preemptions=1)])
    assert gpu_flows("why", "again", "--json").json["waited_s"] == 7
    assert gpu_flows("queue", "--json").json["waiting"][0]["waited_s"] == 7


def test_times_of_a_job_that_runs_are_those_of_all_its_attempts(
    recorded: History, pool_server: PoolServer
) -> None:
    recorded.job("60000000-again", 0, pool="gpu")
    recorded.start("60000000-again", 10, "GPU-0")
    recorded.stop("60000000-again", 30, outcome="suspended")
    recorded.start("60000000-again", 80, "GPU-0", attempt=2)
    recorded.query("select 1")  # the pool's last fact is that of second 100
    [job] = gpu_flows("history", "--state", "running", "--json").json
    assert (job["waited_s"], job["ran_s"]) == (60, 40), "10 + 50 and 20 + 20, however long ago that was"
    pool_server.add_run("again", "RUNNING", id="60000000-again")
    found = gpu_flows("why", "again", "--json").json
    assert (found["waited_s"], found["ran_s"]) == (60, 40)
    write_status(running=[running_job("again", id="60000000-again", waited=60.0, ran=41.5, attempt=2)])
    found = gpu_flows("why", "again", "--json").json
    assert (found["waited_s"], found["ran_s"]) == (60, 41.5)


@pytest.mark.usefixtures("recorded")
def test_history_tells_that_no_worker_records(pool_server: PoolServer) -> None:
    note = "What happened since is not recorded"
    assert note in gpu_flows("history").err
    assert note not in gpu_flows("history", "--state", "ended").err, "ended jobs do not change"
    pool_server.workers.append({"name": "w", "status": "ONLINE"})
    assert note not in gpu_flows("history").err
    pool_server.workers.clear()
    write_status(at=time.time() + 60)  # fresh, however slow this machine is
    assert note not in gpu_flows("history").err


@pytest.mark.usefixtures("recorded")
def test_why_of_a_refused_run(pool_server: PoolServer) -> None:
    pool_server.add_run("big", "FAILED", id="30000000-big", state_name="Refused", message="The pool has 2.")
    printed = gpu_flows("why", "big").out
    assert "Refused" in printed
    assert "The pool has 2." in printed
    assert "gpu-flows logs" not in printed, "it printed nothing"


def test_why_of_an_ended_run_without_a_warehouse(pool_server: PoolServer) -> None:
    pool_server.add_run("done", "COMPLETED", total_run_time=30.0, message="All is well.")
    found = gpu_flows("why", "done", "--json").json
    assert (found["why"], found["ran_s"], found["attempts"]) == ("All is well.", 30, [])
    assert 65 < found["waited_s"] < 80


def test_why_of_a_held_back_run_has_no_place(pool_server: PoolServer) -> None:
    held = waiting_job(reason="held", why="It is held.", fix="gpu-flows release 11111111")
    write_status(waiting=[waiting_job("first"), {**held, "id": "44444444-a"}])
    found = gpu_flows("why", "patient", "--json").json
    assert (found["place"], found["reason"], found["why"]) == (None, "held", "It is held.")
    printed = gpu_flows("queue").out
    assert "-  44444444  patient" in printed
    assert "It is held. gpu-flows release 11111111" in printed


def test_why_of_a_job_that_declined_an_offer_carries_it(pool_server: PoolServer) -> None:
    offer = {"tier": "cluster", "accepted": False, "waited_s": 2.0, "patience_s": 42.0, "sensitivity": 0.5}
    text = "it declined a placement across racks; waits up to 40 s more for one rack"
    write_status(waiting=[waiting_job(reason="declined", why=text, offer=offer), waiting_job("other")])
    found = gpu_flows("why", "patient", "--json").json
    assert (found["reason"], found["why"], found["offer"]) == ("declined", text, offer)
    assert "offer" not in gpu_flows("why", "other", "--json").json
    assert "placement across racks" in " ".join(gpu_flows("queue").out.split())


# Without a worker


def test_queue_says_how_old_it_is(pool_server: PoolServer) -> None:
    write_status(at=time.time() - 6, waiting=[waiting_job()])
    assert "This is 6s old: worker 'worker-1' has not reported since" in gpu_flows("queue").out
    write_status(at=time.time() - 600)
    pool_server.add_run("busy", "RUNNING")
    pool_server.add_run("leaving", "CANCELLING")
    printed = gpu_flows("queue", "--all").out
    assert "No worker serves pool 'gpu' since 10m 00s, so no job starts." in printed
    rows = [line.split() for line in printed.splitlines()]
    assert [row[-1] for row in rows if "busy" in row] == ["?"], "the server does not know the devices"
    assert [row[-2:] for row in rows if "leaving" in row] == [["?", "(cancelling)"]]


# Narrow terminals

LONG = "fine-tune-llama-3-on-the-wikipedia-corpus[lr=0.001,batch=64]"


@pytest.mark.usefixtures("recorded")
def test_tables_fit_into_80_columns(pool_server: PoolServer) -> None:
    write_status(
        waiting=[
            waiting_job(LONG, user="ada.lovelace@example.org", fix="Ask for less, or for several nodes.")
        ],
        running=[running_job(devices=[f"GPU-{n}" for n in range(8)])],
        devices=[device(id=f"GPU-{n}", index=n) for n in range(8)],
    )
    printed = gpu_flows_in_terminal("queue", "--all")
    assert max(map(len, printed)) <= 80
    text = " ".join(" ".join(printed).split())
    assert "11111111" in text
    assert "1st in the queue, needs 2 GPUs on one node; 0 such are free. Ask for less, or for several" in text
    assert "node-1:0,1,2,3,4,5,6,7" in text
    assert "3m 20s" in text
    pool_server.workers.append({"name": "w", "status": "ONLINE"})  # else a note follows the table
    printed = gpu_flows_in_terminal("history")
    assert max(map(len, printed)) <= 80
    assert [line.split()[0] for line in printed if line.startswith("1000")] == ["10000000"]
    assert "completed" in " ".join(printed)
    pool_server.add_run("twice", "COMPLETED", id="10000000-twice")
    assert max(map(len, gpu_flows_in_terminal("why", "twice"))) <= 80
