"""The doctor's checks of this machine: packages, files, devices."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement

from gpu_flows.analytics.query_runner import QueryError, run_query
from gpu_flows.analytics.sql_files import migrations
from gpu_flows.cli.checkup import ERROR, INFO, OK, WARN, Finding, Surroundings
from gpu_flows.cli.problem import Problem
from gpu_flows.cli.sql import warehouse_of
from gpu_flows.config.paths import home
from gpu_flows.worker.status import read_status

GB = 1 << 30
LITTLE_SPACE, NO_SPACE = 2 * GB, GB // 5
CLOCKS_APART_S = 2.0
CONSEQUENCES = {
    "fastapi": "the Prefect server does not start",
    "sqlalchemy": "cron schedules silently never fire",
}


def packages(around: Surroundings) -> Iterator[Finding]:
    """Whether what is installed is what our own package asks for."""
    try:
        asked = [Requirement(text) for text in requires("gpu-flows") or []]
    except PackageNotFoundError:
        fix = "Install it: pip install -e . in the checkout"
        yield Finding(WARN, "gpu-flows itself is not installed, so nobody checked its dependencies.", fix)
        return
    core = [each for each in asked if each.marker is None or each.marker.evaluate({"extra": ""})]
    wrong = [finding for finding in map(_misfit, core) if finding]
    yield from wrong
    if not wrong:
        yield Finding(OK, f"All {len(core)} packages that gpu-flows needs are there, in versions that fit.")


def _misfit(asked: Requirement) -> Finding | None:
    fix = f"pip install '{asked.name}{asked.specifier}'"
    try:
        have = version(asked.name)
    except PackageNotFoundError:
        return Finding(ERROR, f"{asked.name} is not installed.", fix)
    if asked.specifier.contains(have, prereleases=True):
        return None
    effect = CONSEQUENCES.get(asked.name)
    what = f"{asked.name} {have} is installed, but {asked.specifier} is needed"
    return Finding(ERROR, f"{what}: with this one {effect}." if effect else f"{what}.", fix)


def private_names(around: Surroundings) -> Iterator[Finding]:
    """Whether Prefect still has the inner names that we lean on and that it does not promise."""
    try:
        missing = around.prefect["missing"]
    except Problem as problem:
        what = f"gpu-flows cannot be loaded together with Prefect: {problem}"
        yield Finding(ERROR, what, "Reinstall both: pip install --force-reinstall gpu-flows")
        return
    for line in missing:
        yield Finding(WARN, f"This Prefect lacks {line}.", "Nothing to do; an older Prefect has it.")
    if not missing:
        yield Finding(OK, "Everything that gpu-flows leans on inside Prefect is there.")


def warehouse(around: Surroundings) -> Iterator[Finding]:
    """Whether facts can be written, read, and are being written."""
    database = warehouse_of(around.pool)
    status = read_status(around.pool)
    if status and status.trouble:
        yield Finding(
            ERROR,
            f"The worker is in trouble: {status.trouble}",
            "Facts that do not reach the warehouse wait in the spool; none is lost.",
        )
    if not database.exists():
        place = _existing(database.parent)
        if os.access(place, os.W_OK):
            yield Finding(INFO, f"There is no warehouse at {database} yet; a worker makes it when it starts.")
        else:
            fix = "Make the folder writable, or set another path in the GPU Warehouse block."
            yield Finding(ERROR, f"The warehouse cannot be made: {place} is not writable.", fix)
        return
    if not os.access(database, os.W_OK) or not os.access(database.parent, os.W_OK):
        fix = f"Give the worker's user the right to write there: chmod u+w {database}"
        yield Finding(ERROR, f"The warehouse {database} is not writable.", fix)
    try:
        found = run_query(database, "select max(version) from migrations", timeout_s=10).rows
    except QueryError as error:
        fix = "If it is damaged, move it aside: the worker begins a new one."
        yield Finding(ERROR, f"The warehouse {database} does not open: {error}", fix)
        return
    schema, newest = int(found[0][0] or 0), migrations()[-1].version
    if schema > newest:
        what = f"The warehouse has schema {schema}, and this gpu-flows knows only {newest}."
        yield Finding(ERROR, what, "Install the newer gpu-flows that wrote it.")
    else:
        size = database.stat().st_size / (1 << 20)
        yield Finding(OK, f"The warehouse {database} opens: schema {schema}, {size:,.1f} MB.")


def disk(around: Surroundings) -> Iterator[Finding]:
    """Whether there is room for facts and output, and whether the disk's clock is this machine's."""
    place = _existing(home())
    free = shutil.disk_usage(place).free
    text = f"{free / GB:,.1f} GB are free at {place}"
    if free < LITTLE_SPACE:
        level = ERROR if free < NO_SPACE else WARN
        yield Finding(level, f"Only {text}.", "Make room, or move GPU_FLOWS_HOME to a larger disk.")
    else:
        yield Finding(OK, f"{text}.")
    if not os.access(place, os.W_OK):
        fix = "Make it writable, or set GPU_FLOWS_HOME to a folder that is."
        yield Finding(ERROR, f"{place} is not writable.", fix)
        return
    with tempfile.NamedTemporaryFile(dir=place) as file:
        apart = os.stat(file.name).st_mtime - time.time()
    if abs(apart) > CLOCKS_APART_S:
        fix = "Synchronise the file server's clock with this machine's."
        yield Finding(WARN, f"Files at {place} get times that are {apart:+.0f} s off.", fix)


def gpus(around: Surroundings) -> Iterator[Finding]:
    """Whether NVML finds GPUs. Without any, a declared cluster serves."""
    from gpu_flows.devices.base import DeviceError
    from gpu_flows.devices.nvml import NvmlDevices

    devices = NvmlDevices()
    try:
        found = [device for node in devices.nodes() for device in node.devices]
    except DeviceError as error:
        yield Finding(INFO, f"No real GPU here, so declared devices serve. {error}")
        return
    finally:
        devices.close()
    models = ", ".join(sorted({device.model for device in found}))
    yield Finding(OK, f"NVML finds {len(found)} devices: {models}.")


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    return next(each for each in (path, *path.absolute().parents) if each.exists())
