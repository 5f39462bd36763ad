"""Only a test that fails for the environment's sake is run again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = """
    from pathlib import Path
    import pytest
    from environment import EnvironmentalFailure

    def first_time(name):
        path = Path({folder!r}, name)
        seen = path.exists()
        path.touch()
        return not seen

    @pytest.fixture
    def engine():
        if first_time("engine"):
            raise EnvironmentalFailure("the engine does not answer")

    def test_that_needs_an_engine(engine):
        pass

    def test_with_a_race():
        assert not first_time("race")

    def test_with_an_error():
        if first_time("error"):
            raise TimeoutError("ours")
"""


def test_a_failed_assertion_stands_and_a_late_engine_gets_a_second_try(tmp_path: Path) -> None:
    file = tmp_path / "test_some.py"
    file.write_text("\n".join(line[4:] for line in TESTS.format(folder=str(tmp_path)).splitlines()))
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), "-o", f"pythonpath={ROOT / 'tests'}", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 failed, 1 passed, 1 rerun" in done.stdout, done.stdout
    assert "1 run again, because a server, engine or browser did not start" in done.stdout
