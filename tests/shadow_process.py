"""A process that asks a shadow about one decision: `python shadow_process.py FOLDER SAVED`.

The shadow ends the process. If it is not asked, the process prints what the worker is told instead.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from gpu_flows.forecasting import shadowing
from gpu_flows.forecasting.messages import Decision, Message, Settings
from gpu_flows.forecasting.shadowing import Shadowing
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.engine import Engine
from gpu_flows.schedulers.mirror import Changes
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.policies.fifo import Fifo
from gpu_flows.schedulers.policy import Policy, State


class Deadly(Fifo):
    name = "deadly"

    def plan(self, state: State) -> None:
        os._exit(3)


def ask(folder: Path, policy: type[Policy], saved: str = "1") -> list[dict[str, Any]]:
    """Let a new observer ask this policy about one decision."""

    async def open_it(name: str, options: dict[str, Any], *_: Any) -> Policy:
        return policy(**options)

    engine = Engine(declare("1x1"), Fifo())
    engine.submit(Job("a", 0.0, 1))
    message = Message(1, Changes(100.0, None), decision=Decision("fifo", (), ()))
    with mock.patch.object(shadowing, "open_policy", open_it):
        return Shadowing(folder).observe(engine, message, Settings(shadows={policy.name: {}}, saved=saved))


if __name__ == "__main__":
    print(json.dumps(ask(Path(sys.argv[1]), Deadly, sys.argv[2])))
