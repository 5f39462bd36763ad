"""A job in a container is preempted, and continues from its checkpoint on another Docker host."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import eventually
from docker_hosts.daemon import Daemon
from live import DOUBLE_ALLOCATIONS, Pool

from gpu_flows.bootstrap.local_stack import Stack

pytest_plugins = ["docker_hosts.fixtures"]
pytestmark = pytest.mark.slow

# Counts until it is asked to stop, and saves its count then. It continues from there, and ends soon.
COUNTS = """sh -c 'd=$GPU_FLOWS_CHECKPOINT_DIR; n=$(cat $d/n 2>/dev/null || echo 0); first=$n; echo from $n
trap "echo \\$n > $d/n; exit 85" TERM
while [ $first = 0 ] || [ $n -lt $((first+5)) ]; do n=$((n+1)); sleep 0.2; done; echo to $n'"""


@pytest.mark.parametrize("reached_by", ["socket", "tcp"], ids=["mounted", "copied"])
def test_a_container_moves_to_another_host(
    new_stack: Callable[..., Stack], new_engine: Callable[..., Daemon], reached_by: str
) -> None:
    """A host with a local socket has the worker's files, so checkpoints are mounted; over tcp they are
    copied."""
    engines = [new_engine(name, tcp=reached_by == "tcp") for name in ("first", "second")]
    urls = [engine.tcp_url if reached_by == "tcp" else engine.url for engine in engines]
    insecure = ",insecure=true" if reached_by == "tcp" else ""
    hosts = [f"host-{n}={url},gpus=2{insecure}" for n, url in enumerate(urls, start=1)]
    stack = new_stack("", hosts=hosts)
    pool = Pool(stack, flow="container")
    pool.use_policy("priority", protection={"min_run_seconds": 0})
    form = {"container_image": "bare:test", "command": COUNTS, "required_gpus": 2}
    victim = pool.submit(parameters=form)
    eventually(lambda: "from 0" in pool.logs(victim), "it runs")
    node = eventually(lambda: pool.status().running, "the status shows its node")[0]["nodes"][0]
    urgent = {"container_image": "bare:test", "command": "sleep 3", "required_gpus": 2}
    run = pool.submit(parameters=urgent, priority=100, nodes=[node])
    assert pool.until(run, "Completed", "Failed", "Crashed", "Refused")["state"]["name"] == "Completed"
    assert pool.until(victim, "Completed", "Failed", "Crashed")["state"]["name"] == "Completed"
    lines = pool.output(victim).splitlines()
    starts = [int(line.split()[1]) for line in lines if line.startswith("from")]
    assert len(starts) == 2
    assert starts[1] > 0, "it continued from its checkpoint"
    assert f"to {starts[1] + 5}" in lines
    assert not {"Failed", "Crashed"} & set(pool.states(victim))
    pool.until_recorded("select count(*) from attempt_ends", (3,))
    nodes = pool.sql(f"select nodes from attempts where job_id = '{victim}' order by attempt")
    assert len({node for (node,) in nodes}) == 2, "it changed hosts"
    assert pool.sql(DOUBLE_ALLOCATIONS) == [(0,)]
