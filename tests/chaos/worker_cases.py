"""Workers that die, stop or fall behind."""

from __future__ import annotations

import os
import shutil
import signal
import time

from chaos.lab import Lab, OtherMachine, find_leader, leads
from chaos.workload import Counts

from gpu_flows.bootstrap.local_stack import Stack
from gpu_flows.common.retry import wait_until


def killed_workers(lab: Lab) -> Counts:
    """The worker is killed again and again. Some jobs end while no worker watches."""
    stack = lab.stack()
    load = lab.workload(stack)
    stack.start_worker()
    for _ in lab.rounds():
        load.add(5, seconds=(0.1, 3))
        load.add(1, seconds=1, code=3)
        load.add(1, seconds=0.5, flow=True)
        lab.pause(0.2, 4)
        stack.stop_worker(signal.SIGKILL)
        lab.pause(0, 2)
        stack.start_worker()
    return load.judge()


def removed_folders(lab: Lab) -> Counts:
    """Jobs remove the folder of their attempt, and the worker is killed."""
    stack = lab.stack()
    load = lab.workload(stack)
    stack.start_worker()
    attempts = stack.home / "pools" / stack.pool / "attempts"
    for _ in lab.rounds():
        load.add(3, seconds=3, any_end=True, script=f"cd /; rm -rf {attempts}/$GPU_FLOWS_ATTEMPT")
        load.add(2, seconds=1)
        lab.pause(1, 2)
        stack.stop_worker(signal.SIGKILL)
        lab.pause(0, 4)
        stack.start_worker()
    return load.judge()


def slow_answers(lab: Lab) -> Counts:
    """Two workers. For the one that leads, the server's answers take 60 s until it has lost its lease, and
    then 20 to 60 s."""
    proxies = lab.proxy(), lab.proxy()
    stack = lab.stack()
    workers = [stack, lab.second(stack, home=lab.folder / "second")]
    load = lab.workload(*workers)
    for worker, proxy in zip(workers, proxies, strict=True):
        worker.start_worker(PREFECT_API_URL=proxy.api_url)
    for _ in lab.rounds():
        leader = find_leader(workers)
        proxy = proxies[workers.index(leader)]
        proxy.delay_s = 60
        until = time.monotonic() + 150
        while time.monotonic() < until:
            load.add(4, seconds=(0.5, 8))
            lab.pause(3, 6)
            if not leads(leader):
                proxy.delay_s = lab.random.choice([20, 40, 60])
        proxy.delay_s = 0
        load.add(4, seconds=(0.5, 8))
        lab.pause(5, 20)
    return load.judge(patience_s=300)


def stopped_leaders(lab: Lab) -> Counts:
    """Two workers. The one that leads is stopped for 90 s, and continued."""
    stack = lab.stack()
    workers = [stack, lab.second(stack, home=lab.folder / "second")]
    load = lab.workload(*workers)
    for worker in workers:
        worker.start_worker()
    for _ in lab.rounds():
        leader = _process(find_leader(workers))
        load.add(10, seconds=(0.5, 4))
        lab.pause(0.1, 2)
        os.kill(leader, signal.SIGSTOP)
        try:
            until = time.monotonic() + 90
            while time.monotonic() < until:
                load.add(3, seconds=(0.5, 4))
                lab.pause(2, 6)
        finally:
            os.kill(leader, signal.SIGCONT)
        load.add(5, seconds=1)
        lab.pause(5, 10)
    return load.judge(patience_s=300)


def dead_machines(lab: Lab) -> Counts:
    """A machine dies with its worker and its jobs. A worker on another machine takes the pool over."""
    lab.round = 1
    stack = lab.stack()
    load = lab.workload(stack)
    machine = lab.second(stack, OtherMachine, lab.folder / "dead-machine")
    machine.start_worker()
    load.add(4, seconds=600, any_end=True)
    load.add(10, seconds=1, any_end=True)
    wait_until(lambda: len(load.started()) >= 4, 60)
    machine.stop_worker(signal.SIGKILL)
    machine.stop_jobs()
    shutil.rmtree(machine.home / "pools")
    stack.start_worker()
    load.add(4, seconds=1)
    counts = load.judge(patience_s=600)
    counts.missing = 0  # the facts of the dead machine were on its disk
    return counts


def _process(stack: Stack) -> int:
    worker = stack._worker
    assert worker is not None
    return worker.pid
