"""The program of the process in which a policy of another package plans.

It keeps an engine of its own at the state of the worker's engine (`schedulers.mirror`), lets the policy plan
on it, and returns the moves; the worker checks them again. It reads pickled changes from the worker and
answers in lines of JSON, so that nothing of the policy reaches the worker but names and numbers.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import resource
import select
import socket
import struct
import sys
import threading
from typing import Any

from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.mirror import Changes, apply
from gpu_flows.schedulers.policy import Policy, PolicyError, make_policy

MOST_MEMORY = 1024**3  # bytes; beyond it an allocation raises MemoryError
ORDER_SHOWN = 300  # jobs of which the worker learns their place in the policy's order
HEADER = struct.Struct("!Q")  # the length of a message to the child


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    name, options = sys.argv[2], json.loads(sys.argv[3])
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    threading.Thread(target=_exit_with_worker, args=(connection,), daemon=True).start()
    try:
        policy = make_policy(name, options)
    except PolicyError as error:
        _answer(connection, {"refused": str(error)})
        return
    about = {
        "preempts": policy.preempts,
        "moves_running": bool(policy.moves_running),
        "uses_utilization": bool(policy.uses_utilization),
        "shares_devices": bool(policy.shares_devices),
        "options": policy.options.model_dump(mode="json"),
    }
    _answer(connection, about)
    _serve(connection, policy)


def _serve(connection: socket.socket, policy: Policy) -> None:
    engine = Engine((), policy, can_preempt=True)
    with connection.makefile("rb") as requests:
        while header := requests.read(HEADER.size):
            changes: Changes = pickle.loads(requests.read(HEADER.unpack(header)[0]))
            apply(changes, engine)
            plan = engine.make_plan(changes.now)
            answer = {
                "starts": [(start.job.id, [device.id for device in start.devices]) for start in plan.starts],
                "preempts": [preempt.running.job.id for preempt in plan.preempts],
                "wake_at": plan.wake_at,
                "error": engine.policy_error,
                "offers": [(offer.job.id, *offer[1:]) for offer in plan.offers],
                "order": [job.id for job in engine.first_waiting(ORDER_SHOWN)],
            }
            _answer(connection, answer)


def _answer(connection: socket.socket, answer: dict[str, Any]) -> None:
    connection.sendall(json.dumps(answer).encode() + b"\n")


def _exit_with_worker(connection: socket.socket) -> None:
    """End this process when the worker is gone, even while the policy plans."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    poll.poll()
    os._exit(0)


if __name__ == "__main__":
    main()
