"""Fifty kills, by SIGTERM and SIGKILL, in steps, between steps and in saves, do not change the result."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs gpu-flows[train]")

from gpu_flows.checkpoints import contract  # noqa: E402
from tests import interrupted_training  # noqa: E402
from tests.interrupted_training import INTERVAL, Kill  # noqa: E402

KILLS = 50
STEPS = 800  # more than are done before the last kill


@pytest.mark.long
@pytest.mark.slow
def test_fifty_kills_do_not_change_the_result_and_lose_at_most_one_interval(tmp_path: Path) -> None:
    chance = random.Random(5)
    forkserver = multiprocessing.get_context("forkserver")
    forkserver.set_forkserver_preload([interrupted_training.__name__])
    done = forkserver.Value("l", 0)

    def attempt(number: int, kill: Kill | None, from_outside: bool, folder: str) -> int | None:
        """Run one attempt and return its exit code. A kill from outside comes at any moment after its
        step."""
        done.value = 0
        place = tmp_path / folder
        own_kill = None if from_outside else kill
        args = (STEPS, place / "checkpoints", number, done, own_kill, place / "weights.pt")
        job = forkserver.Process(target=interrupted_training.run_attempt, args=args)
        job.start()
        if from_outside and kill:
            while done.value < kill.step and job.is_alive():
                time.sleep(0.0005)
            time.sleep(chance.uniform(0, 0.005))
            assert job.pid
            os.kill(job.pid, kill.by)
        job.join()
        return job.exitcode

    checkpoints = tmp_path / "killed" / "checkpoints"
    assert attempt(1, None, from_outside=False, folder="uninterrupted") == 0

    reached = 0  # steps of the attempt before
    kills_in_saves = {signal.SIGTERM: 0, signal.SIGKILL: 0}
    for number in range(1, KILLS + 2):
        kill = Kill(
            step=max(0, reached - INTERVAL) + chance.randint(1, 14),
            by=chance.choice((signal.SIGTERM, signal.SIGKILL)),
            in_save=chance.choice(("", "", "write", "fsync", "rename", "renamed")),
        )
        last = number > KILLS
        from_outside = not kill.in_save and chance.random() < 0.5
        code = attempt(number, None if last else kill, from_outside, "killed")
        entries = [entry for entry in contract.read_journal(checkpoints) if entry.attempt == number]
        restored = entries[0].step if entries and entries[0].event == "restored" else 0
        assert reached - restored <= INTERVAL, f"attempt {number} lost {reached - restored} steps"
        if last:
            assert code == 0
            break
        kills_in_saves[kill.by] += bool(kill.in_save)
        reached = done.value
        if kill.by == signal.SIGTERM:
            assert code == contract.CHECKPOINTED
            assert (entries[-1].event, entries[-1].step) == ("left", reached)
        else:
            assert code == -signal.SIGKILL
        write_damaged_files(checkpoints, chance)

    assert reached < STEPS
    assert sorted(path.suffix for path in checkpoints.iterdir()) == [
        ".jsonl",
        ".pt",
        ".pt",
    ]  # no damaged file is left
    assert min(kills_in_saves.values()) >= 10
    final, expected = (torch.load(tmp_path / way / "weights.pt") for way in ("killed", "uninterrupted"))
    assert final.keys() == expected.keys()
    assert all(torch.equal(final[name], expected[name]) for name in expected)


def write_damaged_files(checkpoints: Path, chance: random.Random) -> None:
    """Write damaged files with higher numbers than all complete ones. Loading one would change the result."""
    whole = sorted(checkpoints.glob("checkpoint-*.pt"))
    if not whole:
        return
    content = whole[-1].read_bytes()
    number = int(whole[-1].stem.rpartition("-")[2])
    spot = chance.randrange(56, len(content))
    damaged = (content[: chance.randrange(len(content))], content[:spot] + b"\0torn\0" + content[spot + 6 :])
    for ahead, data in enumerate(damaged, start=1):
        (checkpoints / f"checkpoint-{number + ahead:012}.pt").write_bytes(data[: len(content)])
