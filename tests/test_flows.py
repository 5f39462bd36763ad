"""The flows: what they show, how they fail, and that nothing of a command outlives its run."""

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

import psutil
import pytest
from prefect import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    LogFilter,
    LogFilterFlowRunId,
)
from prefect.exceptions import TerminationSignal
from prefect.logging.handlers import APILogHandler
from prefect.settings import PREFECT_API_URL
from prefect.states import Pending
from prefect.testing.utilities import prefect_test_harness

from gpu_flows.checkpoints import contract
from gpu_flows.flows.command import (
    Command,
    CommandError,
    Outcome,
    command,
    run_command,
    split_command,
)
from gpu_flows.flows.output import Output
from gpu_flows.flows.train import train
from gpu_flows.runtimes.entry import INTENT_FILE
from gpu_flows.training.config import TrainConfig


def python(script: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(script)]


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# ---- a command and its output


def test_both_streams_arrive_line_by_line_and_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    script = "import sys; print('one'); print('two', file=sys.stderr); print('three'); print('four', end='')"
    outcome = run_command(Command(python(script)), lines.append)
    assert lines == ["one", "two", "three", "four"]
    assert (outcome.exit_code, outcome.lines) == (0, 4)
    assert capfd.readouterr().out == "one\ntwo\nthree\nfour"


def test_a_command_gets_its_directory_and_environment(tmp_path: Path) -> None:
    lines: list[str] = []
    wanted = Command(["/bin/sh", "-c", "pwd; echo $COLOUR; echo $HOME"], str(tmp_path), {"COLOUR": "green"})
    run_command(wanted, lines.append)
    assert lines == [str(tmp_path.resolve()), "green", os.environ["HOME"]]


def test_a_flood_of_lines_is_cut_down_and_accounted_for(capfd: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    outcome = run_command(Command(python("for i in range(100_000): print('line', i)")), lines.append)
    assert outcome.lines == 100_000
    left_out = [
        int(m[1].replace(",", "")) for line in lines if (m := re.match(r"\[([\d,]+) lines left out", line))
    ]
    shown = [line for line in lines if line.startswith("line ")]
    assert len(shown) + sum(left_out) == 100_000
    assert len(lines) < 5_000
    assert lines[0] == "line 0"
    assert lines[-10:] == [f"line {number}" for number in range(99_990, 100_000)]
    assert capfd.readouterr().out.count("\n") == 100_000


def test_output_is_made_fit_to_show() -> None:
    lines: list[str] = []
    output = Output(lines.append)
    for chunk in (b"\x1b[31mred\x1b[0m\r", b"\nnul\x00 \xff\n\n", b"x" * 10_000, b"\nhal", b"f\n"):
        output.feed(chunk)
    output.close()
    assert lines == ["red", "nul \ufffd", "x" * 4_000 + " ...", "half"]


def test_a_progress_bar_shows_now_and_then_and_at_its_end() -> None:
    lines: list[str] = []
    now = 0.0
    output = Output(lines.append, clock=lambda: now)
    for percent in range(100):
        now = percent / 10
        output.feed(f"\r{percent}%".encode())
    output.feed(b"\rdone\n")
    output.close()
    assert lines == ["0%", "50%", "done"]


def test_lines_come_back_after_a_flood() -> None:
    lines: list[str] = []
    now = 0.0
    output = Output(lines.append, clock=lambda: now)
    output.feed(b"flood\n" * 800)
    now = 60.0
    output.feed(b"calm\n" * 3)
    output.close()
    assert lines[:500] == ["flood"] * 500
    assert lines[500:] == [
        "[300 lines left out here; the job's log file has them all]",
        "calm",
        "calm",
        "calm",
    ]


def test_a_command_survives_a_full_disk_under_its_log() -> None:
    lines: list[str] = []
    stdout, full = os.dup(1), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, 1)
    try:
        assert run_command(Command(["echo", "hello"]), lines.append).exit_code == 0
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
        os.close(full)
    assert lines == ["hello"]


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome(3, 1.0, 2, ("a", "b")), "exit code 3.\nIts last lines:\na\nb"),
        (Outcome(127, 1.0, 0), "exit code 127, mostly a sign of: not found."),
        (Outcome(-9, 1.0, 0), "killed for want of memory"),
        (Outcome(-11, 1.0, 0), "ended by signal 11 (Segmentation fault)"),
        (Outcome(-9, 7.0, 0, timed_out=True), "stopped: its timeout was over after 7 s."),
    ],
)
def test_a_bad_end_is_explained(outcome: Outcome, words: str) -> None:
    assert words in outcome.explain()


def test_what_cannot_be_started_says_why(tmp_path: Path) -> None:
    plain_file = tmp_path / "script.py"
    plain_file.write_text("print(1)")
    for wanted, words in [
        (Command(["no-such-command-anywhere"]), "'no-such-command-anywhere' cannot be run here.*Install it"),
        (Command([str(plain_file)]), "Permission denied. Make it executable"),
        (
            Command(["true"], working_directory=str(tmp_path / "absent")),
            "working directory .*absent does not exist",
        ),
        (Command(["echo", "a\0b"]), "embedded null byte. Check the command line"),
    ]:
        with pytest.raises(CommandError, match=words):
            run_command(wanted, print)
    with pytest.raises(CommandError, match="is empty"):
        split_command("  ")
    with pytest.raises(CommandError, match="Check its quotes: echo 'a"):
        split_command("echo 'a")


def test_command_lines_are_split_like_a_shell_does() -> None:
    assert split_command("python -c 'print(1)' --x=\"a b\"") == ["python", "-c", "print(1)", "--x=a b"]
    assert split_command("echo $HOME | wc", shell=True) == ["/bin/sh", "-c", "echo $HOME | wc"]


# ---- nothing stays behind

STUBBORN = """
    import os, signal, subprocess, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which all the others inherit
    sleep = ["sleep", "1000"]
    print("pid", subprocess.Popen(sleep).pid)
    print("pid", subprocess.Popen(sleep, start_new_session=True).pid)
    subprocess.run(["/bin/sh", "-c", "setsid sleep 1000 & echo pid $!"])  # a daemon
    print("pid", os.getpid())
    print("ready")
    time.sleep(1000)
"""


@pytest.fixture
def interrupt() -> Iterator[signal.Signals]:
    """A signal that ends a run the way Prefect's SIGTERM does, without ending pytest."""

    def terminate(number: int, frame: object) -> None:
        raise TerminationSignal(signal=signal.SIGTERM)

    before = signal.signal(signal.SIGUSR1, terminate)
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)


def test_an_interrupted_command_takes_its_whole_family_along(interrupt: signal.Signals) -> None:
    lines: list[str] = []

    def emit(line: str) -> None:
        lines.append(line)
        if line == "ready":
            os.kill(os.getpid(), interrupt)
        if line.startswith("[stopping"):
            os.kill(os.getpid(), interrupt)  # a second signal must not cut the clean-up short

    with pytest.raises(TerminationSignal):
        run_command(Command(python(STUBBORN), grace_seconds=0.3), emit)
    pids = [int(line.split()[1]) for line in lines if line.startswith("pid ")]
    assert len(pids) == 4
    assert all(gone(pid) for pid in pids)


def test_a_command_has_its_grace_to_say_and_save_everything(
    interrupt: signal.Signals, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    script = f"""
        import signal, sys, time
        def save(*_):
            for number in range(20_000):  # more than a pipe holds
                print("saving", number)
            open({str(checkpoint)!r}, "w").write("saved")
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("ready", flush=True)
        time.sleep(1000)
    """
    with pytest.raises(TerminationSignal):
        run_command(
            Command(python(script), grace_seconds=60),
            lambda line: os.kill(os.getpid(), interrupt) if line == "ready" else None,
        )
    assert checkpoint.read_text() == "saved"


@pytest.mark.parametrize("code", [0, 85, 1])
def test_a_command_that_is_asked_to_make_room(
    interrupt: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """One that ends with 0 has finished; the others go on later, and 85 says that all was saved."""
    monkeypatch.setattr("gpu_flows.flows.command.announced_intent", lambda: "reschedule")
    monkeypatch.setenv("GPU_FLOWS_CHECKPOINT_DIR", str(tmp_path))
    monkeypatch.setenv("GPU_FLOWS_ATTEMPT", "job.3")
    line = f"trap 'exit {code}' TERM; echo ready; sleep 1000 & wait $!"

    def run() -> Outcome:
        return run_command(
            Command(["/bin/sh", "-c", line], grace_seconds=60),
            lambda said: os.kill(os.getpid(), interrupt) if said == "ready" else None,
        )

    if code == 0:
        assert run().exit_code == 0
    else:
        with pytest.raises(TerminationSignal):
            run()
    told = [(entry.event, entry.attempt) for entry in contract.read_journal(tmp_path)]
    assert told == ([("left", 3)] if code == 85 else [])


def test_what_a_finished_command_left_behind_is_stopped() -> None:
    lines: list[str] = []
    outcome = run_command(Command(["/bin/sh", "-c", "sleep 1000 & echo $!"], grace_seconds=5), lines.append)
    assert outcome.exit_code == 0
    assert gone(int(lines[0]))
    assert lines[1].startswith("[stopping 1 process(es) that the command left behind")


def test_a_timeout_stops_the_command() -> None:
    outcome = run_command(Command(["sleep", "1000"], timeout_seconds=0.2, grace_seconds=5), print)
    assert outcome.timed_out
    assert outcome.exit_code == -signal.SIGTERM


def test_a_failing_reader_harms_neither_the_command_nor_its_end() -> None:
    pids: list[int] = []

    def emit(line: str) -> None:
        pids.extend(int(word) for word in line.split() if not pids)
        raise OSError("nobody reads this")

    script = "sleep 1000 & echo $!; exit 4"
    outcome = run_command(Command(["/bin/sh", "-c", script], grace_seconds=5), emit)
    assert outcome.exit_code == 4
    assert gone(pids[0])


# ---- the flows


def test_importing_the_flows_costs_no_torch_and_its_absence_is_explained() -> None:
    script = """
        import sys
        sys.modules["torch"] = None
        import gpu_flows.flows.command, gpu_flows.flows.train as flow
        assert "duckdb" not in sys.modules
        try:
            flow._need_torch()
        except RuntimeError as error:
            print(error)
    """
    done = subprocess.run(python(script), capture_output=True, text=True, check=True)
    assert "pip install 'gpu-flows[train]'" in done.stdout


def test_the_forms_have_descriptions_and_no_tabs() -> None:
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
    # Long enough for the card to be created and then updated.
    state = train(TrainConfig(model="mlp", steps=25, epochs=100, steps_per_second=10), return_state=True)
    assert state.is_completed()
    result = state.result()
    assert (result["steps"], result["devices"], result["stopped_by"]) == (25, 2, "steps")

    artifacts = artifacts_of(state.state_details.flow_run_id)
    card = artifacts["training-progress"]
    assert card.data == 100
    assert re.fullmatch(r"epoch 1/100 loss [\d.]+ accuracy \d+%, [\d,]+ samples/s", card.description)
    assert "| Work | 25 steps, 1,600 samples, epoch 1 |" in artifacts["training-result"].data
    messages = logs_of(state.state_details.flow_run_id)
    assert any("in 2 processes, one per device" in message for message in messages)
    assert any("stopped by steps" in message for message in messages)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_a_preempted_training_saves_leaves_and_goes_on(
    devices: int, prefect_server: str, tmp_path: Path
) -> None:
    """As a worker does it: asked to make room, the run is not reported crashed, and comes back as itself."""
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
        assert stopped.state.is_running()  # what it is next, the worker says
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


@pytest.mark.slow
def test_sigterm_ends_a_command_run_with_nothing_left(prefect_server: str, tmp_path: Path) -> None:
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
    assert all(gone(pid) for pid in pids)
    with get_client(sync_client=True) as client:
        assert "Crashed" in {run.state_name for run in client.read_flow_runs()}
