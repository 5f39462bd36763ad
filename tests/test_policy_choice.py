"""What a GPU Scheduler block saves, in today's shape and in that of older versions."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_flows.blocks import GpuScheduler
from gpu_flows.schedulers.policy import policies
from gpu_flows.schedulers.policy_choice import promote, read_choice, read_shadows, write_choice

OLD = {"policy": {"name": "round_robin", "wait_for_turn": True}, "protection": {"min_run_seconds": 5}}
NEW = {"policy": "round_robin", "options": {"round_robin": {"wait_for_turn": True}, "fifo": {"skip": True}}}


@pytest.mark.parametrize("saved", [OLD, NEW])
def test_both_shapes_are_read(saved: dict[str, Any]) -> None:
    assert read_choice(saved) == ("round_robin", {"wait_for_turn": True})
    block = GpuScheduler(**saved)
    assert (block.policy, block.options.round_robin.wait_for_turn) == ("round_robin", True)


def test_what_the_v1_ui_leaves_out_has_its_default() -> None:
    assert read_choice({"policy": "fifo"}) == ("fifo", {})
    assert read_choice({"policy": "fifo", "options": {"srtf": {"elastic": True}}}) == ("fifo", {})
    left_out = GpuScheduler(policy="fifo").options.fifo
    assert left_out.model_dump() == policies()["fifo"].Options().model_dump()


@pytest.mark.parametrize(
    "saved", [{}, {"policy": {}}, {"policy": None}, {"policy": ""}, {"policy": 3}, {"policy": ["fifo"]}]
)
def test_a_block_without_a_policy_says_so(saved: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="names no policy"):
        read_choice(saved)


@pytest.mark.parametrize("options", ["x", [1], {"fifo": [1]}, {"fifo": "x"}])
def test_a_block_with_malformed_options_says_so(options: Any) -> None:
    saved = {"policy": "fifo", "options": options}
    with pytest.raises(ValueError, match="names no usable options of policy 'fifo'"):
        read_choice(saved)
    assert write_choice(saved, "fifo", {"skip": True})["options"]["fifo"] == {"skip": True}


def test_another_choice_keeps_the_options_of_other_policies() -> None:
    changed = write_choice(OLD, "srtf", {"by": "service"})
    assert changed == {
        "policy": "srtf",
        "options": {"round_robin": {"wait_for_turn": True}, "srtf": {"by": "service"}},
        "protection": {"min_run_seconds": 5},
    }
    back = GpuScheduler(**changed).use("fifo", skip=True)
    assert (back.policy, back.options.fifo.skip) == ("fifo", True)
    assert (back.options.round_robin.wait_for_turn, back.options.srtf.by) == (True, "service")
    assert back.protection.min_run_seconds == 5


def test_no_ui_can_leave_out_which_policy_was_chosen() -> None:
    """V1 leaves out values that equal their default, and unions whose chosen form is unchanged."""
    schema = GpuScheduler.model_json_schema()
    menu = schema["properties"]["policy"]
    assert menu["enum"] == list(policies())
    assert "default" not in menu
    assert "policy" in schema["required"]
    assert "anyOf" not in str(schema["properties"])


def test_each_section_shows_the_rule_of_its_policy() -> None:
    schema = GpuScheduler.model_json_schema()
    for name, policy in policies().items():
        assert schema["definitions"]["PolicyOptions"]["properties"][name]["$ref"].endswith(f"/{name}")
        assert schema["definitions"][name]["description"] == policy.rule()


def test_shadows_have_the_options_of_their_sections() -> None:
    options = {"sjf": {"placement": "pack"}, "fifo": {"skip": True}}
    saved = {"policy": "fifo", "shadows": ["sjf", "fifo", "gone"], "options": options}
    assert read_shadows(saved) == {"sjf": {"placement": "pack"}, "gone": {}}, (
        "the policy is not its own shadow"
    )
    assert read_shadows({"policy": "fifo"}) == read_shadows({"policy": "fifo", "shadows": None}) == {}
    assert read_shadows({**OLD, "shadows": ["sjf"]}) == {"sjf": {}}


@pytest.mark.parametrize("shadows", ["sjf", {"sjf": {}}, [3], [""], 5])
def test_malformed_shadows_are_told_and_the_policy_is_read(shadows: Any) -> None:
    saved = {"policy": "fifo", "shadows": shadows}
    with pytest.raises(ValueError, match="names its shadows by something else"):
        read_shadows(saved)
    assert read_choice(saved) == ("fifo", {})


@pytest.mark.parametrize("saved", [OLD, NEW])
def test_a_promotion_swaps_the_policy_with_its_shadow(saved: dict[str, Any]) -> None:
    before = {**saved, "shadows": ["sjf", "srtf"]}
    after = promote(before, "srtf")
    assert (after["policy"], after["shadows"]) == ("srtf", ["sjf", "round_robin"])
    assert read_shadows(after)["round_robin"] == {"wait_for_turn": True}
    back = promote(after, "round_robin")
    assert read_choice(back) == read_choice(saved)
    assert back["shadows"] == before["shadows"]
    block = GpuScheduler(**after)
    assert block.use("fifo").shadows == ["sjf", "round_robin"]
