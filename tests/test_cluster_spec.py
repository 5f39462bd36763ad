"""Clusters in one line."""

from __future__ import annotations

import pytest

from gpu_flows.schedulers.cluster_spec import DEFAULT_MEMORY_GB, MOST_DEVICES, declare
from gpu_flows.schedulers.model import Device


def test_a_full_spec_gives_named_nodes_and_stable_devices() -> None:
    nodes = declare("3x4:GTX 1080 Ti:11")

    assert [node.name for node in nodes] == ["node-1", "node-2", "node-3"]
    assert nodes[1].devices[2] == Device("SIM-node-2-2", "node-2", 2, "GTX 1080 Ti", 11 * 1024)
    assert all(len(node.devices) == 4 for node in nodes)
    assert nodes == declare("3x4:GTX 1080 Ti:11")


def test_groups_are_numbered_through() -> None:
    nodes = declare("1x4:V100:16 + 2x8:A100:80")

    assert [(node.name, len(node.devices), node.devices[0].model) for node in nodes] == [
        ("node-1", 4, "V100"),
        ("node-2", 8, "A100"),
        ("node-3", 8, "A100"),
    ]
    ids = [device.id for node in nodes for device in node.devices]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("spec", "model", "memory_gb"),
    [
        ("1x1", "GPU", DEFAULT_MEMORY_GB),
        ("1X1:V100", "V100", DEFAULT_MEMORY_GB),
        ("1x1::24", "GPU", 24),
        ("1x1:T4:14.5", "T4", 14.5),
        (" 1 x 1 : RTX 6000 : 48 ", "RTX 6000", 48),
    ],
)
def test_model_and_memory_may_be_left_out(spec: str, model: str, memory_gb: float) -> None:
    [device] = declare(spec)[0].devices
    assert (device.model, device.memory_mb) == (model, memory_gb * 1024)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("", "does not begin with a number of nodes"),
        ("4", "does not begin with a number of nodes"),
        ("axb", "does not begin with a number of nodes"),
        ("-1x4", "does not begin with a number of nodes"),
        ("²x4", "does not begin with a number of nodes"),
        ("2x4+", "does not begin with a number of nodes"),
        ("V100:2x4", "does not begin with a number of nodes"),
        ("0x4", "empty"),
        ("4x0", "empty"),
        ("2x4:V100:lots", "'lots' is not a number of gigabytes"),
        ("2x4:V100:0", "above 0 GB"),
        ("2x4:V100:-16", "above 0 GB"),
        ("2x4:V100:nan", "above 0 GB"),
        ("2x4:V100:inf", "above 0 GB"),
        ("2x4:V100:16:32", "too many parts"),
    ],
)
def test_a_wrong_spec_says_what_is_wrong_and_how_to_write_it(spec: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as error:
        declare(spec)
    assert "3x4:GTX 1080 Ti:11" in str(error.value)


def test_a_slip_of_the_finger_does_not_fill_the_memory() -> None:
    with pytest.raises(ValueError, match=f"declare at most {MOST_DEVICES:,}"):
        declare("99999999x8")
