"""Bare containers and flows in containers, through the real server, worker and engines."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from conftest import eventually
from docker_hosts.daemon import Daemon
from docker_hosts.lossy_proxy import LossyProxy
from live import DOUBLE_ALLOCATIONS, Pool

from gpu_flows.bootstrap.local_stack import Stack

pytest_plugins = ["docker_hosts.fixtures"]
pytestmark = pytest.mark.slow

ENDS = ("Completed", "Failed", "Crashed", "Cancelled", "Refused")


def bare(pool: Pool, line: str, gpus: int = 1, **variables: Any) -> str:
    """Submit a run of the container form, as the UI does."""
    form = {"container_image": "bare:test", "command": f"sh -c '{line}'", "required_gpus": gpus}
    return pool.submit(parameters=form, **variables)


def containers(*engines: Daemon) -> dict[str, str]:
    """Return the ids of our containers by run id."""
    found = {}
    for engine in engines:
        for listed in engine.client().api.containers(all=True, filters={"label": "gpu-flows.run"}):
            found[listed["Labels"]["gpu-flows.run"]] = listed["Id"]
    return found


def three_hosts(new_stack: Callable[..., Stack], engines: list[Daemon]) -> tuple[Stack, Pool]:
    """Start a stack whose hosts are these engines, with 4 devices each."""
    hosts = [f"host-{number}={engine.url},gpus=4" for number, engine in enumerate(engines, start=1)]
    stack = new_stack("", hosts=hosts)
    return stack, Pool(stack, flow="container")


def test_a_bare_container_from_the_form(new_stack: Callable[..., Stack], engine: Daemon) -> None:
    """States, output and end of a container without Prefect: completed, failed and cancelled."""
    stack = new_stack("", hosts=[f"one={engine.url},gpus=4"])
    pool = Pool(stack, flow="container")
    run = bare(pool, "echo out; echo err >&2; echo $NVIDIA_VISIBLE_DEVICES; sleep 2", gpus=2)
    failing = bare(pool, "echo no; exit 3")
    stopped = bare(pool, "echo up; sleep 600", grace_seconds=1)
    assert pool.until(run, *ENDS)["state"]["name"] == "Completed"
    states = [state for state in pool.states(run) if state != "AwaitingGPU"]
    assert states == ["Scheduled", "Pending", "Running", "Completed"]
    lines = ["SIM-one-0,SIM-one-1", "err", "out"]
    eventually(lambda: sorted(pool.output(run).splitlines()) == lines, "its output is in its logs")
    ended = pool.until(failing, *ENDS)["state"]
    assert (ended["name"], ended["message"]) == ("Failed", "The command ended with exit code 3.")
    eventually(lambda: "up" in pool.logs(stopped), "its first line is shown while it runs")
    pool.cancel(stopped)
    assert pool.until(stopped, *ENDS)["state"]["name"] == "Cancelled"
    pool.until_recorded("select count(*) from attempt_ends", (3,))
    columns = "runtime, exit_code, oom_killed, peak_memory_mb > 0"
    assert pool.sql(f"select {columns} from attempt_history where job_id = '{run}'") == [
        ("docker", 0, False, True)
    ]
    eventually(lambda: not any(pool.holders().values()), "the status shows no holder")


def test_a_request_against_the_rules_is_refused_without_a_call_to_docker(
    new_stack: Callable[..., Stack], engine: Daemon, lossy: Callable[..., LossyProxy]
) -> None:
    proxy = lossy(engine, 0.0)
    calls: list[str] = []
    proxy.only = lambda method, path: bool(calls.append(f"{method} {path}")) or False
    stack = new_stack("", hosts=[f"one={proxy.url},gpus=4"])
    pool = Pool(stack, flow="container")
    hostile = {
        "privileged": {"privileged": True},
        "volumes": {"volumes": ["/:/host"]},
        "network_mode": {"network_mode": "host"},
        "mount roots": {"mounts": ["/:/host"]},
        "docker.sock": {"mounts": ["/var/run/docker.sock:/s"]},
        "NVIDIA_VISIBLE_DEVICES": {"env": {"NVIDIA_VISIBLE_DEVICES": "all"}},
    }
    for named, variables in hostile.items():
        state = pool.until(bare(pool, "true", **variables), *ENDS)["state"]
        assert state["name"] == "Refused", variables
        assert named in state["message"]
    created = [call for call in calls if "create" in call or "start" in call]
    assert not created, "no container was created or started"


@pytest.mark.long
def test_three_hosts_under_two_policies(new_stack: Callable[..., Stack], three_engines: list[Daemon]) -> None:
    """20 jobs of 1 to 4 devices, under FIFO and, after a swap, Round Robin: all complete, no device is held
    twice, and Round Robin uses the hosts in turn."""
    _, pool = three_hosts(new_stack, three_engines)
    first = [bare(pool, "sleep 1", gpus=1 + number % 4) for number in range(10)]
    for run in first:
        assert pool.until(run, *ENDS)["state"]["name"] == "Completed"
    pool.use_policy("round_robin")
    second = []
    for number in range(10):  # one after the other, so that each finds all hosts free
        second.append(bare(pool, "true", gpus=1 + number % 4))
        assert pool.until(second[-1], *ENDS)["state"]["name"] == "Completed"
    pool.until_recorded("select count(*) from job_ends", (20,))
    assert pool.sql(DOUBLE_ALLOCATIONS) == [(0,)]
    rows = pool.sql("select nodes from attempts where policy = 'round_robin' order by started")
    nodes = [json.loads(row)[0] for (row,) in rows]
    assert len(nodes) == 10
    assert all(before != after for before, after in pairwise(nodes))
    assert set(nodes) == {"host-1", "host-2", "host-3"}
    figures = "makespan_s > 0, avg_turnaround_s > 0, allocation_percent > 0"
    table = pool.sql(f"select policy, jobs, {figures} from policy_summary")
    assert sorted(table) == [("fifo", 10, True, True, True), ("round_robin", 10, True, True, True)]


def test_a_restarted_worker_adopts_its_containers(
    new_stack: Callable[..., Stack], three_engines: list[Daemon]
) -> None:
    """6 containers go on running without a worker. All are adopted, each line of output arrives once, and the
    ends without a worker are recorded."""
    stack, pool = three_hosts(new_stack, three_engines)
    count = "for i in 1 2 3 4 5 6 7 8; do echo line $i; sleep {pause}; done; exit {code}"
    runs = [bare(pool, count.format(pause=1.5, code=0), gpus=2) for _ in range(4)]
    runs += [bare(pool, count.format(pause=0.4, code=code), gpus=2) for code in (0, 5)]
    for run in runs:
        eventually(lambda run=run: "line 2" in pool.logs(run), "it runs")
    before = {run: id for run, id in containers(*three_engines).items() if run in runs}
    stack.stop_worker(signal.SIGKILL)
    time.sleep(5)
    stack.start_worker()
    assert len(before) == 6
    lines = [f"line {number}" for number in range(1, 9)]
    for run in runs:
        expected = "Failed" if run == runs[-1] else "Completed"
        assert pool.until(run, *ENDS)["state"]["name"] == expected
        eventually(lambda run=run: pool.output(run).splitlines() == lines, "each line arrives once")
        assert pool.states(run).count("Running") == 1
    assert {run: id for run, id in containers(*three_engines).items() if run in runs} == before
    pool.until_recorded("select count(*) from attempt_ends", (6,))
    assert pool.sql("select count(*) from attempts") == [(6,)]
    assert pool.sql(DOUBLE_ALLOCATIONS) == [(0,)]


def test_a_killed_engine_is_used_again(
    new_stack: Callable[..., Stack], new_engine: Callable[..., Daemon]
) -> None:
    """Docker stops its containers when it restarts: the job fails, and the host is used again."""
    engine = new_engine("killed")
    stack = new_stack("", hosts=[f"one={engine.url},gpus=4"])
    pool = Pool(stack, flow="container")
    run = bare(pool, "trap : TERM; echo up; sleep 600 & wait", gpus=4)
    eventually(lambda: "up" in pool.logs(run), "it runs")
    engine.kill()
    eventually(lambda: not pool.status().devices[0]["healthy"], "the host is marked down")
    assert "does not answer" in pool.status().devices[0]["detail"]
    waiting = bare(pool, "echo again", gpus=4)
    engine.start()
    assert pool.until(run, *ENDS)["state"]["name"] in ("Crashed", "Failed")
    assert pool.until(waiting, *ENDS)["state"]["name"] == "Completed"
    pool.until_recorded("select count(*) from attempt_ends", (2,))
    assert pool.sql("select count(*) from attempts") == [(2,)], "nothing was launched twice"


def test_a_flow_in_a_container(
    new_stack: Callable[..., Stack],
    prefect_engine: Daemon,
    reachable: Callable[[str, Daemon], str],
) -> None:
    """The image has Prefect and the flow: the run reports its own states, and can be cancelled. It does not
    need the folder from which the flow was deployed."""
    stack = new_stack("", hosts=[f"one={prefect_engine.url},gpus=4"])
    pool = Pool(stack, flow="command", folder="/only/here")
    pool.use_rules(api_url=reachable(stack.api_url, prefect_engine))
    run = pool.submit("echo from inside $GPU_FLOWS_GPUS", image="prefect:test", gpus=2)
    assert pool.until(run, *ENDS)["state"]["name"] == "Completed"
    eventually(lambda: "from inside 2" in pool.logs(run), "its log arrives")
    assert pool.states(run).count("Running") == 1
    stopped = pool.submit("echo up; sleep 600", image="prefect:test", gpus=4)
    eventually(lambda: "up" in pool.logs(stopped), "it runs")
    pool.cancel(stopped)
    assert pool.until(stopped, *ENDS)["state"]["name"] == "Cancelled"
    assert "Crashed" not in pool.states(stopped)
    eventually(lambda: not any(pool.holders().values()), "its devices are free")
