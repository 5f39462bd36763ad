"""One training in two processes learns what one process learns, and can come back as either."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs gpu-flows[train]")

from gpu_flows.checkpoints import contract  # noqa: E402
from gpu_flows.training.config import TrainConfig  # noqa: E402
from gpu_flows.training.loop import train  # noqa: E402
from gpu_flows.training.reports import Progress  # noqa: E402

# The last batch of each epoch has one sample: one of the processes has none then.
CONFIG = TrainConfig(
    model="cnn", samples=97, batch_size=16, epochs=6, precision="float64", learning_rate=0.01
)


class Processes:
    """A training started as the flow starts it."""

    def __init__(self, config: TrainConfig, folder: Path, every_step: bool = True) -> None:
        self.reports = folder / "reports.jsonl"
        self.reports.touch()
        environment = {**os.environ, contract.DIRECTORY: str(folder / "checkpoints")}
        # Each step is to be seen, not only some of them.
        script = "from gpu_flows.training import launch; launch._SECONDS_BETWEEN_REPORTS = 0; launch.main()"
        command = [sys.executable, "-c", script, "2", config.model_dump_json(), "--reports", self.reports]
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    def told(self, kind: str) -> list[Any]:
        lines = [json.loads(line) for line in self.reports.read_text().split("\n")[:-1]]
        return [line[kind] for line in lines if kind in line]

    def losses(self) -> list[float]:
        return [progress["loss"] for progress in self.told("progress")]

    def end(self) -> int:
        _, self.errors = self.process.communicate()
        return self.process.returncode


def alone(config: TrainConfig) -> list[Progress]:
    seen: list[Progress] = []
    train(config, seen.append)
    return seen


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(tmp_path: Path) -> None:
    together = Processes(CONFIG, tmp_path)
    expected = alone(CONFIG)
    assert together.end() == 0, together.errors
    assert together.losses() == pytest.approx([progress.loss for progress in expected], abs=1e-6)
    (result,) = together.told("result")
    assert (result["devices"], result["steps"], result["samples"]) == (2, 42, 6 * 97)
    assert result["accuracy"] == pytest.approx(expected[-1].accuracy, abs=1e-6)
    assert together.told("note") == [
        "training on the CPU in 2 processes, one per device: torch finds no CUDA device"
    ]


@pytest.mark.slow
def test_a_job_goes_on_with_another_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 32 bits: the order in which two processes add up changes the last of them, step by step."""
    config = CONFIG.model_copy(update={"precision": "float32", "steps_per_second": 20.0})
    together = Processes(config, tmp_path)
    wait_until(lambda: len(together.losses()) >= 10 or together.process.poll() is not None)
    together.process.send_signal(signal.SIGTERM)
    assert together.end() == contract.CHECKPOINTED, together.errors
    before = together.losses()
    checkpoints = tmp_path / "checkpoints"
    assert [(entry.event, entry.step) for entry in contract.journal(checkpoints)] == [
        ("saved", len(before)),
        ("left", len(before)),
    ]

    unpaced = CONFIG.model_copy(update={"precision": "float32"})
    expected = alone(unpaced)
    monkeypatch.setenv(contract.DIRECTORY, str(checkpoints))
    after = alone(unpaced)
    assert after[0].step == len(before) + 1
    assert [*before, *(progress.loss for progress in after)] == pytest.approx(
        [progress.loss for progress in expected], rel=1e-4
    )


SCRIPT = """
    import sys, torch, torch.distributed
    from torch.nn.parallel import DistributedDataParallel
    from gpu_flows.checkpoints import resumable

    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    torch.manual_seed(rank)
    with resumable(sys.argv[1], model=model) as run:
        for step in run.steps(5):
            run.values["drawn"] = run.values.get("drawn", 0) + torch.rand(()).item()
            if step == 2 and rank == 1 and len(sys.argv) > 2:
                import os, signal
                os.kill(os.getpid(), signal.SIGTERM)
    print(f"process {rank} drew", torch.rand(()).item(), flush=True)
"""


@pytest.mark.slow
def test_a_script_of_ones_own_under_torchrun_leaves_and_comes_back(tmp_path: Path) -> None:
    """Only one of its processes is asked to stop; all stop at the same step, each with its random numbers."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        script,
    ]
    checkpoints = tmp_path / "checkpoints"

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*torchrun, *more], capture_output=True, text=True, check=False)

    stopped = run(str(checkpoints), "stop")
    assert (stopped.returncode, stopped.stdout) == (1, ""), stopped.stderr  # torchrun's code; ours is lost
    assert [(entry.event, entry.step) for entry in contract.journal(checkpoints)] == [
        ("saved", 3),
        ("left", 3),
    ]

    resumed, undisturbed = run(str(checkpoints)), run(str(tmp_path / "other"))
    assert resumed.returncode == 0, resumed.stderr
    assert sorted(resumed.stdout.splitlines()) == sorted(undisturbed.stdout.splitlines())
    assert len(set(resumed.stdout.splitlines())) == 2


@pytest.mark.slow
def test_a_model_of_ones_own_is_known_to_the_processes_too(tmp_path: Path) -> None:
    """And one that diverges says so through them."""
    own = tmp_path / "own.py"
    own.write_text(
        textwrap.dedent("""
            import torch
            from gpu_flows.training import Recipe, register

            @register("hopeless")
            def hopeless(size, samples):
                "Learns nothing."
                rows = torch.zeros(samples, 1)
                return Recipe(torch.nn.Linear(1, 1), rows, rows, lambda out, _: out.mean() * float("nan"))

            if __name__ == "__main__":
                from gpu_flows.flows.several import train_in_processes
                from gpu_flows.training.config import TrainConfig
                from gpu_flows.training.reports import Diverged
                try:
                    train_in_processes(TrainConfig(model="hopeless"), 2, print, lambda line: None)
                except Diverged as diverged:
                    print("diverged:", diverged)
        """)
    )
    done = subprocess.run([sys.executable, own], capture_output=True, text=True, check=True)
    assert "diverged: the loss of hopeless became nan at step 1. Lower the learning rate" in done.stdout


def wait_until(look: Callable[[], bool]) -> None:
    while not look():
        time.sleep(0.02)
