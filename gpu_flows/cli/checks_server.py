"""The doctor's checks of the Prefect server and of what it keeps for the pool."""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from typing import Any

from gpu_flows.cli.checkup import ERROR, INFO, OK, WARN, Finding, Surroundings
from gpu_flows.cli.prefect_settings import setting
from gpu_flows.cli.problem import Problem
from gpu_flows.cli.server import CLUSTER, SCHEDULER, WAREHOUSE, NotFound
from gpu_flows.worker.status import read_status

CLOCKS_APART_S = 5.0  # beyond what a slow answer and a date in whole seconds explain


def server(around: Surroundings) -> Iterator[Finding]:
    """Whether it answers, lets us in and not everybody, and is of a version that fits ours."""
    try:
        asked = around.server
    except Problem as problem:
        yield Finding(ERROR, problem.what, problem.fix)
        return
    theirs, ours = str(asked.get("/admin/version")), version("prefect")
    yield Finding(OK, f"The Prefect server at {asked.url} answers; it is Prefect {theirs}.")
    if theirs.split(".")[:2] != ours.split(".")[:2]:
        fix = f"Install the same on both sides: pip install 'prefect=={theirs}'"
        yield Finding(WARN, f"The server is Prefect {theirs}, this machine has {ours}.", fix)
    if setting("PREFECT_API_KEY") and not setting("PREFECT_API_AUTH_STRING"):
        yield Finding(OK, "An API key is set, so not everybody is let in.")
    elif asked.send("GET", "/admin/version", headers={"Authorization": ""}).status_code == 200:
        yield Finding(
            WARN,
            "The server asks nobody for a password: whoever reaches it can run anything on the workers.",
            "Start it with PREFECT_SERVER_API_AUTH_STRING=user:password, and set PREFECT_API_AUTH_STRING to "
            "the same for workers and users.",
        )
    else:
        yield Finding(OK, "The server asks for a password, and ours is right.")


def clock(around: Surroundings) -> Iterator[Finding]:
    """Whether this machine and the server agree on the time: waiting times depend on it."""
    asked = around.server_if_any
    if asked is None:
        return
    before = time.time()
    answered = asked.send("GET", "/health").headers.get("date")
    if not answered:
        yield Finding(INFO, "The server does not tell its time.")
        return
    apart = parsedate_to_datetime(answered).timestamp() + 0.5 - (before + time.time()) / 2
    if abs(apart) > CLOCKS_APART_S:
        which = "ahead of" if apart > 0 else "behind"
        fix = "Synchronise both clocks, for example with chrony or systemd-timesyncd."
        yield Finding(ERROR, f"The server's clock is {abs(apart):.0f} s {which} this machine's.", fix)
    else:
        yield Finding(OK, "The server's clock and this machine's agree.")


def worker(around: Surroundings) -> Iterator[Finding]:
    """Whether somebody serves the pool."""
    status = read_status(around.pool)
    if status:
        policy = status.policy
        yield Finding(
            OK,
            f"{status.worker} serves pool {status.pool!r} on this machine: policy {policy['name']}, "
            f"{len(status.devices)} devices, {len(status.running)} running, {len(status.waiting)} waiting.",
        )
        if policy["error"]:
            yield Finding(ERROR, f"Its policy: {policy['error']}", "Correct it: gpu-flows policy set ...")
        for device in status.devices:
            if not device["healthy"]:
                what = f"Device {device['id']} is out of use: {device['detail']}"
                yield Finding(WARN, what, "It comes back by itself when it is well.")
        return
    asked = around.server_if_any
    if asked is None:
        return
    try:
        alive = asked.workers(around.pool)
    except NotFound:
        return  # the check of the pool tells
    if alive:
        names = ", ".join(each["name"] for each in alive)
        yield Finding(OK, f"Pool {around.pool!r} is served from another machine, or about to be: {names}.")
    else:
        fix = f"Start one: prefect worker start --pool {around.pool} (or gpu-flows up)"
        yield Finding(WARN, f"No worker serves pool {around.pool!r}, so nothing starts.", fix)


def blocks(around: Surroundings) -> Iterator[Finding]:
    """Whether the pool's blocks are there and make sense."""
    asked = around.server_if_any
    if asked is None:
        return
    for field, kind in {"scheduler": SCHEDULER, "cluster": CLUSTER, "warehouse": WAREHOUSE}.items():
        try:
            name = asked.block_name(around.pool, field)
        except NotFound:
            return
        document = asked.block(kind, name)
        if document is None:
            what = f"There is no {kind} block {name!r}; the pool uses the defaults."
            yield Finding(INFO, what, "`gpu-flows up` makes it, and so does saving one in the UI.")
        elif kind == SCHEDULER:
            yield _scheduler(name, document["data"])
        else:
            yield Finding(OK, f"The {kind} block {name!r} is there.")


def _scheduler(name: str, data: dict[str, Any]) -> Finding:
    from gpu_flows.schedulers.policy import PolicyError, make_policy

    said = data.get("policy")
    if not isinstance(said, dict) or not isinstance(said.get("name"), str):
        fix = "Choose one: gpu-flows policy set fifo"
        return Finding(ERROR, f"The {SCHEDULER} block {name!r} names no policy.", fix)
    try:
        make_policy(said["name"], {key: value for key, value in said.items() if key != "name"})
    except PolicyError as error:
        return Finding(ERROR, f"The {SCHEDULER} block {name!r}: {error}", "gpu-flows policy set ...")
    return Finding(OK, f"The {SCHEDULER} block {name!r} names policy {said['name']!r}.")


def pool(around: Surroundings) -> Iterator[Finding]:
    """Whether the pool is there, is ours, and has the form that this version wants."""
    asked = around.server_if_any
    if asked is None:
        return
    try:
        described = asked.pool(around.pool)
    except NotFound as problem:
        yield Finding(ERROR, problem.what, problem.fix)
        return
    if described["type"] != "gpu":
        yield Finding(
            ERROR,
            f"Work pool {around.pool!r} is of type {described['type']!r}, which knows nothing of GPUs.",
            "Create another: prefect work-pool create NAME --type gpu",
        )
        return
    if described["is_paused"]:
        fix = f"Resume it: prefect work-pool resume {around.pool}"
        yield Finding(WARN, f"Work pool {around.pool!r} is paused, so nothing starts.", fix)
    form = described.get("base_job_template", {}).get("variables", {}).get("properties", {})
    try:
        lacking = [field for field in around.prefect["fields"] if field not in form]
    except Problem:
        return  # the check of Prefect tells
    if lacking:
        what = f"The form of pool {around.pool!r} is older than this version; it lacks: {', '.join(lacking)}."
        fix = f"prefect work-pool create {around.pool} --type gpu --overwrite"
        yield Finding(WARN, what, f"Renew it, which resets its defaults: {fix}")
    else:
        yield Finding(OK, f"Work pool {around.pool!r} is of type gpu, and its form is up to date.")
