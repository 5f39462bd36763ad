"""docs/your-own-flow.md does what it says: this test creates its files and runs its commands, in order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import eventually
from live import Pool

from gpu_flows.bootstrap.local_stack import Stack

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[1] / "docs" / "your-own-flow.md"
REPOSITORY = "https://github.com/my-lab/training.git"  # the page's example; here a local repository
POOL = re.compile(r'(name: |work_pool_name=")gpu\b')


def blocks() -> Iterator[tuple[str, str]]:
    """Every code block of the page: its language and its text."""
    for found in re.finditer(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        yield found[1], found[2]


class Reader:
    """Follows the page: writes its files into a folder and runs its commands there."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self._stack, self._folder = stack, folder
        self._repository = folder.parent / "training.git"
        folder.mkdir()
        self._git("init", "-q")
        self._git("init", "-q", "--bare", str(self._repository))

    def follow(self) -> dict[str, str]:
        """The output of each command, by its first two words."""
        outputs = {}
        for language, text in blocks():
            text = POOL.sub(rf"\g<1>{self._stack.pool}", text)
            if language == "bash":
                outputs[" ".join(text.split()[:2])] = self._run(text)
            elif named := re.match(r"# (\S+\.\w+)\n", text):
                (self._folder / named[1]).write_text(text.replace(REPOSITORY, self._repository.as_uri()))
                self._commit()
        return outputs

    def _commit(self) -> None:
        """Push the folder, because a deployment with a git source clones it."""
        self._git("add", "-A")
        self._git(
            "-c", "user.name=reader", "-c", "user.email=reader@example.org", "commit", "-q", "-m", "page"
        )
        self._git("push", "-q", str(self._repository), "HEAD")

    def _git(self, *words: str) -> None:
        subprocess.run(["git", *words], cwd=self._folder, check=True, capture_output=True)

    def _run(self, script: str) -> str:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "-e", "-c", script],
            cwd=self._folder,
            env={**self._stack.environment(), "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.mark.long
def test_the_page_from_a_plain_flow_to_sql(new_stack: Callable[..., Stack], tmp_path: Path) -> None:
    stack = new_stack("2x4:GTX 1080 Ti:11")
    pool = Pool(stack)
    outputs = Reader(stack, tmp_path / "my-lab").follow()

    assert "Completed 0.495" in outputs["python sweep.py"], "the result comes back to the caller"
    assert "ann" in outputs["gpu-flows sql"]
    jobs = eventually(
        lambda: (
            (rows := pool.sql("select gpus, user_name, outcome from job_history order by submitted"))
            and len(rows) == 2
            and all(row[2] == "completed" for row in rows)
            and rows
        ),
        "both runs are in the warehouse",
    )
    assert [(row[0], row[1]) for row in jobs] == [(1, "ann"), (2, "")]
    assert not list(Path.cwd().glob("training*")), "a clone goes into the run's own directory"
    run = pool.sql("select job_id from job_history where gpus = 1")[0][0]
    printed = "Training on [\"node-1\"]: ['SIM-node-1-0']"
    eventually(lambda: printed in pool.logs(run), "the flow's prints are its logs")

    [nightly] = pool.post("/deployments/filter", {"deployments": {"name": {"any_": ["nightly"]}}})
    assert nightly["schedules"][0]["schedule"]["cron"] == "0 2 * * *"
    assert nightly["job_variables"] == {"gpus": 2, "expected_seconds": 60}
    assert nightly["global_concurrency_limit"]["limit"] == 2


def test_the_environment_table_names_what_a_run_really_has(new_stack: Callable[..., Stack]) -> None:
    named = set(re.findall(r"`((?:CUDA|NVIDIA|GPU_FLOWS)_[A-Z_]+)`", PAGE.read_text()))
    assert len(named) == 9
    pool = Pool(new_stack("2x1"))
    command = "; ".join(f'test -n "${name}" && echo has {name}' for name in sorted(named))
    run = pool.submit(command, gpus=2, may_span_nodes=True)
    assert pool.until(run, "Completed", "Failed", "Crashed")["state"]["name"] == "Completed"
    for name in named:
        eventually(lambda name=name: f"has {name}" in pool.logs(run), f"{name} is set")
