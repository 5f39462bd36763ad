"""Traces run in processes that cannot harm the worker, and their results are kept for a while."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import eventually

from gpu_flows.prediction import trace_process
from gpu_flows.prediction.trace_process import TraceError, trace_in_process
from gpu_flows.prediction.trace_queue import Step, TraceQueue
from gpu_flows.schedulers.prediction.estimate import Estimate

STEPS = """
import os, subprocess, sys, time

def sleep(pid_file):
    child = subprocess.Popen(["sleep", "60"])
    with open(pid_file, "w") as file:
        file.write(str(child.pid))
    time.sleep(60)

def print_much():
    for _ in range(20):
        os.write(2, b"x" * 1_000_000)
    os.write(2, b"\\nthe last line\\n")
    os._exit(3)
"""
LOG = logging.getLogger(__name__)


@pytest.fixture(autouse=True)
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd_steps.py").write_text(STEPS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


def trace(step: str, options: Mapping[str, Any], gpu: str, memory_mib: int, **limits: Any) -> Estimate:
    return Estimate(1, 2, "traced")


def test_of_a_long_output_only_the_last_line_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[str] = []
    read_end = trace_process._read_end
    monkeypatch.setattr(trace_process, "_read_end", lambda path: ends.append(read_end(path)) or ends[0])
    with pytest.raises(TraceError, match="the last line"):
        trace_in_process("odd_steps:print_much", {}, "A100")
    assert len(ends[0]) <= trace_process.OUTPUT_SHOWN


LAYERS = """
import importlib.util
import torch

def make_step(width):
    model = torch.nn.Linear(width, width)
    return model, lambda: model(torch.randn(8, width, device="cuda")).sum()

def as_transformers(found=4096, not_found=64):  # which asks whether it is there
    return make_step(found if importlib.util.find_spec("sklearn") else not_found)

def in_need():
    import sklearn
    return make_step(sklearn.WIDTH)
"""


@pytest.mark.slow
def test_scikit_learn_is_hidden_from_steps_that_do_not_need_it(tmp_path: Path) -> None:
    (tmp_path / "layers.py").write_text(LAYERS)
    (tmp_path / "sklearn.py").write_text("WIDTH = 4096")
    found = {name: trace_in_process(f"layers:{name}", {}, "A100") for name in ("as_transformers", "in_need")}
    weights = 4096 * 4096 * 4 / 2**20
    assert found["in_need"].value - found["as_transformers"].value > 3 * weights  # AdamW keeps two more of it
    (tmp_path / "sklearn.py").write_text("raise ImportError('sklearn is broken')")
    with pytest.raises(TraceError, match="sklearn is broken"):
        trace_in_process("layers:in_need", {}, "A100")


def test_closing_ends_a_trace_and_what_it_started(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    async def trace_and_close() -> float:
        queue = TraceQueue(tmp_path / "traces", trace_in_process, LOG)
        queue.find(Step("odd_steps:sleep", {"pid_file": str(pid_file)}, "A100"), "a")
        await asyncio.to_thread(eventually, lambda: pid_file.exists() and pid_file.read_text(), "it runs")
        began = time.monotonic()
        await queue.close()
        await asyncio.get_running_loop().shutdown_default_executor()  # as the end of a worker does
        return time.monotonic() - began

    assert asyncio.run(trace_and_close()) < 5
    pid = int(pid_file.read_text())
    gone = (psutil.STATUS_ZOMBIE,)
    eventually(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() in gone, "it is killed")


def test_a_sweep_over_seeds_and_rates_is_traced_once() -> None:
    def key(**options: Any) -> str:
        return Step("m:f", {"batch": 8, **options}, "A100").key

    assert key(seed=1, lr=0.1, name="a") == key(seed=2, learning_rate=0.3, run_name="b") == key()
    assert key(model_path="small") != key(model_path="large")
    assert key(batch=16) != key(momentum=0.9) != key()


def test_old_results_are_removed(tmp_path: Path) -> None:
    async def trace_one(name: str) -> TraceQueue:
        queue.find(Step(name, {}, "A100"), "a")
        assert queue._task
        await queue._task
        return queue

    queue = TraceQueue(tmp_path / "traces", trace, LOG)
    asyncio.run(trace_one("m:old"))
    for file in (tmp_path / "traces").glob("*.json"):
        os.utime(file, (0, 0))
    queue._results = {key: replace(result, at=0.0) for key, result in queue._results.items()}
    asyncio.run(trace_one("m:new"))
    kept = Step("m:new", {}, "A100").key
    assert [file.stem for file in (tmp_path / "traces").glob("*.json")] == [kept]
    assert list(queue._results) == [kept]
