"""`gpu-flows submit --dry-run` beside a worker that answers, and a server that records what it is asked."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line.pool_server import PoolServer
from command_line.run import gpu_flows
from command_line.worker import device, write_status

from gpu_flows.cli.jobs import dry_run
from gpu_flows.config.paths import home, pool_folder
from gpu_flows.forecasting.imagined import IMAGINED, ImaginedJob
from gpu_flows.forecasting.state_file import state_path
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.forecast.pool_state import PoolState
from gpu_flows.schedulers.mirror import Held
from gpu_flows.schedulers.model import NO_PROGRESS, Job
from gpu_flows.schedulers.prediction.estimate import Estimate
from gpu_flows.worker.command_socket import ANSWER_WITHIN_S, NoAnswer, answer_commands, ask_worker

pytest_plugins = ["command_line.fixtures"]

LOG = logging.getLogger("socket")
READS = ("/deployments/filter", "/work_pools/gpu", "/flows/")


def imagine(request: dict[str, Any], number: int) -> ImaginedJob:
    """What the worker answers for a request: a job of the size that it asks for."""
    gpus = request["variables"].get("gpus", 1)
    if gpus > 2:
        return ImaginedJob(None, None, "impossible", "The largest node has 2.", "Ask for 2.")
    job = Job(f"imagined-{number}", time.time(), gpus, name=request["name"] or "command")
    return ImaginedJob(job, Estimate(60, 60, "stated"))


@contextmanager
def answering(folder: Path, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> Iterator[None]:
    """A worker's end of the socket, in a thread."""
    loop = asyncio.new_event_loop()

    async def answer_soon(question: dict[str, Any]) -> dict[str, Any]:
        return answer(question)

    task = loop.create_task(answer_commands(folder, answer_soon, LOG))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    while not (folder / "ask.sock").exists():
        time.sleep(0.01)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        loop.call_soon_threadsafe(lambda: loop.call_soon(loop.stop))
        thread.join(10)
        assert not (folder / "ask.sock").exists()


@pytest.fixture
def questions(pool_server: PoolServer) -> Iterator[list[dict[str, Any]]]:
    """A pool with two devices, of which job `busy` has one for another 100 s; what its worker is asked."""
    asked: list[dict[str, Any]] = []

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        asked.append(question)
        jobs = [imagine(request, number) for number, request in enumerate(question["requests"])]
        return {"jobs": IMAGINED.dump_python(jobs, mode="json")}

    nodes, now = tuple(declare("1x2")), time.time()
    first, second = nodes[0].devices
    write_status(devices=[device(id=each.id, node=each.node, index=each.index) for each in (first, second)])
    busy = Held(Job("busy", now - 60, name="busy"), (first,), now - 50, 1, NO_PROGRESS)
    state = PoolState("gpu", now, "fifo", {}, nodes, (), (busy,), {"busy": Estimate(150, 150, "stated")})
    state_path(pool_folder("gpu")).write_bytes(state.to_json())
    with answering(pool_folder("gpu"), answer):
        yield asked


def list_files(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_dry_run_tells_where_and_when_and_writes_nothing(
    questions: list[dict[str, Any]], pool_server: PoolServer
) -> None:
    before = list_files(home())
    found = gpu_flows("submit", "--dry-run", "--json", "--name", "mine", "--", "true")
    assert found.code == 0, found.err
    answer = found.json
    assert (answer["run"], answer["on"], answer["starts_now"]) == ("mine", "node-1:1", True)
    assert answer["eta"]["end_p50"] == pytest.approx(time.time() + 60, abs=10)
    assert list_files(home()) == before
    assert all(path.startswith(READS) for path, _, _ in pool_server.requests), pool_server.requests
    assert not pool_server.runs
    (request,) = questions[0]["requests"]
    assert request["parameters"]["command"] == "true"


def test_a_job_that_must_wait_is_told_for_whom_and_what_would_help(questions: list[dict[str, Any]]) -> None:
    answer = gpu_flows("submit", "--dry-run", "--json", "--gpus", "2", "--", "true").json
    assert answer["eta"]["start_p50"] == pytest.approx(time.time() + 100, abs=10)
    assert [each["name"] for each in answer["waits_for"]] == ["busy"]
    assert answer["alternatives"][0]["label"] == "on 1 GPU instead of 2"
    assert answer["position"] == 1
    shown = gpu_flows("submit", "--dry-run", "--gpus", "2", "--", "true").out
    assert "busy (until about" in shown
    assert "now on 1 GPU instead of 2" in shown


def test_a_job_that_would_be_refused_is_told_why_and_fails_the_command(
    questions: list[dict[str, Any]],
) -> None:
    found = gpu_flows("submit", "--dry-run", "--gpus", "3", "--", "true")
    assert found.code == 1
    assert "never: it would be refused" in found.out
    assert "The largest node has 2. Ask for 2." in found.out
    answer = gpu_flows("submit", "--dry-run", "--json", "--gpus", "3", "--", "true").json
    assert (answer["refused"], answer["code"], answer["class"]) == (True, "impossible", "never_fits")


def test_the_jobs_of_an_array_are_foreseen_together(questions: list[dict[str, Any]]) -> None:
    answers = gpu_flows("submit", "--dry-run", "--json", "--array", "1-3", "--", "true").json
    starts = sorted(round(each["eta"]["start_p50"] - time.time(), -1) for each in answers)
    assert [each["run"] for each in answers] == ["command[1]", "command[2]", "command[3]"]
    assert starts == [0, 60, 100], "one after the other on the free device, and the last on the other one"
    shown = gpu_flows("submit", "--dry-run", "--array", "1-3", "--", "true").out
    assert shown.count("node-1:") == 3


def test_nothing_is_foreseen_of_unknown_durations(
    questions: list[dict[str, Any]],
) -> None:
    path = state_path(pool_folder("gpu"))
    path.write_bytes(replace(PoolState.from_json(path.read_bytes()), durations={}).to_json())
    answer = gpu_flows("submit", "--dry-run", "--json", "--", "true").json
    assert answer["eta"] is None
    assert "Nothing is known about how long busy takes" in answer["no_forecast"]


def test_without_a_worker_on_this_machine_the_command_says_so(pool_server: PoolServer) -> None:
    found = gpu_flows("submit", "--dry-run", "--", "true")
    assert found.code == 1
    assert "No worker on this machine serves pool 'gpu'" in found.err
    assert not pool_server.runs


def test_a_question_with_nonsense_does_not_stop_the_answers(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        return {"given": question["given"]}

    with pytest.raises(NoAnswer):
        ask_worker(folder, {})
    with answering(folder, answer):
        assert "KeyError" in ask_worker(folder, {})["error"]
        assert ask_worker(folder, {"given": 1}) == {"given": 1}


def test_a_pool_that_takes_too_long_to_simulate_is_given_up(
    questions: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_run, "GIVE_UP_S", -1.0)
    answers = gpu_flows("submit", "--dry-run", "--json", "--array", "1-3", "--gpus", "2", "--", "true").json
    assert [each["no_forecast"] for each in answers] == [dry_run.TOO_FAR] * 3
    assert not any(each["eta"] for each in answers)


def test_clients_that_ask_nothing_or_read_nothing_hold_up_neither_others_nor_the_end(tmp_path: Path) -> None:
    async def answer(question: dict[str, Any]) -> dict[str, Any]:
        return {"long": "x" * 5_000_000}

    async def serve() -> float:
        task = asyncio.ensure_future(answer_commands(tmp_path, answer, LOG))
        while not (tmp_path / "ask.sock").exists():
            await asyncio.sleep(0.01)
        with ExitStack() as clients:
            for question in (b"", b"{}\n", b"[" * 1_000_000 + b"\n", b"no JSON\n"):
                client = clients.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                client.connect(str(tmp_path / "ask.sock"))
                client.setblocking(False)
                await asyncio.get_running_loop().sock_sendall(client, question)
            answered = await asyncio.to_thread(ask_worker, tmp_path, {})
            assert len(answered["long"]) == 5_000_000
            began = time.monotonic()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return time.monotonic() - began

    assert asyncio.run(serve()) < ANSWER_WITHIN_S / 2, "it waits for no client"


def test_a_folder_without_sockets_is_told_once_and_not_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(question: dict[str, Any]) -> dict[str, Any]:
        return {}

    async def serve() -> None:
        task = asyncio.ensure_future(answer_commands(tmp_path / "absent", answer, LOG))
        await asyncio.sleep(0.1)
        assert not task.done()
        task.cancel()

    asyncio.run(serve())
    assert caplog.text.count("cannot ask this worker") == 1
