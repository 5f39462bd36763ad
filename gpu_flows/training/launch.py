"""Runs one training in several processes, one per device, as torchrun does.

    python -m gpu_flows.training.launch 2 '{"model": "resnet", "epochs": 3}' [--reports FILE] [--source FILE]

It uses torchrun's own agent (`torch.distributed.launcher`), on this machine only. torchrun itself starts each
process from scratch, and each spends seconds on importing torch and, for DistributedDataParallel, torch's
compiler. Here one process imports them and the others are forked from it. With CUDA, which does not survive a
fork, the processes are spawned.

On SIGTERM the agent forwards the signal, waits for the processes to save, and fails. If the journal states
that they have saved, this command exits with the code that means "saved".
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed
from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from gpu_flows.checkpoints import contract
from gpu_flows.training.config import TrainConfig
from gpu_flows.training.hardware import find_hardware, local_rank
from gpu_flows.training.loop import train
from gpu_flows.training.reports import Diverged, Progress

_SECONDS_BETWEEN_REPORTS = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("processes", type=int, help="how many; at most one per CUDA device")
    parser.add_argument("config", help="what to train, as JSON")
    parser.add_argument("--reports", default="", help="a file to append progress to, as lines of JSON")
    parser.add_argument("--source", action="append", default=[], help="a file that registers a model")
    options = parser.parse_args()
    for number, source in enumerate(options.source):
        _import_file(source, f"gpu_flows_source_{number}")
    TrainConfig.model_validate_json(options.config)  # a mistake is reported before any process is started
    launch(options.processes, options.config, options.reports)


def launch(processes: int, config: str, reports: str) -> None:
    """Train in this many processes. Returns when all of them have succeeded."""
    started = time.time()
    cuda_devices = torch.cuda.device_count()
    if not cuda_devices:
        importlib.import_module("torch._dynamo")  # for DistributedDataParallel: once, before the fork
    with tempfile.TemporaryDirectory(prefix="gpu-flows-launch-") as folder:
        launcher = elastic_launch(
            LaunchConfig(
                min_nodes=1,
                max_nodes=1,
                nproc_per_node=min(processes, cuda_devices or processes),
                run_id=str(os.getpid()),
                rdzv_backend="c10d",
                rdzv_endpoint="localhost:0",
                local_addr="localhost",
                max_restarts=0,
                start_method="spawn" if cuda_devices else "fork",
                logs_specs=DefaultLogsSpecs(log_dir=folder),
            ),
            train_in_group,
        )
        try:
            launcher(config, reports)
        except (SignalException, ChildFailedError):
            if _has_saved_since(started):
                sys.exit(contract.CHECKPOINTED)
            raise


def train_in_group(config: str, reports: str) -> None:
    """Train as one process of the group. Each of the launched processes runs this."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a forked process inherits the agent's handler
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank())
    torch.distributed.init_process_group(backend)
    hardware = find_hardware()
    reporter = Reporter(reports if hardware.processes.is_first else "")
    try:
        result = train(
            TrainConfig.model_validate_json(config),
            reporter.progress,
            on_note=reporter.note,
            hardware=hardware,
        )
    except Diverged as diverged:
        reporter.write("diverged", str(diverged))
        raise
    reporter.flush()
    reporter.write("result", result.as_dict())
    torch.distributed.destroy_process_group()


class Reporter:
    """Appends reports to a file, as lines of JSON. Without a file name it does nothing."""

    def __init__(self, file: str) -> None:
        self._file = Path(file) if file else None
        self._latest: Progress | None = None
        self._next_at = 0.0

    def note(self, text: str) -> None:
        self.write("note", text)

    def progress(self, progress: Progress) -> None:
        self._latest = progress
        if time.monotonic() >= self._next_at:
            self._next_at = time.monotonic() + _SECONDS_BETWEEN_REPORTS
            self.flush()

    def flush(self) -> None:
        """Write the latest progress if it has not been written yet."""
        if self._latest:
            self.write("progress", asdict(self._latest))
            self._latest = None

    def write(self, kind: str, content: object) -> None:
        if self._file:
            with self._file.open("a") as file:
                file.write(json.dumps({kind: content}) + "\n")


def _has_saved_since(started: float) -> bool:
    directory = os.environ.get(contract.DIRECTORY)
    entries = contract.read_journal(Path(directory)) if directory else []
    return bool(entries) and entries[-1].event == "left" and entries[-1].time >= started


def _import_file(file: str, name: str) -> None:
    """Import a file under this module name, so that it registers its models."""
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        sys.exit(f"{file} cannot be imported: it is not a Python file. Name one that registers a model.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    main()
