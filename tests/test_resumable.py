"""A plain training loop that is stopped resumes with the same results as an uninterrupted one."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs gpu-flows[train]")
import numpy  # noqa: E402

from gpu_flows.checkpoints import CheckpointError, Resumable, contract, resumable, store  # noqa: E402
from gpu_flows.checkpoints.store import CheckpointStore, ContentWriter  # noqa: E402
from gpu_flows.training.adam import Adam  # noqa: E402

SAVE_ALWAYS = 0.0
NEVER = float("inf")


class Stopped(BaseException):
    """Raised by the previous handler of SIGTERM, as Prefect's engine raises its own."""


@pytest.fixture(autouse=True)
def sigterm() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Stopped

    before = signal.signal(signal.SIGTERM, stop)
    yield
    signal.signal(signal.SIGTERM, before)


class Loop:
    """A small training that uses every random number generator."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        random.seed(0)
        numpy.random.seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        self.optimizer = Adam(self.model.parameters(), 0.01)

    def run(
        self,
        directory: Path | None,
        steps: int = 12,
        every_s: float = NEVER,
        interrupt: Callable[[Resumable], None] = lambda run: None,
    ) -> dict[str, Any]:
        checkpoints = resumable(directory, every_s=every_s, model=self.model, optimizer=self.optimizer)
        with checkpoints as run:
            for _ in run.steps(steps):
                self.optimizer.zero_grad()
                scale = random.random() + numpy.random.rand()
                loss = self.model(scale * torch.randn(8, 4)).square().mean()
                loss.backward()
                interrupt(run)
                self.optimizer.step()
                run.values["losses"] = [*run.values.get("losses", []), loss.item()]
            return dict(run.values)

    def weights(self) -> list[float]:
        return [number for tensor in self.model.parameters() for number in tensor.flatten().tolist()]


def sigterm_at(at_step: int) -> Callable[[Resumable], None]:
    def interrupt(run: Resumable) -> None:
        if run.step == at_step:
            assert not run.should_stop
            os.kill(os.getpid(), signal.SIGTERM)
            assert run.should_stop

    return interrupt


def fail_at(at_step: int) -> Callable[[Resumable], None]:
    def interrupt(run: Resumable) -> None:
        if run.step == at_step:
            raise RuntimeError("a bug")

    return interrupt


def events(directory: Path) -> list[tuple[str, int]]:
    return [(entry.event, entry.step) for entry in contract.read_journal(directory)]


def test_a_stopped_loop_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole = Loop()
    expected = whole.run(None)

    for stop_after in (3, 7):
        with pytest.raises(Stopped):
            Loop().run(tmp_path, interrupt=sigterm_at(stop_after))
    last = Loop()
    assert last.run(tmp_path) == expected
    assert last.weights() == whole.weights()
    # The step in which SIGTERM arrives is completed first, so nothing is lost or repeated.
    assert events(tmp_path) == [
        *[("saved", 4), ("left", 4)],
        *[("restored", 4), ("saved", 8), ("left", 8)],
        ("restored", 8),
    ]


def test_a_crash_loses_only_the_steps_after_the_last_checkpoint(tmp_path: Path) -> None:
    whole = Loop()
    expected = whole.run(None)

    with pytest.raises(RuntimeError, match="bug"):
        Loop().run(tmp_path, every_s=SAVE_ALWAYS, interrupt=fail_at(5))
    again = Loop()
    assert again.run(tmp_path) == expected
    assert again.weights() == whole.weights()
    assert events(tmp_path)[-2:] == [("saved", 5), ("restored", 5)]


def test_checkpoints_are_saved_at_their_interval(tmp_path: Path) -> None:
    now = 0.0
    loop = Loop()
    checkpoints = resumable(tmp_path, every_s=60, clock=lambda: now, model=loop.model)
    with checkpoints as run:
        for _ in run.steps(10):
            now += 25
    assert events(tmp_path) == [("saved", 3), ("saved", 6), ("saved", 9)]


def test_the_journal_records_attempt_duration_and_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(contract.ATTEMPT, "a-run.3")
    with pytest.raises(Stopped):
        Loop().run(tmp_path, interrupt=sigterm_at(2))
    saved, left = contract.read_journal(tmp_path)
    (checkpoint,) = tmp_path.glob("checkpoint-*.pt")
    assert saved.attempt == left.attempt == 3
    assert saved.bytes == checkpoint.stat().st_size
    assert 0 < saved.seconds <= left.seconds  # stopping includes saving
    assert saved.time <= left.time


def test_the_directory_comes_from_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(contract.DIRECTORY, str(tmp_path))
    with resumable(model=torch.nn.Linear(1, 1)) as run:
        assert run.save()
    assert events(tmp_path) == [("saved", 0)]


def test_without_a_directory_nothing_is_saved_and_sigterm_is_not_handled() -> None:
    with resumable(model=torch.nn.Linear(1, 1)) as run:
        assert not run.save()
        with pytest.raises(Stopped):
            os.kill(os.getpid(), signal.SIGTERM)
        assert list(run.steps(3)) == [0, 1, 2]


def test_a_stop_request_after_the_last_step_still_saves_and_exits(tmp_path: Path) -> None:
    loop = Loop()
    with pytest.raises(Stopped), resumable(tmp_path, model=loop.model) as run:  # noqa: PT012
        list(run.steps(3))
        os.kill(os.getpid(), signal.SIGTERM)
    assert events(tmp_path) == [("saved", 3), ("left", 3)]


def test_a_stop_request_during_the_restore_exits_without_saving_again(tmp_path: Path) -> None:
    with resumable(tmp_path, model=torch.nn.Linear(1, 1)) as run:
        list(run.steps(3))
        run.save()

    class Slow(torch.nn.Linear):
        def load_state_dict(self, *args: Any, **options: Any) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            return super().load_state_dict(*args, **options)

    with pytest.raises(Stopped), resumable(tmp_path, model=Slow(1, 1)):
        raise AssertionError("the block must not run")
    assert events(tmp_path)[1:] == [("restored", 3), ("left", 3)]


def test_the_previous_sigterm_handler_is_restored_at_every_kind_of_end(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    Loop().run(tmp_path, steps=1)
    assert signal.getsignal(signal.SIGTERM) is before
    with pytest.raises(RuntimeError, match="bug"):
        Loop().run(tmp_path, interrupt=fail_at(1))
    assert signal.getsignal(signal.SIGTERM) is before
    with pytest.raises(Stopped):
        Loop().run(tmp_path, interrupt=sigterm_at(1))
    assert signal.getsignal(signal.SIGTERM) is before


def test_in_another_thread_it_saves_but_does_not_handle_sigterm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    thread = threading.Thread(target=Loop().run, args=(tmp_path, 2, SAVE_ALWAYS))
    thread.start()
    thread.join()
    assert events(tmp_path) == [("saved", 1), ("saved", 2)]
    assert "only a main thread can install a handler" in caplog.text


SCRIPT = """
    import os, signal, sys, time, torch
    from gpu_flows.checkpoints import resumable
    with resumable(sys.argv[1], model=torch.nn.Linear(1, 1)) as run:
        for step in run.steps(10):
            if step == 3:
                {at_step_3}
                os.kill(os.getpid(), signal.SIGTERM)
    print("not reached")
"""


@pytest.mark.parametrize(
    ("at_step_3", "code", "journal"),
    [
        ("pass", contract.CHECKPOINTED, [("saved", 4), ("left", 4)]),
        # If it cannot save, the exit code must not claim that it has.
        ("os.fsync = lambda file: (_ for _ in ()).throw(OSError('disk full'))", -signal.SIGTERM, []),
        # A forked child that inherits the handler still ends by SIGTERM.
        (
            "ready, alive = os.pipe(); child = os.fork(); "
            "child or (os.write(alive, b'!'), [time.sleep(0.01) for _ in iter(int, 1)]); os.read(ready, 1); "
            "os.kill(child, signal.SIGTERM); assert os.waitpid(child, 0)[1] == signal.SIGTERM",
            contract.CHECKPOINTED,
            [("saved", 4), ("left", 4)],
        ),
    ],
)
def test_the_exit_code_of_a_script_states_whether_it_has_saved(
    tmp_path: Path, at_step_3: str, code: int, journal: list[tuple[str, int]]
) -> None:
    script = textwrap.dedent(SCRIPT.format(at_step_3=at_step_3))
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert events(tmp_path) == journal


@pytest.mark.parametrize("full_after", [0, 1, 5, 9])
def test_training_continues_on_a_full_disk(
    full_after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class FullDisk(ContentWriter):
        def __init__(self, file: Any) -> None:
            super().__init__(self)  # type: ignore[arg-type]
            self.disk, self.remaining = file, full_after
            self._file = SimpleNamespace(write=self.write_some)  # type: ignore[assignment]

        def write_some(self, some: bytes) -> int:
            self.remaining -= 1
            if self.remaining < 0:
                raise OSError("no space left on device")
            return int(self.disk.write(some))

    with monkeypatch.context() as patched:
        patched.setattr(store, "ContentWriter", FullDisk)
        Loop().run(tmp_path, every_s=SAVE_ALWAYS, steps=2)
    assert "no checkpoint at step 1: no space left on device. Make room" in caplog.text
    assert list(tmp_path.iterdir()) == []


# ---- checkpoints that do not fit or are not safe


def test_a_checkpoint_of_another_training_is_an_error(tmp_path: Path) -> None:
    with resumable(tmp_path, model=torch.nn.Linear(2, 2)) as run:
        run.save()
    with pytest.raises(
        CheckpointError, match=r"does not fit this training: .*size mismatch.* another directory"
    ):
        resumable(tmp_path, model=torch.nn.Linear(3, 3)).__enter__()
    with pytest.raises(CheckpointError, match=r"it holds \['model'\], and this loop has \['net'\]"):
        resumable(tmp_path, net=torch.nn.Linear(2, 2)).__enter__()
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL


def test_a_state_that_cannot_be_loaded_again_is_an_error_at_the_first_checkpoint(tmp_path: Path) -> None:
    with resumable(tmp_path, model=torch.nn.Linear(1, 1)) as run:
        run.values["where"] = Path("/")
        with pytest.raises(
            CheckpointError, match=r"could not be loaded again: .* Keep numbers, text, tensors"
        ):
            run.save()
        run.values["where"] = lambda: None
        with pytest.raises(CheckpointError, match=r"cannot be saved: .* Keep numbers, text, tensors"):
            run.save()


class Executes:
    """Pickles to a command that creates a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("wrap", [pickle.dumps, "torch.save"])
def test_no_pickle_is_executed_even_in_a_file_with_a_valid_header(tmp_path: Path, wrap: Any) -> None:
    directory, mark = tmp_path / "checkpoints", tmp_path / "executed"
    loop = Loop()
    loop.run(directory, steps=2, every_s=SAVE_ALWAYS)
    state = {"step": 9, "values": Executes(mark), "random": [], "things": {}}
    if wrap == "torch.save":
        CheckpointStore(directory).save(lambda content: torch.save(state, content))
    else:
        CheckpointStore(directory).save(lambda content: content.write(wrap(state)) and None)
    (directory / "checkpoint-000000000009.pt").write_bytes(pickle.dumps(state))
    with resumable(directory, model=loop.model, optimizer=loop.optimizer) as run:
        assert run.step == 2
    assert not mark.exists()


def test_a_wrapped_model_is_saved_without_its_wrapper(tmp_path: Path) -> None:
    """A job may resume with another number of devices."""
    model = torch.nn.Linear(2, 2)
    with resumable(tmp_path, model=torch.nn.DataParallel(model)) as run:
        run.save()
    other = torch.nn.Linear(2, 2)
    with resumable(tmp_path, model=other):
        assert torch.equal(other.weight, model.weight)


def test_several_processes_without_a_process_group_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(CheckpointError, match=r"Call torch\.distributed\.init_process_group before"):
        resumable(tmp_path, model=torch.nn.Linear(1, 1)).__enter__()


def test_the_package_imports_neither_torch_nor_prefect() -> None:
    script = (
        "import sys, gpu_flows.checkpoints\n"
        "assert not {'torch', 'prefect', 'numpy', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
