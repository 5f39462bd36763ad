"""Fixtures of the NVML tests: the stand-in library, and sources that use it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from nvml.standin import CONTROL_VARIABLE, StandIn, build

from gpu_flows.devices.nvml import NvmlDevices


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    control = tmp_path / "nvml.txt"
    monkeypatch.setenv(CONTROL_VARIABLE, str(control))
    return StandIn(nvml_library, control)


@pytest.fixture
def devices(nvml: StandIn) -> Iterator[NvmlDevices]:
    # A deadline for a busy machine. Only the tests of hanging calls use a shorter one.
    source = NvmlDevices(node="box", deadline_s=20.0, library=nvml.library, pause_s=0.01)
    yield source
    source.close()


@pytest.fixture
def hasty_devices(nvml: StandIn) -> Iterator[NvmlDevices]:
    source = NvmlDevices(node="box", deadline_s=0.5, library=nvml.library, start_s=20.0, pause_s=0.0)
    yield source
    source.close()
