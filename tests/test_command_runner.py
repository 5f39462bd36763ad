"""Running a command: its output, its failures, and that none of its processes outlives it."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_helpers import STUBBORN, has_ended, python
from prefect.exceptions import TerminationSignal

from gpu_flows.checkpoints import contract
from gpu_flows.flows.command_runner import Command, CommandFailed, Outcome, run_command, split_command
from gpu_flows.flows.output import Output

# ---- output


def test_stdout_and_stderr_arrive_line_by_line_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    script = "import sys; print('one'); print('two', file=sys.stderr); print('three'); print('four', end='')"
    outcome = run_command(Command(python(script)), lines.append)
    assert lines == ["one", "two", "three", "four"]
    assert (outcome.exit_code, outcome.lines) == (0, 4)
    assert capfd.readouterr().out == "one\ntwo\nthree\nfour"


def test_a_command_gets_its_directory_and_environment(tmp_path: Path) -> None:
    lines: list[str] = []
    wanted = Command(["/bin/sh", "-c", "pwd; echo $COLOUR; echo $HOME"], str(tmp_path), {"COLOUR": "green"})
    run_command(wanted, lines.append)
    assert lines == [str(tmp_path.resolve()), "green", os.environ["HOME"]]


def test_excess_lines_are_omitted_and_counted(capfd: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    outcome = run_command(Command(python("for i in range(100_000): print('line', i)")), lines.append)
    assert outcome.lines == 100_000
    left_out = [
        int(m[1].replace(",", "")) for line in lines if (m := re.match(r"\[([\d,]+) lines omitted", line))
    ]
    shown = [line for line in lines if line.startswith("line ")]
    assert len(shown) + sum(left_out) == 100_000
    assert len(lines) < 5_000
    assert lines[0] == "line 0"
    assert lines[-10:] == [f"line {number}" for number in range(99_990, 100_000)]
    assert capfd.readouterr().out.count("\n") == 100_000


def test_unprintable_characters_and_long_lines_are_cleaned() -> None:
    lines: list[str] = []
    output = Output(lines.append)
    for chunk in (b"\x1b[31mred\x1b[0m\r", b"\nnul\x00 \xff\n\n", b"x" * 10_000, b"\nhal", b"f\n"):
        output.feed(chunk)
    output.close()
    assert lines == ["red", "nul \ufffd", "x" * 4_000 + " ...", "half"]


def test_a_progress_bar_is_shown_every_few_seconds_and_at_its_end() -> None:
    lines: list[str] = []
    now = 0.0
    output = Output(lines.append, clock=lambda: now)
    for percent in range(100):
        now = percent / 10
        output.feed(f"\r{percent}%".encode())
    output.feed(b"\rdone\n")
    output.close()
    assert lines == ["0%", "50%", "done"]


def test_lines_are_shown_again_after_a_burst() -> None:
    lines: list[str] = []
    now = 0.0
    output = Output(lines.append, clock=lambda: now)
    output.feed(b"flood\n" * 800)
    now = 60.0
    output.feed(b"calm\n" * 3)
    output.close()
    assert lines[:500] == ["flood"] * 500
    assert lines[500:] == [
        "[300 lines omitted here; the job's log file has them all]",
        "calm",
        "calm",
        "calm",
    ]


def test_a_full_disk_does_not_stop_a_command() -> None:
    lines: list[str] = []
    stdout, full = os.dup(1), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, 1)
    try:
        assert run_command(Command(["echo", "hello"]), lines.append).exit_code == 0
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
        os.close(full)
    assert lines == ["hello"]


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (Outcome(3, 1.0, 2, ("a", "b")), "exit code 3.\nIts last lines:\na\nb"),
        (Outcome(127, 1.0, 0), "exit code 127, most likely: not found."),
        (Outcome(-9, 1.0, 0), "killed for lack of memory"),
        (Outcome(-11, 1.0, 0), "ended by signal 11 (Segmentation fault)"),
        (Outcome(-9, 7.0, 0, timed_out=True), "stopped: its timeout was over after 7 s."),
    ],
)
def test_a_failure_is_explained(outcome: Outcome, message: str) -> None:
    assert message in outcome.explain()


def test_a_command_that_cannot_start_reports_why(tmp_path: Path) -> None:
    plain_file = tmp_path / "script.py"
    plain_file.write_text("print(1)")
    for refused, message in [
        (Command(["no-such-command-anywhere"]), "'no-such-command-anywhere' cannot be run here.*Install it"),
        (Command([str(plain_file)]), "Permission denied. Make it executable"),
        (
            Command(["true"], working_directory=str(tmp_path / "absent")),
            "working directory .*absent does not exist",
        ),
        (Command(["echo", "a\0b"]), "embedded null byte. Check the command line"),
    ]:
        with pytest.raises(CommandFailed, match=message):
            run_command(refused, print)
    with pytest.raises(CommandFailed, match="is empty"):
        split_command("  ")
    with pytest.raises(CommandFailed, match="Check its quotes: echo 'a"):
        split_command("echo 'a")


def test_command_lines_are_split_like_a_shell_does() -> None:
    assert split_command("python -c 'print(1)' --x=\"a b\"") == ["python", "-c", "print(1)", "--x=a b"]
    assert split_command("echo $HOME | wc", shell=True) == ["/bin/sh", "-c", "echo $HOME | wc"]


# ---- stopping


@pytest.fixture
def interrupt() -> Iterator[signal.Signals]:
    """A signal that ends a run the way Prefect's SIGTERM does, without ending pytest."""

    def terminate(number: int, frame: object) -> None:
        raise TerminationSignal(signal=signal.SIGTERM)

    before = signal.signal(signal.SIGUSR1, terminate)
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)


def test_an_interruption_stops_all_processes_of_the_command(interrupt: signal.Signals) -> None:
    lines: list[str] = []

    def emit(line: str) -> None:
        lines.append(line)
        if line == "ready":
            os.kill(os.getpid(), interrupt)
        if line.startswith("[stopping"):
            os.kill(os.getpid(), interrupt)  # a second signal must not cut the clean-up short

    with pytest.raises(TerminationSignal):
        run_command(Command(python(STUBBORN), grace_seconds=0.3), emit)
    pids = [int(line.split()[1]) for line in lines if line.startswith("pid ")]
    assert len(pids) == 4
    assert all(has_ended(pid) for pid in pids)


def test_a_command_can_print_and_save_during_its_grace_period(
    interrupt: signal.Signals, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    script = f"""
        import signal, sys, time
        def save(*_):
            for number in range(20_000):  # more than a pipe holds
                print("saving", number)
            open({str(checkpoint)!r}, "w").write("saved")
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("ready", flush=True)
        time.sleep(1000)
    """
    with pytest.raises(TerminationSignal):
        run_command(
            Command(python(script), grace_seconds=60),
            lambda line: os.kill(os.getpid(), interrupt) if line == "ready" else None,
        )
    assert checkpoint.read_text() == "saved"


@pytest.mark.parametrize("code", [0, 85, 1])
def test_a_preempted_command_finishes_or_is_requeued(
    interrupt: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Exit code 0 means that it has finished; others requeue it. 85 states that it saved a checkpoint."""
    monkeypatch.setattr("gpu_flows.flows.command_runner.announced_intent", lambda: "reschedule")
    monkeypatch.setenv("GPU_FLOWS_CHECKPOINT_DIR", str(tmp_path))
    monkeypatch.setenv("GPU_FLOWS_ATTEMPT", "job.3")
    script = f"trap 'exit {code}' TERM; echo ready; sleep 1000 & wait $!"

    def run() -> Outcome:
        return run_command(
            Command(["/bin/sh", "-c", script], grace_seconds=60),
            lambda line: os.kill(os.getpid(), interrupt) if line == "ready" else None,
        )

    if code == 0:
        assert run().exit_code == 0
    else:
        with pytest.raises(TerminationSignal):
            run()
    recorded = [(entry.event, entry.attempt) for entry in contract.read_journal(tmp_path)]
    assert recorded == ([("left", 3)] if code == 85 else [])


def test_processes_that_outlive_the_command_are_stopped() -> None:
    lines: list[str] = []
    outcome = run_command(Command(["/bin/sh", "-c", "sleep 1000 & echo $!"], grace_seconds=5), lines.append)
    assert outcome.exit_code == 0
    assert has_ended(int(lines[0]))
    assert lines[1].startswith("[stopping 1 process(es) that the command left behind")


def test_a_timeout_stops_the_command() -> None:
    outcome = run_command(Command(["sleep", "1000"], timeout_seconds=0.2, grace_seconds=5), print)
    assert outcome.timed_out
    assert outcome.exit_code == -signal.SIGTERM


def test_a_failing_reader_does_not_affect_the_command() -> None:
    pids: list[int] = []

    def emit(line: str) -> None:
        pids.extend(int(word) for word in line.split() if not pids)
        raise OSError("the reader has failed")

    script = "sleep 1000 & echo $!; exit 4"
    outcome = run_command(Command(["/bin/sh", "-c", script], grace_seconds=5), emit)
    assert outcome.exit_code == 4
    assert has_ended(pids[0])
