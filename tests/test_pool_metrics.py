"""A pool's numbers for Prometheus: what is in them, and that Prometheus can read them."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from analytics_history import History
from command_line.run import expect_error, gpu_flows
from command_line.worker import device, running_job, waiting_job, write_status
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpu_flows.cli import metrics
from gpu_flows.common.files import write_atomically

pytest_plugins = ["command_line.fixtures"]
pytestmark = pytest.mark.usefixtures("own_home")

HOSTILE = 'a"} 1\n# EOF\nevil{x="\\ \x1b'
Key = tuple[str, ...]


def read(text: str, parse: Any = parse_openmetrics) -> dict[str, dict[Key, float]]:
    """Return the values of each sample by those labels that are not the pool's name."""
    found: dict[str, dict[Key, float]] = {}
    for family in parse(text):
        for sample in family.samples:
            labels = tuple(value for name, value in sorted(sample.labels.items()) if name != "pool")
            assert labels not in found.setdefault(sample.name, {})
            found[sample.name][labels] = sample.value
    return found


def write_busy_pool(**more: Any) -> None:
    eta = {"start_p50": time.time() + 60, "start_p90": time.time() + 120}
    waiting = [
        waiting_job(waited=200.0, eta=eta),
        waiting_job(waited=90.0, reason="quota", eta=None),
        waiting_job(waited=10.0),
    ]
    devices = [
        device(jobs=["busy"], utilization=42.0, memory_used_mb=1024.0),
        device(id="SIM-node-1-1", index=1, healthy=False, utilization=None, jobs=[]),
        device(id="SIM-node-1-2", index=2, jobs=[]),
    ]
    write_status(**{"waiting": waiting, "running": [running_job()], "devices": devices, **more})


def test_the_numbers_of_a_pool() -> None:
    write_busy_pool()
    found = read(gpu_flows("metrics").out)
    assert found["gpu_flows_up"] == {(): 1}
    assert found["gpu_flows_worker_leads"] == {(): 1}
    assert found["gpu_flows_jobs_waiting"] == {("capacity",): 2, ("quota",): 1}
    assert found["gpu_flows_jobs_running"] == {(): 1}
    assert found["gpu_flows_longest_wait_seconds"] == {(): 200}
    assert found["gpu_flows_gpus_waited_for"] == {(): 6}
    assert found["gpu_flows_policy_info"] == {("fifo", "fifo"): 1}
    assert found["gpu_flows_policy_failed"] == {(): 0}
    assert found["gpu_flows_devices"] == {("free",): 1, ("in_use",): 1, ("out_of_use",): 1}
    first = ("SIM-node-1-0", "GTX 1080 Ti", "node-1")
    assert found["gpu_flows_device_utilization_ratio"][first] == pytest.approx(0.42)
    assert found["gpu_flows_device_memory_used_bytes"][first] == 2**30
    assert len(found["gpu_flows_device_utilization_ratio"]) == 2, "one does not report it"
    assert list(found["gpu_flows_device_healthy"].values()) == [1, 0, 1]
    predicted = found["gpu_flows_predicted_start_seconds"]
    assert predicted[("next", "0.5")] == pytest.approx(60, abs=2)
    assert predicted[("last", "0.9")] == pytest.approx(120, abs=2)


def test_jobs_beyond_those_that_are_listed_count_too() -> None:
    write_busy_pool(whole={"by_reason": {"quota": 10, "capacity": 5000}, "gpus": 9000})
    found = read(gpu_flows("metrics").out)
    assert found["gpu_flows_jobs_waiting"] == {("capacity",): 5000, ("quota",): 10}
    assert found["gpu_flows_gpus_waited_for"] == {(): 9000}


def test_jobs_that_have_ended_are_counted_with_their_waits(tmp_path: Path) -> None:
    history = History(tmp_path)
    for number, waited in enumerate((0, 5, 5, 100)):
        history.run(f"job-{number}", 0, waited, waited + 10, "d0")
    history.job("other", 0, pool="elsewhere")
    history.end("other", 5)
    history.query("select 1")  # all of it is in the file now
    (database,) = tmp_path.glob("*.duckdb")
    found = read(gpu_flows("metrics", "--pool", "pool", "--database", str(database)).out)
    assert found["gpu_flows_up"] == {(): 0}
    assert found["gpu_flows_jobs_ended_total"] == {("completed",): 4}
    buckets = found["gpu_flows_job_wait_seconds_bucket"]
    assert [buckets[(limit, "completed")] for limit in ("1.0", "10.0", "300.0", "+Inf")] == [1, 3, 4, 4]
    assert found["gpu_flows_job_wait_seconds_sum"] == {("completed",): 110}


def test_a_pool_that_nobody_serves_has_no_old_numbers() -> None:
    assert read(gpu_flows("metrics").out) == {"gpu_flows_up": {(): 0}}
    write_busy_pool(at=time.time() - 3600)
    found = read(gpu_flows("metrics").out)
    assert set(found) == {"gpu_flows_up", "gpu_flows_worker_leads", "gpu_flows_status_age_seconds"}
    assert found["gpu_flows_status_age_seconds"][()] >= 3600
    write_busy_pool(leads=False)
    standing_by = read(gpu_flows("metrics").out)
    assert standing_by["gpu_flows_worker_leads"] == standing_by["gpu_flows_up"] == {(): 0}


def test_hostile_names_stay_inside_their_labels() -> None:
    write_busy_pool(
        waiting=[waiting_job(HOSTILE, user=HOSTILE, waited=1.0, reason=HOSTILE) for _ in range(500)],
        devices=[device(model=HOSTILE, node=HOSTILE, jobs=[HOSTILE])],
        policy={"name": HOSTILE, "serving": HOSTILE, "options": {}, "error": ""},
    )
    found = read(gpu_flows("metrics").out)
    assert "evil" not in found
    assert found["gpu_flows_jobs_waiting"] == {(HOSTILE,): 500}, "one value for all of these jobs"
    assert found["gpu_flows_policy_info"] == {(HOSTILE, HOSTILE): 1}


def test_a_file_can_be_read_by_node_exporter(tmp_path: Path) -> None:
    """It reads only the older text format."""
    write_busy_pool()
    file = tmp_path / "gpu.prom"
    assert gpu_flows("metrics", "--file", str(file)).code == 0
    assert read(file.read_text(), parse_text)["gpu_flows_jobs_running"] == {(): 1}
    assert {kind.split()[3] for kind in file.read_text().splitlines() if kind.startswith("# TYPE")} == {
        "gauge"
    }
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("gpu")] == ["gpu.prom"]


def test_an_address_is_served_until_ctrl_c() -> None:
    write_busy_pool()
    command = [sys.executable, "-m", "gpu_flows.cli", "metrics", "--serve", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        url = process.stderr.readline().split()[1]
        for accept, parse in (("application/openmetrics-text", parse_openmetrics), ("*/*", parse_text)):
            request = urllib.request.Request(url, headers={"Accept": accept})
            with urllib.request.urlopen(request, timeout=30) as answer:
                text = answer.read().decode()
            assert ("# EOF" in text) == (parse is parse_openmetrics)
            assert read(text, parse)["gpu_flows_jobs_running"] == {(): 1}
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url.removesuffix("metrics"), timeout=30)
        rebound = urllib.request.Request(url, headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(rebound, timeout=30)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_idle_clients_are_few_and_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    write_busy_pool()
    monkeypatch.setattr(metrics, "REQUEST_S", 0.5)
    monkeypatch.setattr(metrics, "AT_ONCE", 2)
    server = metrics.make_server(metrics.Source("gpu", Path("none.duckdb")), "127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with server, contextlib.ExitStack() as stack:
        address = ("127.0.0.1", server.server_port)
        idle = [stack.enter_context(socket.create_connection(address, timeout=30)) for _ in range(3)]
        assert [each.recv(1) for each in idle] == [b""] * 3, "it closes all of them"
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=30) as answer:
            assert answer.status == 200
        server.shutdown()


def test_the_numbers_are_those_of_the_pools_own_warehouse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(tmp_path)
    history.run("job", 0, 5, 15, "d0")
    history.query("select 1")
    (database,) = tmp_path.glob("*.duckdb")
    monkeypatch.setattr(metrics, "find_warehouse", {"pool": database}.get)
    found = read(gpu_flows("metrics", "--pool", "pool").out)
    assert found["gpu_flows_jobs_ended_total"] == {("completed",): 1}


def test_a_file_is_written_again_when_that_is_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full once, and then the user presses Ctrl-C."""
    file, happens = (
        tmp_path / "gpu.prom",
        iter([None, OSError(28, "No space left"), None, KeyboardInterrupt()]),
    )

    def write(path: Path, text: str) -> None:
        if trouble := next(happens):
            raise trouble
        write_atomically(path, text)

    monkeypatch.setattr(metrics, "write_atomically", write)
    monkeypatch.setattr(metrics, "REFRESH_S", 0.0)
    done = gpu_flows("metrics", "--file", str(file), "--watch")
    assert done.code == 0
    assert "No space left. It is tried again" in done.err
    assert next(happens, "none left") == "none left"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--watch"], "--file"),
        (["--serve", "9100"], "HOST:PORT"),
        (["--serve", "localhost:99999"], "HOST:PORT"),
        (["--serve", "127.0.0.1:1", "--file", "x"], "choose one"),
    ],
)
def test_wrong_options(words: list[str], expected: str) -> None:
    assert expected in expect_error(gpu_flows("metrics", *words))


def test_what_cannot_be_published_is_explained(tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "gpu.prom"
    assert "cannot be written" in expect_error(gpu_flows("metrics", "--file", str(missing)), code=1)
    assert "cannot be served" in expect_error(gpu_flows("metrics", "--serve", "192.0.2.1:9"), code=1)
