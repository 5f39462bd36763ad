"""`gpu-flows doctor`: every check finds its faults, with a fix for each."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from command_line.run import NO_SERVER_URL, gpu_flows
from command_line.server import FakeServer
from command_line.worker import device, write_status

from gpu_flows.cli.doctor import docker_checks, doctor, machine_checks, server_checks
from gpu_flows.cli.doctor.checks import Check, CheckContext, Finding
from gpu_flows.config.paths import default_warehouse
from gpu_flows.prefect_api.job_variables import GpuJobVariables

pytest_plugins = ["command_line.fixtures"]
pytestmark = pytest.mark.usefixtures("own_home")

FORM = {name: {} for name in GpuJobVariables.model_fields}


@pytest.fixture
def context() -> CheckContext:
    context = CheckContext("gpu")
    # The result of the Prefect probe, without the seconds that it takes.
    context.prefect = {"missing": [], "fields": list(FORM)}
    return context


@pytest.fixture
def healthy(fake: FakeServer) -> FakeServer:
    fake.answers["/admin/version"] = 200, importlib.metadata.version("prefect")
    fake.answers["/health"] = 200, True
    fake.answers["/work_pools/gpu"] = 200, make_pool(FORM)
    fake.answers["/work_pools/gpu/workers/filter"] = 200, [{"name": "far", "status": "ONLINE"}]
    return fake


def make_pool(form: dict[str, Any], **parts: Any) -> dict[str, Any]:
    template = {"base_job_template": {"variables": {"properties": form}}}
    return {"type": "gpu", "is_paused": False, **template, **parts}


def find_worst(check: Check, context: CheckContext) -> Finding:
    """The finding with the worst level."""
    order = ["ok", "info", "warn", "error"]
    return max(check(context), key=lambda finding: order.index(finding.level))


def scheduler_block(fake: FakeServer, **policy: Any) -> None:
    path = "/block_types/slug/gpu-scheduler/block_documents/name/default"
    fake.answers[path] = 200, {"id": "1", "data": {"policy": policy}}


# The server


def test_server_does_not_answer(context: CheckContext) -> None:
    found = find_worst(server_checks.check_server, context)
    assert (found.level, "prefect server start" in found.fix) == ("error", True)
    assert NO_SERVER_URL in found.what
    for check in (
        server_checks.check_clock,
        server_checks.check_pool,
        server_checks.check_worker,
        server_checks.check_blocks,
    ):
        assert list(check(context)) == [], "reported by the check of the server only"


def test_server_without_a_password_is_a_warning(healthy: FakeServer, context: CheckContext) -> None:
    found = find_worst(server_checks.check_server, context)
    assert found.level == "warn"
    assert "PREFECT_SERVER_API_AUTH_STRING" in found.fix


def test_server_with_a_password(
    healthy: FakeServer, context: CheckContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def guarded(headers: Any) -> tuple[int, Any]:
        known = headers.get("authorization") == "Basic YTpi"
        return (200, importlib.metadata.version("prefect")) if known else (401, {})

    healthy.answers["/admin/version"] = guarded
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "a:b")
    assert find_worst(server_checks.check_server, context).level == "ok"

    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "a:wrong")
    found = find_worst(server_checks.check_server, CheckContext("gpu"))
    assert (found.level, "PREFECT_API_AUTH_STRING" in found.fix) == ("error", True)


def test_server_of_another_version(healthy: FakeServer, context: CheckContext) -> None:
    healthy.answers["/admin/version"] = 200, "3.1.0"
    assert any("3.1.0" in each.what and each.level == "warn" for each in server_checks.check_server(context))


@pytest.mark.parametrize(("off", "level"), [(0, "ok"), (2, "ok"), (3600, "error"), (-3600, "error")])
def test_clock_of_the_server(off: int, level: str, healthy: FakeServer, context: CheckContext) -> None:
    healthy.clock_off_s = off
    found = find_worst(server_checks.check_clock, context)
    assert found.level == level
    assert level == "ok" or ("ahead of" if off > 0 else "behind") in found.what


# The pool


def test_pool_is_missing(healthy: FakeServer, context: CheckContext) -> None:
    del healthy.answers["/work_pools/gpu"]
    found = find_worst(server_checks.check_pool, context)
    assert (found.level, "prefect work-pool create gpu --type gpu" in found.fix) == ("error", True)


@pytest.mark.parametrize(
    ("pool", "level", "expected"),
    [
        (make_pool(FORM), "ok", "up to date"),
        (make_pool(FORM, type="process"), "error", "'process'"),
        (make_pool(FORM, is_paused=True), "warn", "paused"),
        (make_pool({name: {} for name in FORM if name != "gpu_models"}), "warn", "lacks: gpu_models"),
    ],
)
def test_state_of_the_pool(
    pool: dict[str, Any], level: str, expected: str, healthy: FakeServer, context: CheckContext
) -> None:
    healthy.answers["/work_pools/gpu"] = 200, pool
    found = find_worst(server_checks.check_pool, context)
    assert found.level == level
    assert expected in found.what


def test_prefect_probe_returns_fields_and_missing_names() -> None:
    context = CheckContext("gpu")
    try:
        assert context.prefect == {"missing": [], "fields": list(FORM)}
        assert find_worst(machine_checks.check_private_names, context).level == "ok"
    finally:
        context.close()


def test_prefect_lacks_a_private_name(context: CheckContext) -> None:
    context.prefect = {"missing": ["BaseWorker._logger: the worker logs elsewhere"], "fields": []}
    found = find_worst(machine_checks.check_private_names, context)
    assert (found.level, "BaseWorker._logger" in found.what) == ("warn", True)


# The worker


def test_pool_without_a_worker(healthy: FakeServer, context: CheckContext) -> None:
    healthy.answers["/work_pools/gpu/workers/filter"] = 200, [{"name": "dead", "status": "OFFLINE"}]
    found = find_worst(server_checks.check_worker, context)
    assert (found.level, "prefect worker start --pool gpu" in found.fix) == ("warn", True)


def test_pool_with_a_worker_on_another_machine(healthy: FakeServer, context: CheckContext) -> None:
    found = find_worst(server_checks.check_worker, context)
    assert (found.level, "far" in found.what) == ("ok", True)


def test_local_worker_with_a_refused_policy_and_a_sick_device(context: CheckContext) -> None:
    policy = {"name": "fifo", "options": {}, "serving": "fifo", "error": "There is no policy 'lifo'."}
    write_status(policy=policy, devices=[device(), device(id="GPU-b", healthy=False, detail="Xid 79")])
    found = list(server_checks.check_worker(context))
    assert [each.level for each in found] == ["ok", "error", "warn"]
    assert "2 devices" in found[0].what
    assert "'lifo'" in found[1].what
    assert "Xid 79" in found[2].what


# The blocks


@pytest.mark.parametrize(
    ("policy", "level", "expected"),
    [
        ({"name": "fifo", "skip": True}, "ok", "'fifo'"),
        ({"name": "lifo"}, "error", "There is no policy 'lifo'"),
        ({"name": "fifo", "skip": "perhaps"}, "error", "skip"),
        ({}, "error", "names no policy"),
    ],
)
def test_scheduler_block(
    policy: dict[str, Any], level: str, expected: str, healthy: FakeServer, context: CheckContext
) -> None:
    scheduler_block(healthy, **policy)
    found = next(iter(server_checks.check_blocks(context)))
    assert found.level == level
    assert expected in found.what


def test_missing_blocks_are_reported(healthy: FakeServer, context: CheckContext) -> None:
    assert [finding.level for finding in server_checks.check_blocks(context)] == ["info"] * 3


# This machine


def test_packages_fit(context: CheckContext) -> None:
    [found] = machine_checks.check_packages(context)
    assert found.level == "ok"


def test_wrong_packages_are_errors_with_their_effect(
    context: CheckContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        installed = {"fastapi": "0.155.0", "sqlalchemy": "2.1.8"}
        if name == "docker":
            raise importlib.metadata.PackageNotFoundError(name)
        return installed.get(name) or importlib.metadata.version(name)

    monkeypatch.setattr(machine_checks, "version", version)
    found = {each.what.split()[0]: each for each in machine_checks.check_packages(context)}
    assert set(found) == {"fastapi", "sqlalchemy", "docker"}
    assert {each.level for each in found.values()} == {"error"}
    assert "does not start" in found["fastapi"].what
    assert "schedules silently never fire" in found["sqlalchemy"].what
    assert found["fastapi"].fix == "pip install 'fastapi<0.151'"


@pytest.mark.parametrize(("free_gb", "level"), [(50, "ok"), (1, "warn"), (0.01, "error")])
def test_free_space_on_the_disk(
    free_gb: float, level: str, context: CheckContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(0, 0, int(free_gb * machine_checks.GB)))
    assert find_worst(machine_checks.check_disk, context).level == level


def test_clock_of_the_disk(context: CheckContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks.time, "time", lambda: 0.0)
    found = find_worst(machine_checks.check_disk, context)
    assert (found.level, "clock" in found.fix) == ("warn", True)


def test_missing_gpu_and_docker_are_not_errors(
    context: CheckContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    assert find_worst(machine_checks.check_gpus, context).level in ("info", "ok")
    assert find_worst(docker_checks.check_docker, context).level == "info"


def test_findings_are_counted_in_good_english() -> None:
    levels = ["error", "warn", "warn", "ok"]
    assert [
        doctor._count(levels, *each) for each in (("error", "error"), ("warn", "warning"), ("x", "x"))
    ] == [
        "1 error",
        "2 warnings",
        "0 xs",
    ]


# The warehouse


def make_warehouse(version: int = 1) -> Path:
    path = default_warehouse()
    path.parent.mkdir(parents=True)
    with duckdb.connect(str(path)) as made:
        made.execute(f"create table migrations as select {version} as version")
    return path


def test_warehouse_does_not_exist_yet(context: CheckContext) -> None:
    assert find_worst(machine_checks.check_warehouse, context).level == "info"


def test_warehouse_opens(context: CheckContext) -> None:
    make_warehouse()
    assert find_worst(machine_checks.check_warehouse, context).level == "ok"


def test_warehouse_of_a_newer_version(context: CheckContext) -> None:
    make_warehouse(version=99)
    found = find_worst(machine_checks.check_warehouse, context)
    assert (found.level, "schema 99" in found.what) == ("error", True)


def test_warehouse_is_damaged(context: CheckContext) -> None:
    make_warehouse().write_bytes(b"no database" * 1000)
    found = find_worst(machine_checks.check_warehouse, context)
    assert (found.level, "does not open" in found.what) == ("error", True)


def test_warehouse_is_not_writable(context: CheckContext, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_warehouse()
    access = os.access  # replaced, because root may write whatever the permissions are
    monkeypatch.setattr(os, "access", lambda place, how: Path(place) != path and access(place, how))
    found = find_worst(machine_checks.check_warehouse, context)
    assert (found.level, "not writable" in found.what) == ("error", True)


def test_facts_do_not_reach_the_warehouse(context: CheckContext) -> None:
    make_warehouse()
    write_status(recorder_trouble="the disk is full")
    found = find_worst(machine_checks.check_warehouse, context)
    assert (found.level, "the disk is full" in found.what) == ("error", True)


def test_bad_cluster_block_is_no_fault_of_the_warehouse(context: CheckContext) -> None:
    make_warehouse()
    write_status(cluster_trouble="The devices stay as they are: gpu-cluster block 'default' is invalid.")
    assert find_worst(machine_checks.check_warehouse, context).level == "ok"
    found = find_worst(server_checks.check_worker, context)
    assert (found.level, "gpu-cluster block" in found.what) == ("error", True)
    assert "Correct the GPU Cluster block" in found.fix


# The command


def test_exit_code_is_1_if_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*findings: Finding) -> dict[str, Check]:
        return {"one": lambda context: iter(findings)}

    monkeypatch.setattr(doctor, "CHECKS", check(Finding("ok", "fine"), Finding("warn", "hm\x1b", "do this")))
    result = gpu_flows("doctor")
    assert result.code == 0
    assert "warn   one        hm\\x1b" in result.out
    assert "do this" in result.out
    monkeypatch.setattr(doctor, "CHECKS", check(Finding("error", "bad")))
    result = gpu_flows("doctor", "--json")
    assert result.code == 1
    assert result.json == {
        "ok": False,
        "findings": [{"check": "one", "level": "error", "what": "bad", "fix": ""}],
    }


def test_failing_check_is_reported_and_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(context: CheckContext) -> Iterator[Finding]:
        raise RuntimeError("oops")
        yield

    checks: dict[str, Check] = {"broken": broken, "next": lambda context: iter([Finding("ok", "fine")])}
    monkeypatch.setattr(doctor, "CHECKS", checks)
    result = gpu_flows("doctor")
    assert result.code == 1
    assert "RuntimeError: oops" in result.out
    assert "fine" in result.out
