"""The flows: what they show in Prefect and how they fail."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from command_helpers import STUBBORN, has_ended, python
from prefect import flow, get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    LogFilter,
    LogFilterFlowRunId,
)
from prefect.logging.handlers import APILogHandler
from prefect.settings import PREFECT_API_URL
from prefect.states import Pending
from prefect.testing.utilities import prefect_test_harness

from gpu_flows.checkpoints import contract
from gpu_flows.flows.command import command
from gpu_flows.flows.train import train
from gpu_flows.runtimes.entry import INTENT_FILE
from gpu_flows.training.config import TrainConfig


def test_flows_import_without_torch_and_explain_its_absence() -> None:
    script = """
        import sys
        sys.modules["torch"] = None
        import gpu_flows.flows.command, gpu_flows.flows.train as flow
        assert "duckdb" not in sys.modules
        try:
            flow._require_torch()
        except RuntimeError as error:
            print(error)
    """
    done = subprocess.run(python(script), capture_output=True, text=True, check=True)
    assert "pip install 'gpu-flows[train]'" in done.stdout


def test_every_flow_parameter_has_a_description_and_one_type() -> None:
    for form in (command.parameters, train.parameters):
        for name, field in form.properties.items():
            assert field["description"].endswith("."), name
            assert "anyOf" not in field, name
    assert command.parameters.required == ["command"]
    assert command.parameters.properties["timeout_seconds"]["minimum"] == 0


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[str]:
    with prefect_test_harness(server_startup_timeout=120):
        yield str(PREFECT_API_URL.value())


def logs_of(run_id: UUID | None) -> list[str]:
    assert run_id is not None
    APILogHandler().flush()
    with get_client(sync_client=True) as client:
        found = client.request(
            "POST",
            "/logs/filter",
            json={"logs": LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run_id])).model_dump(mode="json")},
        )
        return [log["message"] for log in found.json()]


def artifacts_of(run_id: UUID | None) -> dict[str, Any]:
    assert run_id is not None
    with get_client(sync_client=True) as client:
        of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run_id]))
        return {str(found.key): found for found in client.read_artifacts(artifact_filter=of_run)}


@pytest.mark.slow
def test_train_reports_progress_and_result(prefect_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("GPU_FLOWS_GPUS", "2")
    # Long enough for the artifact to be created and then updated.
    state = train(TrainConfig(model="mlp", steps=25, epochs=100, steps_per_second=10), return_state=True)
    assert state.is_completed()
    result = state.result()
    assert (result["steps"], result["devices"], result["stopped_by"]) == (25, 2, "steps")

    artifacts = artifacts_of(state.state_details.flow_run_id)
    progress = artifacts["training-progress"]
    assert progress.data == 100
    assert re.fullmatch(r"epoch 1/100 loss [\d.]+ accuracy \d+%, [\d,]+ samples/s", progress.description)
    assert "| Work | 25 steps, 1,600 samples, epoch 1 |" in artifacts["training-result"].data
    messages = logs_of(state.state_details.flow_run_id)
    assert any("in 2 processes, one per device" in message for message in messages)
    assert any("stopped by steps" in message for message in messages)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_a_preempted_training_saves_and_resumes(devices: int, prefect_server: str, tmp_path: Path) -> None:
    """The run does not report itself crashed when it is preempted, and the next attempt continues it."""
    pytest.importorskip("torch")
    checkpoints = tmp_path / "checkpoints"
    (tmp_path / INTENT_FILE).write_text("reschedule")
    config = {"model": "mlp", "samples": 64, "batch_size": 16, "steps": 20, "epochs": 1000}

    def start(attempt: int) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "PREFECT_API_URL": prefect_server,
            "PREFECT__FLOW_RUN_ID": str(run.id),
            "PREFECT__FLOW_ENTRYPOINT": "gpu_flows.flows.train:train",
            "GPU_FLOWS_ATTEMPT_FOLDER": str(tmp_path),
            "GPU_FLOWS_ATTEMPT": f"{run.id}.{attempt}",
            "GPU_FLOWS_GPUS": str(devices),
            contract.DIRECTORY: str(checkpoints),
        }
        return subprocess.Popen([sys.executable, "-m", "gpu_flows.runtimes.entry"], env=environment)

    with get_client(sync_client=True) as client:
        # Saving at every step shows from outside that training has begun.
        parameters = {"config": {**config, "steps_per_second": 5, "checkpoint_seconds": 0}}
        run = client.create_flow_run(train, parameters=parameters)
        first = start(1)
        while not contract.read_journal(checkpoints):
            assert first.poll() is None
            time.sleep(0.05)
        first.send_signal(signal.SIGUSR1)
        assert first.wait() == 0
        left = contract.read_journal(checkpoints)[-1]
        assert left.event == "left"
        assert 0 < left.step < 20
        stopped = client.read_flow_run(run.id)
        assert stopped.state is not None
        assert stopped.state.is_running()  # the worker sets its next state
        client.set_flow_run_state(run.id, Pending(), force=True)

        assert start(2).wait() == 0
        ended = client.read_flow_run(run.id)
        assert ended.state is not None
        assert ended.state.is_completed()
    (restored,) = [entry for entry in contract.read_journal(checkpoints) if entry.event == "restored"]
    assert (restored.attempt, restored.step) == (2, left.step)
    assert "| Work | 20 steps, 320 samples, epoch 5 |" in artifacts_of(run.id)["training-result"].data


@pytest.mark.slow
def test_train_refuses_an_unknown_model(prefect_server: str) -> None:
    state = train({"model": "gpt"}, return_state=True)
    assert state.is_failed()
    assert "Choose one of: mlp, cnn" in str(state.message)


@pytest.mark.slow
def test_command_logs_to_its_run(prefect_server: str) -> None:
    state = command("echo $GREETING world", shell=True, environment={"GREETING": "hello"}, return_state=True)
    assert state.is_completed()
    assert state.result()["exit_code"] == 0
    assert logs_of(state.state_details.flow_run_id).count("hello world") == 1


@pytest.mark.slow
def test_command_fails_with_the_last_lines(prefect_server: str) -> None:
    state = command("echo bad news; exit 3", shell=True, return_state=True)
    assert state.is_failed()
    assert "exit code 3.\nIts last lines:\nbad news" in str(state.message)

    state = command("no-such-command-anywhere", return_state=True)
    assert state.is_failed()
    assert "Install it where this job runs" in str(state.message)


def run_entry(server: str, run_id: UUID, entrypoint: str) -> int:
    """Run a flow as a worker does, and return the exit code of its process."""
    environment = {
        **os.environ,
        "PREFECT_API_URL": server,
        "PREFECT__FLOW_RUN_ID": str(run_id),
        "PREFECT__FLOW_ENTRYPOINT": entrypoint,
    }
    return subprocess.run([sys.executable, "-m", "gpu_flows.runtimes.entry"], env=environment).returncode


@pytest.mark.slow
def test_the_process_of_a_failed_command_has_its_exit_code_and_logs_no_traceback(prefect_server: str) -> None:
    with get_client(sync_client=True) as client:
        codes, logs, states = [], [], []
        for line in ("echo bad news; exit 3", "kill -9 $$", "true"):
            run = client.create_flow_run(command, parameters={"command": line, "shell": True})
            codes.append(run_entry(prefect_server, run.id, "gpu_flows.flows.command:command"))
            states.append(client.read_flow_run(run.id).state_name)
            logs += logs_of(run.id)
    assert codes == [3, 137, 0]
    assert states == ["Failed", "Failed", "Completed"]
    assert any("exit code 3" in line for line in logs)
    assert not [line for line in logs if "Traceback" in line]


@pytest.mark.slow
def test_a_flow_that_raises_logs_one_traceback(prefect_server: str, tmp_path: Path) -> None:
    code = tmp_path / "broken.py"
    code.write_text("from prefect import flow\n@flow\ndef broken():\n    raise ValueError('bad news')\n")
    broken = flow(name="broken")(lambda: None)
    with get_client(sync_client=True) as client:
        run = client.create_flow_run(broken)
        run_entry(prefect_server, run.id, f"{code}:broken")
        assert client.read_flow_run(run.id).state_name == "Failed"
    assert len([line for line in logs_of(run.id) if "Traceback" in line]) == 1


@pytest.mark.slow
def test_sigterm_stops_all_processes_of_a_command_run(prefect_server: str, tmp_path: Path) -> None:
    stubborn = tmp_path / "stubborn.py"
    stubborn.write_text(textwrap.dedent(STUBBORN))
    job = subprocess.Popen(
        python(f"from gpu_flows.flows.command import command; command('{sys.executable} {stubborn}')"),
        env={**os.environ, "PREFECT_API_URL": prefect_server, "GPU_FLOWS_GRACE_SECONDS": "0.5"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    pids = []
    for line in job.stdout:
        if line.startswith("pid "):
            pids.append(int(line.split()[1]))
        if line == "ready\n":
            break
    job.terminate()
    assert job.wait() == -signal.SIGTERM
    assert len(pids) == 4
    assert all(has_ended(pid) for pid in pids)
    with get_client(sync_client=True) as client:
        assert "Crashed" in {run.state_name for run in client.read_flow_runs()}
