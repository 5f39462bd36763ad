"""One training in several processes, one per device: what torchrun does, in one command.

    python -m gpu_flows.training.launch 2 '{"model": "resnet", "epochs": 3}' [--reports FILE] [--source FILE]

It runs torchrun's own agent (`torch.distributed.launcher`), on this machine alone. torchrun itself would
start each process anew, and each would spend seconds on importing torch and, for DistributedDataParallel,
torch's compiler. Here one process imports them and the others are forked from it, unless there is CUDA,
which does not survive a fork.

Asked to leave by SIGTERM, the agent passes that on, gives the processes time to save, and fails. Whether
they had saved, their journal tells: then the exit code is the one that says so.
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
    parser.add_argument("processes", type=int, help="how many, at most one per CUDA device")
    parser.add_argument("config", help="what to train, as JSON")
    parser.add_argument("--reports", default="", help="a file to add lines of JSON to, as training goes on")
    parser.add_argument("--source", action="append", default=[], help="a file that registers a model")
    asked = parser.parse_args()
    for number, source in enumerate(asked.source):
        _import_file(source, f"gpu_flows_source_{number}")
    TrainConfig.model_validate_json(asked.config)  # before anything is started
    launch(asked.processes, asked.config, asked.reports)


def launch(processes: int, config: str, reports: str) -> None:
    """Train in that many processes; returns when they have all ended well."""
    began = time.time()
    on_cuda = torch.cuda.device_count()
    if not on_cuda:
        importlib.import_module("torch._dynamo")  # once, before the fork: DistributedDataParallel needs it
    with tempfile.TemporaryDirectory(prefix="gpu-flows-launch-") as folder:
        launcher = elastic_launch(
            LaunchConfig(
                min_nodes=1,
                max_nodes=1,
                nproc_per_node=min(processes, on_cuda or processes),
                run_id=str(os.getpid()),
                rdzv_backend="c10d",
                rdzv_endpoint="localhost:0",
                local_addr="localhost",
                max_restarts=0,
                start_method="spawn" if on_cuda else "fork",
                logs_specs=DefaultLogsSpecs(log_dir=folder),
            ),
            train_here,
        )
        try:
            launcher(config, reports)
        except (SignalException, ChildFailedError):
            if _has_left_since(began):
                sys.exit(contract.CHECKPOINTED)
            raise


def train_here(config: str, reports: str) -> None:
    """What each of the processes does."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # forked, it has the agent's
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank())
    torch.distributed.init_process_group(backend)
    hardware = find_hardware()
    reporter = Reporter(reports if hardware.peers.is_first else "")
    reporter.tell("note", hardware.note)
    try:
        result = train(TrainConfig.model_validate_json(config), reporter.progress, hardware=hardware)
    except Diverged as diverged:
        reporter.tell("diverged", str(diverged))
        raise
    reporter.close()
    reporter.tell("result", result.as_dict())
    torch.distributed.destroy_process_group()


class Reporter:
    """Adds a line of JSON to a file, for whoever started this; where no file is named, does nothing."""

    def __init__(self, file: str) -> None:
        self._file = Path(file) if file else None
        self._latest: Progress | None = None
        self._next_at = 0.0

    def progress(self, progress: Progress) -> None:
        self._latest = progress
        if time.monotonic() >= self._next_at:
            self._next_at = time.monotonic() + _SECONDS_BETWEEN_REPORTS
            self.close()

    def close(self) -> None:
        """Nothing is held back any more."""
        if self._latest:
            self.tell("progress", asdict(self._latest))
            self._latest = None

    def tell(self, kind: str, what: object) -> None:
        if self._file:
            with self._file.open("a") as file:
                file.write(json.dumps({kind: what}) + "\n")


def _has_left_since(began: float) -> bool:
    directory = os.environ.get(contract.DIRECTORY)
    entries = contract.journal(Path(directory)) if directory else []
    return bool(entries) and entries[-1].event == "left" and entries[-1].time >= began


def _import_file(file: str, name: str) -> None:
    """Run a file for what it registers, as a module and not as a program."""
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        sys.exit(f"{file} cannot be imported: it is no Python file. Name one that registers a model.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    main()
