"""Fifty kills, by SIGTERM and SIGKILL, at steps, within steps and within saves: nothing shows in the end."""

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
from tests.interrupted_training import INTERVAL, Death  # noqa: E402

KILLS = 50
STEPS = 800  # more than are done before the last kill


@pytest.mark.slow
def test_fifty_kills_change_nothing_and_lose_little(tmp_path: Path) -> None:
    chance = random.Random(5)
    warm = multiprocessing.get_context("forkserver")
    warm.set_forkserver_preload([interrupted_training.__name__])
    done = warm.Value("l", 0)

    def attempt(number: int, death: Death | None, killed: bool, folder: str) -> int | None:
        """Live once, perhaps to be killed from outside at any moment after that step. The exit code."""
        done.value = 0
        place = tmp_path / folder
        planned = None if killed else death
        args = (STEPS, place / "checkpoints", number, done, planned, place / "weights.pt")
        job = warm.Process(target=interrupted_training.live, args=args)
        job.start()
        if killed and death:
            while done.value < death.step and job.is_alive():
                time.sleep(0.0005)
            time.sleep(chance.uniform(0, 0.005))
            assert job.pid
            os.kill(job.pid, death.by)
        job.join()
        return job.exitcode

    checkpoints = tmp_path / "killed" / "checkpoints"
    assert attempt(1, None, killed=False, folder="undisturbed") == 0

    reached = 0  # by the attempt before
    died_in_saves = {signal.SIGTERM: 0, signal.SIGKILL: 0}
    for number in range(1, KILLS + 2):
        death = Death(
            step=max(0, reached - INTERVAL) + chance.randint(1, 14),
            by=chance.choice((signal.SIGTERM, signal.SIGKILL)),
            in_save=chance.choice(("", "", "write", "fsync", "rename", "renamed")),
        )
        last = number > KILLS
        from_outside = not death.in_save and chance.random() < 0.5
        code = attempt(number, None if last else death, from_outside, "killed")
        entries = [entry for entry in contract.read_journal(checkpoints) if entry.attempt == number]
        restored = entries[0].step if entries and entries[0].event == "restored" else 0
        assert reached - restored <= INTERVAL, f"attempt {number} lost {reached - restored} steps"
        if last:
            assert code == 0
            break
        died_in_saves[death.by] += bool(death.in_save)
        reached = done.value
        if death.by == signal.SIGTERM:
            assert code == contract.CHECKPOINTED
            assert (entries[-1].event, entries[-1].step) == ("left", reached)
        else:
            assert code == -signal.SIGKILL
        plant_torn_files(checkpoints, chance)

    assert reached < STEPS
    assert sorted(path.suffix for path in checkpoints.iterdir()) == [".jsonl", ".pt", ".pt"]  # nothing torn
    assert min(died_in_saves.values()) >= 10
    final, expected = (torch.load(tmp_path / way / "weights.pt") for way in ("killed", "undisturbed"))
    assert final.keys() == expected.keys()
    assert all(torch.equal(final[name], expected[name]) for name in expected)


def plant_torn_files(checkpoints: Path, chance: random.Random) -> None:
    """Newer than every whole one, and each would change the outcome if it were loaded."""
    whole = sorted(checkpoints.glob("checkpoint-*.pt"))
    if not whole:
        return
    content = whole[-1].read_bytes()
    number = int(whole[-1].stem.rpartition("-")[2])
    spot = chance.randrange(56, len(content))
    torn = (content[: chance.randrange(len(content))], content[:spot] + b"\0torn\0" + content[spot + 6 :])
    for ahead, each in enumerate(torn, start=1):
        (checkpoints / f"checkpoint-{number + ahead:012}.pt").write_bytes(each[: len(content)])
