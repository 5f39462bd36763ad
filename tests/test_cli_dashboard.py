"""`gpu-flows dashboard` as a command: what it says when it cannot serve; answers kept for many clients."""

from __future__ import annotations

import asyncio
import socket
from importlib import util

import pytest
from command_line.run import expect_error, gpu_flows
from command_line.server import FakeServer
from command_line.worker import write_status

from gpu_flows.cli import charts
from gpu_flows.dashboard.answers import Answers
from gpu_flows.dashboard.questions import QuestionError, ask_process

pytest_plugins = ["command_line.fixtures"]
pytestmark = pytest.mark.usefixtures("own_home")


def test_a_port_in_use_is_an_error_with_a_way_out() -> None:
    write_status()
    with socket.create_server(("127.0.0.1", 0)) as other:
        error = expect_error(gpu_flows("dashboard", "--port", str(other.getsockname()[1])), code=1)
    assert "Address already in use" in error
    assert "--port" in error


def test_an_unknown_pool_is_an_error(fake: FakeServer) -> None:
    assert "has no work pool 'nowhere'" in expect_error(gpu_flows("dashboard", "--pool", "nowhere"), code=1)


def test_without_plotly_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "find_spec", lambda name: None if name == "plotly" else util.find_spec(name))
    error = expect_error(gpu_flows("dashboard"), code=1)
    assert "needs plotly" in error
    assert "pip install 'gpu-flows[charts]'" in error


def test_there_is_no_option_to_serve_other_machines() -> None:
    assert "No such option: --host" in gpu_flows("dashboard", "--host", "0.0.0.0").err


def test_many_who_ask_cost_one_answer() -> None:
    asked = 0

    async def compute() -> str:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.05)
        return "found"

    async def ask_often() -> list[str]:
        answers = Answers(2, (QuestionError,))
        found = await asyncio.gather(*(answers.wait("key", compute, 60.0) for _ in range(50)))
        assert (await answers.wait("key", compute, 60.0)).value == "found"
        return [answer.value for answer in found]

    assert asyncio.run(ask_often()) == ["found"] * 50
    assert asked == 1


def test_an_old_answer_is_shown_while_it_is_renewed_and_few_are_computed_at_once() -> None:
    running = most = count = 0

    async def compute() -> int:
        nonlocal running, most, count
        running += 1
        most, count = max(most, running), count + 1
        await asyncio.sleep(0.02)
        running -= 1
        return count

    async def ask() -> None:
        answers = Answers(2, (QuestionError,))
        await asyncio.gather(*(answers.wait(key, compute, 60.0) for key in range(8)))
        assert most == 2
        first = (await answers.wait("key", compute, 0.0)).value
        old = await answers.wait("key", compute, 0.0)
        assert (old.value, old.is_pending) == (first, True)
        assert old.task
        await old.task
        assert old.value == first + 1
        await answers.close()

    asyncio.run(ask())


def test_an_error_is_an_answer() -> None:
    async def ask() -> str:
        answers = Answers(1, (QuestionError,))

        async def fail() -> str:
            raise QuestionError("It is not known.")

        return (await answers.wait("key", fail, 60.0)).error

    assert asyncio.run(ask()) == "It is not known."


def test_a_question_that_takes_too_long_is_stopped() -> None:
    question = {"ask": "job", "state": "/nowhere", "job": "x", "budget_s": 1.0}
    with pytest.raises(QuestionError, match=r"within 0\.001 s"):
        asyncio.run(ask_process(question, 0.001))
    with pytest.raises(QuestionError, match="does not write the state"):
        asyncio.run(ask_process(question, 60.0))
