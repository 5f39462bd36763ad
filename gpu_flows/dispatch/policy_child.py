"""The program of the process in which a policy of another package plans.

It keeps an engine of its own at the state of the worker's engine (`schedulers.mirror`), lets the policy plan
on it, and returns the moves; the worker checks them again. It reads pickled changes from the worker and
answers in lines of JSON, so that nothing of the policy reaches the worker but names and numbers.
"""

from __future__ import annotations

import contextlib
import json
import sys

from gpu_flows.dispatch.child_process import Connection
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.mirror import Changes, apply
from gpu_flows.schedulers.policy import Policy, PolicyError, make_policy

ORDER_SHOWN = 300  # jobs of which the worker learns their place in the policy's order


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    name, options = sys.argv[2], json.loads(sys.argv[3])
    try:
        policy = make_policy(name, options)
    except PolicyError as error:
        connection.answer({"refused": str(error)})
        return
    about = {
        "preempts": policy.preempts,
        "moves_running": bool(policy.moves_running),
        "uses_utilization": bool(policy.uses_utilization),
        "shares_devices": bool(policy.shares_devices),
        "options": policy.options.model_dump(mode="json"),
    }
    connection.answer(about)
    _serve(connection, policy)


def _serve(connection: Connection, policy: Policy) -> None:
    engine = Engine((), policy, can_preempt=True)
    with contextlib.suppress(EOFError):
        while True:
            changes: Changes = connection.receive()
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
            connection.answer(answer)


if __name__ == "__main__":
    main()
