"""`gpu-flows policy`: what it shows of a policy and its protection, and what it saves."""

from __future__ import annotations

from typing import Any

import pytest
from command_line.run import expect_error, gpu_flows
from command_line.server import FakeServer
from command_line.worker import write_status

from gpu_flows.blocks import GpuScheduler
from gpu_flows.schedulers.policy import make_policy, policies

pytest_plugins = ["command_line.fixtures"]

BLOCK = "/block_types/slug/gpu-scheduler/block_documents/name/default"
OPTIONS = make_policy("round_robin").options.model_dump(mode="json")


@pytest.fixture
def pool(fake: FakeServer) -> FakeServer:
    """A pool with round_robin in its block and in force."""
    fake.answers["/work_pools/gpu"] = 200, {"base_job_template": {}}
    fake.answers["/block_documents/7"] = 204, None
    save(fake, {"policy": "round_robin", "protection": {"min_run_seconds": 90, "most_preemptions": 3}})
    serve("round_robin", OPTIONS)
    return fake


def save(fake: FakeServer, data: dict[str, Any]) -> None:
    schema = {"fields": GpuScheduler.model_json_schema()}
    document = {"id": "7", "data": data, "block_schema": schema, "updated": "2026-01-01T00:00:00Z"}
    fake.answers[BLOCK] = 200, document


def serve(name: str, options: dict[str, Any]) -> None:
    saved = "2026-01-01T00:00:00+00:00"
    write_status(policy={"name": name, "options": options, "serving": name, "error": "", "saved": saved})


def show() -> str:
    return " ".join(gpu_flows("policy", "show").out.split())


def test_the_rule_the_options_and_the_protection_are_shown_once(pool: FakeServer) -> None:
    shown = show()
    assert policies()["round_robin"].rule() in shown
    assert shown.count("wait_for_turn=false") == 1
    assert "in block" not in shown
    assert "No job is preempted before it has run for 90 s, and not more than 3 times." in shown


def test_what_the_block_says_is_shown_if_it_is_not_in_force(pool: FakeServer) -> None:
    serve("fifo", make_policy("fifo").options.model_dump(mode="json"))
    shown = show()
    assert "in block round_robin" in shown
    assert "in force fifo" in shown
    assert policies()["fifo"].rule() in shown


def test_the_protection_can_be_set(pool: FakeServer) -> None:
    result = gpu_flows("policy", "set", "round_robin", "--protect", "2m")
    assert result.code == 0, result.err
    [saved] = [body["data"] for path, _, body in pool.requests if path == "/block_documents/7"]
    assert saved["protection"] == {"min_run_seconds": 120, "most_preemptions": 3}
    assert saved["policy"] == "round_robin"
    assert "is no duration" in gpu_flows("policy", "set", "fifo", "--protect", "long").err


def test_a_misspelled_option_is_explained_in_plain_words() -> None:
    error = " ".join(expect_error(gpu_flows("policy", "set", "round_robin", "-o", "wait_for_trun=1")).split())
    assert "wait_for_trun: there is no such name. Did you mean 'wait_for_turn'?" in error


# --- shadows ---


def saved_in(fake: FakeServer) -> dict[str, Any]:
    [saved] = [body["data"] for path, _, body in fake.requests if path == "/block_documents/7"]
    return dict(saved)


def serve_with(*shadows: str, error: str = "") -> None:
    told = [{"name": name, "plans": not error, "error": error} for name in shadows]
    saved = "2026-01-01T00:00:00+00:00"
    policy = {
        "name": "round_robin",
        "options": OPTIONS,
        "serving": "round_robin",
        "error": "",
        "saved": saved,
    }
    write_status(policy={**policy, "shadows": told, "shadows_error": ""})


def test_a_shadow_is_added_with_its_options(pool: FakeServer) -> None:
    save(pool, {"policy": "round_robin", "shadows": ["gone"], "options": {"round_robin": {"skip": 1}}})
    serve_with("gone", "tiresias")
    result = gpu_flows("policy", "shadow", "add", "tiresias", "-o", "quantum=600", "--json")
    assert result.code == 0, result.err
    assert result.json["in_force"]
    saved = saved_in(pool)
    assert (saved["policy"], saved["shadows"]) == ("round_robin", ["gone", "tiresias"])
    assert saved["options"]["tiresias"]["quantum"] == 600
    assert saved["options"]["round_robin"] == {"skip": 1}, "the rest stays, valid or not"


def test_a_shadow_that_does_not_plan_is_told(pool: FakeServer) -> None:
    serve_with("srtf", error="it did not plan within 1 s")
    result = gpu_flows("policy", "shadow", "add", "srtf")
    assert result.code == 0
    assert "srtf does not plan: it did not plan within 1 s" in result.err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("shadow", "add", "sfj"), "There is no policy 'sfj'. Did you mean 'sjf'?"),
        (("shadow", "add", "srtf", "-o", "bye=time"), "Did you mean 'by'?"),
        (
            ("shadow", "add", "round_robin"),
            "Policy 'round_robin' decides in this pool; a shadow is another one.",
        ),
        (("shadow", "remove", "srtf"), "has no shadow 'srtf'. It has none."),
        (("promote", "srtf"), "Add it: gpu-flows policy shadow add srtf"),
    ],
)
def test_what_cannot_be_a_shadow_is_explained(pool: FakeServer, words: tuple[str, ...], error: str) -> None:
    assert error in " ".join(expect_error(gpu_flows("policy", *words)).split())
    assert not [path for path, _, _ in pool.requests if path == "/block_documents/7"]


def test_a_shadow_is_removed_and_its_options_stay(pool: FakeServer) -> None:
    options = {"srtf": {"by": "service"}}
    save(pool, {"policy": "round_robin", "shadows": ["sjf", "srtf"], "options": options})
    serve_with("sjf")
    assert gpu_flows("policy", "shadow", "remove", "srtf", "--json").json["shadows"] == ["sjf"]
    assert saved_in(pool) == {"policy": "round_robin", "shadows": ["sjf"], "options": options}


def test_a_promotion_is_one_save(pool: FakeServer) -> None:
    save(pool, {"policy": "fifo", "shadows": ["sjf", "round_robin"], "protection": {"min_run_seconds": 90}})
    serve_with("sjf", "fifo")
    result = gpu_flows("policy", "promote", "round_robin")
    assert "'round_robin' is in force in pool 'gpu'; fifo plans beside it." in result.out
    saved = saved_in(pool)
    assert (saved["policy"], saved["shadows"]) == ("round_robin", ["sjf", "fifo"])
    assert saved["protection"] == {"min_run_seconds": 90}


def test_the_shadows_are_listed_with_their_errors(pool: FakeServer) -> None:
    save(pool, {"policy": "round_robin", "shadows": ["sjf", "gone"], "options": {"sjf": {"skip": True}}})
    serve_with("sjf", "gone", error="There is no policy \x1b[2J")
    for words in (("policy", "show"), ("policy", "shadow", "list")):
        shown = gpu_flows(*words).out
        assert "skip=true" in shown
        assert "sharing=" not in shown.partition("shadow ")[2], "defaults are left out"
        assert "gone does not plan: There is no policy" in shown
        assert "\x1b" not in shown
    shadows = gpu_flows("policy", "show", "--json").json["shadows"]
    assert [(each["shadow"], each["beside"], each["decisions"]) for each in shadows] == [
        ("sjf", "round_robin", None),
        ("gone", "round_robin", None),
    ]
