"""Checks of this machine: packages, the warehouse, the disk, GPUs."""

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
from gpu_flows.cli.doctor.checks import ERROR, INFO, OK, WARN, CheckContext, Finding
from gpu_flows.cli.errors import CommandError
from gpu_flows.cli.sql import find_warehouse
from gpu_flows.config.paths import home
from gpu_flows.worker.status import read_status

GB = 1 << 30
LITTLE_SPACE, NO_SPACE = 2 * GB, GB // 5
MOST_CLOCK_OFFSET_S = 2.0
CONSEQUENCES = {
    "fastapi": "the Prefect server does not start",
    "sqlalchemy": "cron schedules silently never fire",
}


def check_packages(context: CheckContext) -> Iterator[Finding]:
    """Whether the installed packages are the ones that gpu-flows requires."""
    try:
        requirements = [Requirement(text) for text in requires("gpu-flows") or []]
    except PackageNotFoundError:
        fix = "Install it: pip install -e . in the checkout"
        yield Finding(WARN, "gpu-flows itself is not installed, so its requirements are unchecked.", fix)
        return
    core = [
        requirement
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    ]
    wrong = [finding for finding in map(_check_requirement, core) if finding]
    yield from wrong
    if not wrong:
        yield Finding(OK, f"All {len(core)} packages that gpu-flows requires are installed and fit.")


def _check_requirement(requirement: Requirement) -> Finding | None:
    fix = f"pip install '{requirement.name}{requirement.specifier}'"
    try:
        installed = version(requirement.name)
    except PackageNotFoundError:
        return Finding(ERROR, f"{requirement.name} is not installed.", fix)
    if requirement.specifier.contains(installed, prereleases=True):
        return None
    effect = CONSEQUENCES.get(requirement.name)
    what = f"{requirement.name} {installed} is installed, but {requirement.specifier} is needed"
    return Finding(ERROR, f"{what}: with this version {effect}." if effect else f"{what}.", fix)


def check_private_names(context: CheckContext) -> Iterator[Finding]:
    """Whether the installed Prefect has the private names that gpu-flows uses."""
    try:
        missing = context.prefect["missing"]
    except CommandError as error:
        what = f"gpu-flows cannot be imported together with Prefect: {error}"
        yield Finding(ERROR, what, "Reinstall both: pip install --force-reinstall gpu-flows")
        return
    for line in missing:
        yield Finding(WARN, f"This Prefect lacks {line}.", "Nothing to do; an older Prefect has it.")
    if not missing:
        yield Finding(OK, "Prefect has every private name that gpu-flows uses.")


def check_warehouse(context: CheckContext) -> Iterator[Finding]:
    """Whether the warehouse can be opened and written, and whether facts reach it."""
    database = find_warehouse(context.pool)
    status = read_status(context.pool)
    if status and status.recorder_trouble:
        yield Finding(
            ERROR,
            f"The worker cannot write to it: {status.recorder_trouble}",
            "Facts that do not reach the warehouse wait in the spool; none is lost.",
        )
    if not database.exists():
        folder = _find_existing(database.parent)
        if os.access(folder, os.W_OK):
            yield Finding(INFO, f"There is no warehouse at {database} yet; the worker creates it.")
        else:
            fix = "Make the folder writable, or set another path in the GPU Warehouse block."
            yield Finding(ERROR, f"The warehouse cannot be created: {folder} is not writable.", fix)
        return
    if not os.access(database, os.W_OK) or not os.access(database.parent, os.W_OK):
        fix = f"Give the worker's user the right to write there: chmod u+w {database}"
        yield Finding(ERROR, f"The warehouse {database} is not writable.", fix)
    yield _check_schema(database)


def _check_schema(database: Path) -> Finding:
    try:
        found = run_query(database, "select max(version) from migrations", timeout_s=10).rows
    except QueryError as error:
        fix = "If it is damaged, move it aside: the worker creates a new one."
        return Finding(ERROR, f"The warehouse {database} does not open: {error}", fix)
    schema, newest = int(found[0][0] or 0), migrations()[-1].version
    if schema > newest:
        what = f"The warehouse has schema {schema}, and this gpu-flows knows only {newest}."
        return Finding(ERROR, what, "Install the newer gpu-flows that wrote it.")
    size = database.stat().st_size / (1 << 20)
    return Finding(OK, f"The warehouse {database} opens: schema {schema}, {size:,.1f} MB.")


def check_disk(context: CheckContext) -> Iterator[Finding]:
    """Whether the disk has room for facts and output, and whether its clock is this machine's."""
    folder = _find_existing(home())
    free = shutil.disk_usage(folder).free
    text = f"{free / GB:,.1f} GB are free at {folder}"
    if free < LITTLE_SPACE:
        level = ERROR if free < NO_SPACE else WARN
        yield Finding(level, f"Only {text}.", "Free some space, or move GPU_FLOWS_HOME to a larger disk.")
    else:
        yield Finding(OK, f"{text}.")
    if not os.access(folder, os.W_OK):
        fix = "Make it writable, or set GPU_FLOWS_HOME to a folder that is."
        yield Finding(ERROR, f"{folder} is not writable.", fix)
        return
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        offset = os.stat(file.name).st_mtime - time.time()
    if abs(offset) > MOST_CLOCK_OFFSET_S:
        fix = "Synchronise the file server's clock with this machine's."
        yield Finding(WARN, f"Files at {folder} get times that are {offset:+.0f} s off.", fix)


def check_gpus(context: CheckContext) -> Iterator[Finding]:
    """Whether NVML finds GPUs. Without any, the pool uses a declared cluster."""
    from gpu_flows.devices.base import DeviceError
    from gpu_flows.devices.nvml import NvmlDevices

    nvml = NvmlDevices()
    try:
        devices = [device for node in nvml.nodes() for device in node.devices]
    except DeviceError as error:
        yield Finding(INFO, f"NVML finds no GPU, so devices are simulated. If there are GPUs: {error}")
        return
    finally:
        nvml.close()
    models = ", ".join(sorted({device.model for device in devices}))
    yield Finding(OK, f"NVML finds {len(devices)} devices: {models}.")


def _find_existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())
