"""The helpers that every package may use."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pydantic import BaseModel, Field, ValidationError, model_validator

from gpu_flows.common.discovery import classes_in
from gpu_flows.common.files import write_atomically
from gpu_flows.common.forms import Form, label
from gpu_flows.common.retry import Backoff, retry, retry_blocking, wait_until
from gpu_flows.common.validation import explain

# -- retry ---------------------------------------------------------------------------------------


class Flaky:
    """A call that raises the given errors, one per call, and then returns its number of calls."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.calls = list(errors), 0

    def __call__(self) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.calls

    async def later(self) -> int:
        return self()


def is_timeout(error: Exception) -> bool:
    return isinstance(error, TimeoutError)


def run_async(flaky: Flaky, backoff: Backoff, **more: Any) -> int:
    return asyncio.run(retry(flaky.later, backoff, is_timeout, **more))


def run_blocking(flaky: Flaky, backoff: Backoff, **more: Any) -> int:
    return retry_blocking(flaky, backoff, is_timeout, **more)


both = pytest.mark.parametrize("run", [run_async, run_blocking])
NO_PAUSE = Backoff(first_s=0.0)


@both
def test_a_temporary_error_is_retried_and_reported(run: Callable[..., int]) -> None:
    first, second, seen = TimeoutError("one"), TimeoutError("two"), list[Exception]()
    assert run(Flaky(first, second), NO_PAUSE, on_retry=seen.append) == 3
    assert seen == [first, second]


@both
def test_a_permanent_error_is_raised_immediately(run: Callable[..., int]) -> None:
    flaky = Flaky(ValueError("wrong"), TimeoutError())
    with pytest.raises(ValueError, match="wrong"):
        run(flaky, NO_PAUSE)
    assert flaky.calls == 1


@both
def test_the_last_attempt_raises_its_error(run: Callable[..., int]) -> None:
    flaky = Flaky(*(TimeoutError(str(number)) for number in range(9)))
    with pytest.raises(TimeoutError, match="2"):
        run(flaky, Backoff(first_s=0.0, attempts=3))
    assert flaky.calls == 3


def test_retries_pause_between_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    assert run_blocking(Flaky(TimeoutError(), TimeoutError()), Backoff(first_s=1.0, factor=3.0)) == 3
    assert pauses == [1.0, 3.0]


def test_a_cancelled_task_is_not_retried() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(retry(cancelled, NO_PAUSE, lambda error: True))


@pytest.mark.parametrize(
    ("backoff", "pauses"),
    [
        (Backoff(first_s=2.0), [2.0] * 5),
        (Backoff(first_s=1.0, factor=2.0, most_s=5.0), [1.0, 2.0, 4.0, 5.0, 5.0]),
        (Backoff(first_s=9.0, most_s=5.0), [5.0] * 5),
        (Backoff(first_s=1.0, attempts=3), [1.0, 1.0]),
        (Backoff(attempts=1), []),
    ],
)
def test_pauses_grow_up_to_their_limit(backoff: Backoff, pauses: list[float]) -> None:
    assert list(islice(backoff.pauses(), 5)) == pauses


def test_wait_until_returns_the_value_or_gives_up() -> None:
    values = iter(["", "", "ready", "later"])
    assert wait_until(lambda: next(values), timeout_s=10, every_s=0.0) == "ready"
    assert wait_until(lambda: True, timeout_s=0) is True, "the condition is checked even without time"
    began = time.monotonic()
    assert wait_until(lambda: "", timeout_s=0.02, every_s=0.001) == ""
    assert time.monotonic() - began >= 0.02


# -- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("content", ["new text \N{SNOWMAN}", b"\x00\xff"])
def test_the_content_is_replaced(tmp_path: Path, content: str | bytes, durable: bool) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    write_atomically(path, content, durable=durable, mode=0o600)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"], "no temporary file remains"


def test_two_writers_do_not_disturb_each_other(tmp_path: Path) -> None:
    path, errors = tmp_path / "file", []
    versions = {letter * 50_000 for letter in "abcd"}

    def write(version: str) -> None:
        try:
            for _ in range(50):
                write_atomically(path, version)
        except OSError as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(version,)) for version in versions]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not errors
    assert path.read_text() in versions
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_readers_never_see_a_partial_file(tmp_path: Path) -> None:
    path, done = tmp_path / "file", threading.Event()
    versions = {letter * 200_000 for letter in "ab"}
    path.write_text(min(versions))

    def write() -> None:
        for _ in range(50):
            for version in versions:
                write_atomically(path, version)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert path.read_text() in versions
    writer.join()


def test_a_failed_write_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=OSError("the disk is full")))
    with pytest.raises(OSError, match="the disk is full"):
        write_atomically(path, "new", durable=True)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"], "no temporary file remains"


# -- validation and forms ------------------------------------------------------------------------


class Inner(BaseModel):
    size: int = Field(gt=0)


class Outer(Form):
    may_span_nodes: bool = False
    """Whether devices of several nodes may be combined."""
    inner: Inner | None = None

    @model_validator(mode="after")
    def check(self) -> Outer:
        if self.may_span_nodes and self.inner:
            raise ValueError("not both")
        return self


def invalid(data: dict[str, Any]) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(data)
    return caught.value


def test_validation_errors_become_one_line() -> None:
    error = invalid({"may_span_nodes": "perhaps", "inner": {"size": 0}})
    first, second = explain(error).split("; ")
    assert first.startswith("may_span_nodes: Input should be a valid boolean")
    assert second == "inner.size: Input should be greater than 0"
    assert explain(error, depth=1).split("; ")[1].startswith("inner: ")
    misspelled = [{"type": "extra_forbidden", "loc": ("gpu",), "input": 1}]
    unknown = ValidationError.from_exception_data("Outer", misspelled)  # type: ignore[arg-type]
    assert explain(unknown) == "gpu: there is no such name"
    assert explain(unknown, known=["gpus"]) == "gpu: there is no such name. Did you mean 'gpus'?"
    both_given = invalid({"may_span_nodes": True, "inner": {"size": 1}})
    assert explain(both_given) == "Value error, not both"
    assert explain(both_given, whole="options") == "options: Value error, not both"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("may_span_nodes", "May span nodes"),
        ("gpus", "GPUs"),
        ("gpu_memory_gb", "GPU memory gb"),
        ("min_gpus", "Min GPUs"),
        ("", ""),
    ],
)
def test_labels_read_like_text(name: str, text: str) -> None:
    assert label(name) == text


def test_a_form_takes_labels_and_descriptions_from_the_code() -> None:
    field = Outer.model_json_schema()["properties"]["may_span_nodes"]
    assert field["title"] == "May span nodes"
    assert field["description"] == "Whether devices of several nodes may be combined."


# -- discovery -----------------------------------------------------------------------------------


class Shape(ABC):
    @abstractmethod
    def area(self) -> float: ...


def test_classes_are_found_where_they_are_defined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "found_shapes"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "base.py").write_text(
        "from tests.test_common import Shape\nclass Rounded(Shape): ...\nclass Other: ...\n"
    )
    (package / "circle.py").write_text(
        "from found_shapes.base import Rounded\nclass Circle(Rounded):\n    def area(self): return 3.0\n"
    )
    (package / "disc.py").write_text("from found_shapes.circle import Circle\nclass Disc(Circle): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "tests.test_common", sys.modules[__name__])
    found = [kind.__name__ for kind in classes_in("found_shapes", Shape)]
    assert found == ["Circle", "Disc"], "each once; neither abstract, imported nor unrelated classes"
