"""Jobs on simulated devices allocate memory, run out of it, and are measured."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu_flows.checkpoints import contract
from gpu_flows.devices.base import Reading
from gpu_flows.devices.memory_peaks import MemoryPeaks
from gpu_flows.devices.simulated_memory import FOLDER, SimulatedMemory, SimulatedOutOfMemory
from gpu_flows.dispatch.attempt_facts import find_peaks
from gpu_flows.prediction.memory_failure import find_memory_failure
from gpu_flows.runtimes.attempt_store import AttemptStore
from gpu_flows.runtimes.base import Launch
from gpu_flows.schedulers.model import Device, Job

DEVICE = Device("SIM-a", "node", 0, "T4", 10_000)


def run_job(
    folder: Path, name: str, mb: float, share_mb: int = 0, seconds: float = 0.1
) -> subprocess.Popen[str]:
    """Start a job that uses so much memory, as a worker would."""
    checkpoints = folder / "checkpoints" / name
    checkpoints.mkdir(parents=True)
    launch = Launch(
        Job(name),
        1,
        "pool",
        "fifo",
        0.0,
        (DEVICE,),
        (),
        checkpoints=str(checkpoints),
        memory_share_mb=share_mb,
    )
    attempt = AttemptStore(folder).create(launch)
    variables = {
        "GPU_FLOWS_ATTEMPT": launch.id,
        "GPU_FLOWS_ATTEMPT_FOLDER": str(attempt),
        "GPU_FLOWS_CHECKPOINT_DIR": launch.checkpoints,
    }
    arguments = ["-m", "gpu_flows.devices.simulated_memory", "--mb", str(mb), "--seconds", str(seconds)]
    return subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_job_runs_out_of_a_device_that_others_use_and_is_recognized(tmp_path: Path) -> None:
    neighbour = run_job(tmp_path, "neighbour", 6000, seconds=30)
    memory = SimulatedMemory(tmp_path / FOLDER)
    deadline = time.monotonic() + 60
    try:
        while memory.used("SIM-a").get("neighbour.1") != 3000:  # its first half
            assert time.monotonic() < deadline
            time.sleep(0.02)
        late = run_job(tmp_path, "late", 8000)
        printed, _ = late.communicate(timeout=60)
        assert late.returncode == 1
        failure = find_memory_failure(printed)
        assert failure is not None
        assert failure.needed_mb == pytest.approx(8000, rel=0.01)
    finally:
        neighbour.kill()
        neighbour.communicate()
    assert memory.used("SIM-a") == {}  # what a dead process had is free


def test_a_job_is_held_to_its_share_and_reports_its_peak(tmp_path: Path) -> None:
    beyond, within = run_job(tmp_path, "beyond", 5000, 4000), run_job(tmp_path, "within", 3500, 4000)
    printed, _ = beyond.communicate(timeout=60)
    assert "3.91 GiB allowed" in printed
    assert within.wait(60) == 0
    (launch,) = (found for _, found in AttemptStore(tmp_path).open_attempts() if found.job.id == "within")
    assert [(peak.device_id, peak.peak_mb, peak.source) for peak in find_peaks(launch, {})] == [
        ("SIM-a", 3500, "reported")
    ]
    assert [peak.source for peak in find_peaks(launch, {"SIM-a": 3600.0})] == ["nvml"]
    assert launch.memory_share_mb == 4000  # also of an attempt that another worker adopts


def test_the_account_of_a_device_never_exceeds_its_memory(tmp_path: Path) -> None:
    memory = SimulatedMemory(tmp_path)
    memory.set("SIM-a", 1000, "a.1", 600)
    memory.set("SIM-a", 1000, "a.1", 900)  # in all, not in addition
    with pytest.raises(SimulatedOutOfMemory, match=r"Tried to allocate 0\.20 GiB"):
        memory.set("SIM-a", 1000, "a.1", 1100)
    assert memory.used("SIM-a") == {"a.1": 900}
    assert memory.used("SIM-b") == {}


@pytest.mark.parametrize("text", ["5", "[1]", '[{"pid": 1}]', '[{"pid": "x", "started": 0}]', "[[]]", "{"])
def test_odd_content_of_an_account_reads_as_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "SIM-a").write_text(text)
    assert SimulatedMemory(tmp_path).used("SIM-a") == {}


# -- real devices -----------------------------------------------------------------------------


def test_peaks_of_processes_are_given_to_their_attempts() -> None:
    peaks = MemoryPeaks(lambda device_id: {"a": 1, "b": 1}, {1: "a.1", 2: "a.1", 3: "b.2", 4: ""}.__getitem__)
    for factor in (1.0, 2.0, 0.5):
        used = tuple(factor * mb for mb in (100, 50, 10, 999))
        peaks.add([Reading("GPU-0", processes=(1, 2, 3, 4), process_memory_mb=used)])
    launch = Launch(Job("a"), 1, "pool", "fifo", 0.0, (), ())
    assert peaks.take(launch) == {"GPU-0": 300}
    assert peaks.take(launch) == {}


def test_a_device_that_one_job_holds_is_its_own_where_the_driver_tells_no_more() -> None:
    launch = Launch(Job("a"), 1, "pool", "fifo", 0.0, (), ())
    reading = Reading("GPU-0", memory_used_mb=700.0, processes=(1,), process_memory_mb=(None,))
    alone = MemoryPeaks(lambda device_id: {"a": 1}, lambda pid: "a.1")
    alone.add([reading])
    assert alone.take(launch) == {"GPU-0": 700}
    shared = MemoryPeaks(lambda device_id: {"a": 1, "b": 1}, lambda pid: "a.1")
    shared.add([reading])
    assert shared.take(launch) == {}


def test_a_process_with_the_number_of_an_earlier_one_is_another() -> None:
    owners = ["a.1", "a.2"]
    starts = [10.0, 10.0, 20.0]
    peaks = MemoryPeaks(lambda device_id: {"a": 1}, lambda pid: owners.pop(0), lambda pid: starts.pop(0))
    for mb in (100.0, 200.0, 300.0):
        peaks.add([Reading("GPU-0", processes=(1,), process_memory_mb=(mb,))])
    found = [
        peaks.take(Launch(Job("a"), attempt, "pool", "fifo", 0.0, (), ())).get("GPU-0") for attempt in (1, 2)
    ]
    assert found == [200, 300]


def test_memory_of_a_process_of_no_job_is_not_the_holders() -> None:
    peaks = MemoryPeaks(lambda device_id: {"a": 1}, lambda pid: "")
    peaks.add([Reading("GPU-0", memory_used_mb=700.0, processes=(1,), process_memory_mb=(700.0,))])
    assert peaks.take(Launch(Job("a"), 1, "pool", "fifo", 0.0, (), ())) == {}


def test_a_report_beyond_the_size_of_the_device_is_cut_to_it(tmp_path: Path) -> None:
    contract.write_entry(tmp_path, contract.Entry("memory", 1, time.time(), bytes=99_000 * 2**20))
    launch = Launch(Job("a"), 1, "pool", "fifo", 0.0, (DEVICE,), (), checkpoints=str(tmp_path))
    assert [peak.peak_mb for peak in find_peaks(launch, {})] == [DEVICE.memory_mb]
