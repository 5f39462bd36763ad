"""A training in two processes learns what one process learns, and can resume as either."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs gpu-flows[train]")

from gpu_flows.checkpoints import contract  # noqa: E402
from gpu_flows.flows import training_processes  # noqa: E402
from gpu_flows.flows.command_runner import Command, CommandFailed, Outcome  # noqa: E402
from gpu_flows.training import launch  # noqa: E402
from gpu_flows.training.config import TrainConfig  # noqa: E402
from gpu_flows.training.loop import train  # noqa: E402
from gpu_flows.training.registry import models  # noqa: E402
from gpu_flows.training.reports import Diverged, Progress  # noqa: E402

# The last batch of each epoch has one sample: one of the processes has none then.
CONFIG = TrainConfig(
    model="cnn", samples=97, batch_size=16, epochs=6, precision="float64", learning_rate=0.01
)


class Processes:
    """A training in two processes, started as the flow starts it."""

    def __init__(self, config: TrainConfig, folder: Path) -> None:
        self.reports = folder / "reports.jsonl"
        self.reports.touch()
        environment = {**os.environ, contract.DIRECTORY: str(folder / "checkpoints")}
        # Report every step, not only some of them.
        script = "from gpu_flows.training import launch; launch._SECONDS_BETWEEN_REPORTS = 0; launch.main()"
        command = [sys.executable, "-c", script, "2", config.model_dump_json(), "--reports", self.reports]
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    def reported(self, kind: str) -> list[Any]:
        lines = [json.loads(line) for line in self.reports.read_text().split("\n")[:-1]]
        return [line[kind] for line in lines if kind in line]

    def losses(self) -> list[float]:
        return [progress["loss"] for progress in self.reported("progress")]

    def wait(self) -> int:
        _, self.errors = self.process.communicate()
        return self.process.returncode


def train_alone(config: TrainConfig) -> list[Progress]:
    seen: list[Progress] = []
    train(config, seen.append)
    return seen


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(tmp_path: Path) -> None:
    together = Processes(CONFIG, tmp_path)
    expected = train_alone(CONFIG)
    assert together.wait() == 0, together.errors
    assert together.losses() == pytest.approx([progress.loss for progress in expected], abs=1e-6)
    (result,) = together.reported("result")
    assert (result["devices"], result["steps"], result["samples"]) == (2, 42, 6 * 97)
    assert result["accuracy"] == pytest.approx(expected[-1].accuracy, abs=1e-6)
    assert together.reported("note") == [
        "training on the CPU in 2 processes, one per device: torch finds no CUDA device"
    ]


@pytest.mark.slow
def test_a_job_resumes_with_another_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32, because the order of summation in two processes changes the rounding."""
    config = CONFIG.model_copy(update={"precision": "float32", "steps_per_second": 5.0})
    together = Processes(config, tmp_path)
    wait_until(lambda: len(together.losses()) >= 4 or together.process.poll() is not None)
    together.process.send_signal(signal.SIGTERM)
    assert together.wait() == contract.CHECKPOINTED, together.errors
    before = together.losses()
    checkpoints = tmp_path / "checkpoints"
    assert [(entry.event, entry.step) for entry in contract.read_journal(checkpoints)] == [
        ("saved", len(before)),
        ("left", len(before)),
    ]

    unpaced = CONFIG.model_copy(update={"precision": "float32"})
    expected = train_alone(unpaced)
    monkeypatch.setenv(contract.DIRECTORY, str(checkpoints))
    after = train_alone(unpaced)
    assert after[0].step == len(before) + 1
    assert [*before, *(progress.loss for progress in after)] == pytest.approx(
        [progress.loss for progress in expected], rel=1e-4
    )


SCRIPT = """
    import os, signal, sys, torch, torch.distributed
    from gpu_flows.checkpoints import resumable

    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    with resumable(sys.argv[1], model=torch.nn.Linear(1, 1)) as run:
        if run.step == 0:
            torch.manual_seed(rank)
        for step in run.steps(5):
            torch.rand(())
            if step == 2 and rank == 1:
                os.kill(os.getpid(), signal.SIGTERM)
    os.write(1, f"process {rank} drew {torch.rand(()).item()}\\n".encode())  # in one piece
    torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_a_users_script_under_torchrun_stops_and_resumes(tmp_path: Path) -> None:
    """Only one of its processes receives SIGTERM. All stop at the same step and keep their random numbers."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    checkpoints = tmp_path / "checkpoints"
    stopped, resumed = (
        subprocess.run([*torchrun, script, checkpoints], capture_output=True, text=True, check=False)
        for _ in range(2)
    )
    assert (stopped.returncode, stopped.stdout) == (1, ""), (
        stopped.stderr
    )  # the code of torchrun replaces ours
    assert [(entry.event, entry.step) for entry in contract.read_journal(checkpoints)] == [
        *[("saved", 3), ("left", 3)],
        ("restored", 3),
    ]
    assert resumed.returncode == 0, resumed.stderr
    assert sorted(resumed.stdout.splitlines()) == [
        f"process {rank} drew {sixth_draw(rank)}" for rank in (0, 1)
    ]


def sixth_draw(seed: int) -> float:
    generator = torch.Generator().manual_seed(seed)
    return float([torch.rand((), generator=generator) for _ in range(6)][-1])


# ---- the flow that starts the processes


@pytest.fixture
def processes_report(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Command]]:
    """Replaces the processes: they report these lines and end with this exit code."""

    def report(*reports: dict[str, Any], exit_code: int = 0) -> list[Command]:
        started: list[Command] = []

        def run(command: Command, emit: Callable[[str], None]) -> Outcome:
            started.append(command)
            file = Path(command.arguments[command.arguments.index("--reports") + 1])
            file.write_text("".join(json.dumps(report) + "\n" for report in reports))
            return Outcome(exit_code, 1.0, 1, ("last line",))

        monkeypatch.setattr(training_processes, "run_command", run)
        return started

    return report


def test_progress_and_result_of_the_processes_reach_the_flow(
    processes_report: Callable[..., list[Command]],
) -> None:
    own: list[Progress] = []
    result = train(TrainConfig(samples=16, steps=2), own.append)
    reports = [
        {"note": "on two"},
        *({"progress": asdict(progress)} for progress in own),
        {"result": result.as_dict()},
    ]
    started = processes_report(*reports)
    seen: list[Progress] = []
    printed: list[str] = []
    assert training_processes.train_in_processes(TrainConfig(), 2, seen.append, printed.append) == result
    assert (seen, printed) == (own, ["on two"])
    assert started[0].arguments[1:4] == ["-m", "gpu_flows.training.launch", "2"]
    assert "--source" not in started[0].arguments


def test_processes_have_less_grace_than_the_flow(
    processes_report: Callable[..., list[Command]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(contract.GRACE, "20")
    started = processes_report(exit_code=1)
    with pytest.raises(CommandFailed, match="exit code 1"):
        training_processes.train_in_processes(TrainConfig(), 2, print, print)
    assert started[0].grace_seconds < 20
    assert int(started[0].environment["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < started[0].grace_seconds


def test_a_training_that_diverges_in_its_processes_is_reported(
    processes_report: Callable[..., list[Command]],
) -> None:
    processes_report({"diverged": "the loss became nan"}, exit_code=1)
    with pytest.raises(Diverged, match="the loss became nan"):
        training_processes.train_in_processes(TrainConfig(), 2, print, print)


def test_a_users_model_is_registered_in_the_processes(
    tmp_path: Path, processes_report: Callable[..., list[Command]], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        textwrap.dedent("""
            from gpu_flows.training import register

            @register("own")
            def own(size, samples):
                "A user's model."
        """)
    )
    launched: list[str] = []
    monkeypatch.setattr(launch, "launch", lambda processes, config, reports: launched.append(config))
    launch._import_file(str(file), "own")  # as a script with a user's flow does
    try:
        started = processes_report(exit_code=1)
        with pytest.raises(CommandFailed):
            training_processes.train_in_processes(TrainConfig(model="own"), 2, print, print)
        models.unregister("own")
        monkeypatch.setattr(
            sys, "argv", started[0].arguments[2:]
        )  # as in a process where it is not registered
        launch.main()
        assert TrainConfig.model_validate_json(launched[0]).model == "own"
    finally:
        models.unregister("own")


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.02)
