"""A flow that runs out of GPU memory leaves its report to the worker; other errors are reported as usual."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.exceptions import TerminationSignal

from gpu_flows import prefect_private
from gpu_flows.checkpoints import contract
from gpu_flows.runtimes import entry

OOM = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> type:
    """A stand-in for Prefect's engine, whose process serves the run `root`."""

    class Engine:
        def __init__(self, run_id: str) -> None:
            self.flow_run = SimpleNamespace(id=run_id)

        def handle_exception(self, error: Exception, msg: str = "") -> str:
            return f"reported {error} {msg}".strip()

    found: dict[str, Any] = {"TerminationSignal": TerminationSignal, "FlowRunEngine": Engine}
    monkeypatch.setattr(prefect_private, "_lookup", lambda module, name: found.get(name))
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "root")
    monkeypatch.setenv(entry.WAITS_FOR_MEMORY, "1")
    monkeypatch.setenv(entry.EXIT_CODE, "1")  # so that it is restored
    entry._wait_for_memory()
    return Engine


def test_out_of_memory_is_left_to_the_worker_and_the_exit_code_says_so(
    engine: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TerminationSignal):
        engine("root").handle_exception(OOM)
    assert os.environ[contract.EXIT_CODE] == str(contract.OUT_OF_MEMORY)
    assert str(OOM) in capfd.readouterr().err  # the worker reads there how much was missing


def test_so_is_an_error_that_it_caused(engine: Any) -> None:
    error = ValueError("the training failed")
    error.__cause__ = OOM
    with pytest.raises(TerminationSignal):
        engine("root").handle_exception(error)


def test_other_errors_and_other_runs_are_reported(engine: Any) -> None:
    assert engine("root").handle_exception(ValueError("bad"), msg="x") == "reported bad x"
    assert engine("subflow").handle_exception(OOM).startswith("reported")  # its parent gets the error too


def test_prefect_has_the_names() -> None:
    assert not [line for line in prefect_private.find_missing_names() if "handle_exception" in line]
