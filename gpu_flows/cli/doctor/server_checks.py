"""Checks of the Prefect server, and of the pool, the worker and the blocks that it knows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from typing import Any

from gpu_flows.cli.doctor.checks import ERROR, INFO, OK, WARN, CheckContext, Finding
from gpu_flows.cli.errors import CommandError
from gpu_flows.cli.prefect_client import (
    CLUSTER_BLOCK,
    SCHEDULER_BLOCK,
    WAREHOUSE_BLOCK,
    NotFound,
    template_fields,
)
from gpu_flows.cli.prefect_settings import read_setting
from gpu_flows.schedulers.policy_choice import read_choice
from gpu_flows.worker.status import Status, read_status

MOST_CLOCK_OFFSET_S = 5.0  # more than a slow answer and a date in whole seconds explain


def check_server(context: CheckContext) -> Iterator[Finding]:
    """Whether the server answers, has a version that fits, and asks for a password."""
    try:
        client = context.client
    except CommandError as error:
        yield Finding(ERROR, error.what, error.fix)
        return
    theirs, ours = str(client.get("/admin/version")), version("prefect")
    yield Finding(OK, f"The Prefect server at {client.url} answers; it is Prefect {theirs}.")
    if theirs.split(".")[:2] != ours.split(".")[:2]:
        fix = f"Install the same version on both sides: pip install 'prefect=={theirs}'"
        yield Finding(WARN, f"The server is Prefect {theirs}, this machine has {ours}.", fix)
    if read_setting("PREFECT_API_KEY") and not read_setting("PREFECT_API_AUTH_STRING"):
        yield Finding(OK, "An API key is set, so the server is not open to everyone.")
    elif client.send("GET", "/admin/version", headers={"Authorization": ""}).status_code == 200:
        yield Finding(
            WARN,
            "The server asks for no password: anyone with network access to it can run code on the workers.",
            "Start it with PREFECT_SERVER_API_AUTH_STRING=user:password, and set PREFECT_API_AUTH_STRING to "
            "the same for workers and users.",
        )
    else:
        yield Finding(OK, "The server asks for a password, and accepts ours.")


def check_clock(context: CheckContext) -> Iterator[Finding]:
    """Whether this machine's clock agrees with the server's. Waiting times depend on it."""
    client = context.client_or_none
    if client is None:
        return
    before = time.time()
    date = client.send("GET", "/health").headers.get("date")
    if not date:
        yield Finding(INFO, "The server does not send its time.")
        return
    offset = parsedate_to_datetime(date).timestamp() + 0.5 - (before + time.time()) / 2
    if abs(offset) > MOST_CLOCK_OFFSET_S:
        direction = "ahead of" if offset > 0 else "behind"
        fix = "Synchronise both clocks, for example with chrony or systemd-timesyncd."
        yield Finding(ERROR, f"The server's clock is {abs(offset):.0f} s {direction} this machine's.", fix)
    else:
        yield Finding(OK, "The server's clock and this machine's agree.")


def check_worker(context: CheckContext) -> Iterator[Finding]:
    """Whether a worker serves the pool, and how its policy and devices do."""
    status = read_status(context.pool)
    if status:
        yield from _check_status(status)
        return
    client = context.client_or_none
    if client is None:
        return
    try:
        online = client.list_workers(context.pool)
    except NotFound:
        return  # the check of the pool reports it
    if online:
        names = ", ".join(worker["name"] for worker in online)
        yield Finding(OK, f"Pool {context.pool!r} has workers on other machines, or starting: {names}.")
    else:
        fix = f"Start one: prefect worker start --pool {context.pool} (or gpu-flows up)"
        yield Finding(WARN, f"No worker serves pool {context.pool!r}, so no job starts.", fix)


def _check_status(status: Status) -> Iterator[Finding]:
    policy = status.policy
    yield Finding(
        OK,
        f"{status.worker} serves pool {status.pool!r} on this machine: policy {policy['name']}, "
        f"{len(status.devices)} devices, {len(status.running)} running, {status.waiting_count} waiting.",
    )
    if policy["error"]:
        yield Finding(ERROR, f"Its policy: {policy['error']}", "Correct it: gpu-flows policy set ...")
    if status.cluster_trouble:
        fix = "Correct the GPU Cluster block in the UI; the worker reads it again at once."
        yield Finding(ERROR, f"Its devices: {status.cluster_trouble}", fix)
    for device in status.devices:
        if not device["healthy"]:
            what = f"Device {device['id']} is out of use: {device['detail']}"
            yield Finding(WARN, what, "It is used again as soon as it is healthy.")


def check_blocks(context: CheckContext) -> Iterator[Finding]:
    """Whether the pool's blocks exist, and whether the scheduler block names a valid policy."""
    client = context.client_or_none
    if client is None:
        return
    kinds = {"scheduler": SCHEDULER_BLOCK, "cluster": CLUSTER_BLOCK, "warehouse": WAREHOUSE_BLOCK}
    for field, kind in kinds.items():
        try:
            name = client.find_block_name(context.pool, field)
        except NotFound:
            return  # the check of the pool reports it
        document = client.read_block(kind, name)
        if document is None:
            what = f"There is no {kind} block {name!r}; the pool uses the defaults."
            yield Finding(INFO, what, "Create it with `gpu-flows up`, or in the UI.")
        elif kind == SCHEDULER_BLOCK:
            yield _check_policy(name, document["data"])
        else:
            yield Finding(OK, f"The {kind} block {name!r} exists.")


def _check_policy(block: str, saved: dict[str, Any]) -> Finding:
    from gpu_flows.schedulers.policy import PolicyError, make_policy

    try:
        name, options = read_choice(saved)
    except ValueError as error:
        fix = "Choose one: gpu-flows policy set fifo"
        return Finding(ERROR, f"The {SCHEDULER_BLOCK} block {block!r} {error}.", fix)
    try:
        make_policy(name, options)
    except PolicyError as error:
        fix = "Correct it: gpu-flows policy set ..."
        return Finding(ERROR, f"The {SCHEDULER_BLOCK} block {block!r}: {error}", fix)
    return Finding(OK, f"The {SCHEDULER_BLOCK} block {block!r} names policy {name!r}.")


def check_pool(context: CheckContext) -> Iterator[Finding]:
    """Whether the pool exists, has our type, is not paused, and has this version's job template."""
    client = context.client_or_none
    if client is None:
        return
    try:
        pool = client.read_pool(context.pool)
    except NotFound as error:
        yield Finding(ERROR, error.what, error.fix)
        return
    if pool["type"] != "gpu":
        yield Finding(
            ERROR,
            f"Work pool {context.pool!r} is of type {pool['type']!r}, which does not schedule GPUs.",
            "Create another: prefect work-pool create NAME --type gpu",
        )
        return
    if pool["is_paused"]:
        fix = f"Resume it: prefect work-pool resume {context.pool}"
        yield Finding(WARN, f"Work pool {context.pool!r} is paused, so no job starts.", fix)
    template = template_fields(pool)
    try:
        lacking = [field for field in context.prefect["fields"] if field not in template]
    except CommandError:
        return  # the check of Prefect reports it
    if lacking:
        what = f"The job template of pool {context.pool!r} is older than this version; it lacks: "
        fix = f"prefect work-pool create {context.pool} --type gpu --overwrite"
        yield Finding(WARN, f"{what}{', '.join(lacking)}.", f"Renew it, which resets its defaults: {fix}")
    else:
        yield Finding(OK, f"Work pool {context.pool!r} is of type gpu, and its job template is up to date.")
