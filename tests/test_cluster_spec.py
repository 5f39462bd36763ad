"""Cluster specs of one line and in YAML files."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_flows.schedulers.cluster.spec import DEFAULT_MEMORY_GB, MOST_DEVICES, declare
from gpu_flows.schedulers.model import Device


def test_a_full_spec_gives_named_nodes_and_stable_devices() -> None:
    nodes = declare("3x4:GTX 1080 Ti:11")

    assert [node.name for node in nodes] == ["node-1", "node-2", "node-3"]
    assert nodes[1].devices[2] == Device("SIM-node-2-2", "node-2", 2, "GTX 1080 Ti", 11 * 1024)
    assert all(len(node.devices) == 4 for node in nodes)
    assert nodes == declare("3x4:GTX 1080 Ti:11")


def test_nodes_of_several_groups_are_numbered_consecutively() -> None:
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
def test_model_and_memory_are_optional(spec: str, model: str, memory_gb: float) -> None:
    [device] = declare(spec)[0].devices
    assert (device.model, device.memory_mb) == (model, memory_gb * 1024)


@pytest.mark.parametrize(
    ("spec", "message"),
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
        ("2x4@", "'' is not a number of nodes in a rack"),
        ("2x4:V100@0", "'0' is not a number of nodes in a rack"),
        ("2x4:V100:16@-2", "'-2' is not a number of nodes in a rack"),
        ("2x4@two", "'two' is not a number of nodes in a rack"),
        ("@2", "does not begin with a number of nodes"),
    ],
)
def test_error_states_what_is_wrong_and_how_to_write_a_spec(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        declare(spec)
    assert "3x4:GTX 1080 Ti:11" in str(error.value)


def test_too_many_devices_are_refused() -> None:
    with pytest.raises(ValueError, match=f"declare at most {MOST_DEVICES:,}"):
        declare("99999999x8")


# -- racks ------------------------------------------------------------------------------------


def racks(spec: str) -> dict[str, list[str]]:
    """Return the names of the nodes of each rack."""
    found: dict[str, list[str]] = {}
    for node in declare(spec):
        found.setdefault(node.rack, []).append(node.name)
    return found


def test_racks_of_a_given_size_are_numbered_consecutively() -> None:
    assert racks("5x8:V100:32@2 + 1x4 + 2x8:A100@ 4") == {
        "rack-1": ["node-1", "node-2"],
        "rack-2": ["node-3", "node-4"],
        "rack-3": ["node-5"],
        "default": ["node-6"],
        "rack-4": ["node-7", "node-8"],
    }
    assert declare("16x8:V100:32@4")[3].devices == declare("16x8:V100:32")[3].devices


def test_file_declares_racks(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        """
        racks:
          - {name: row-1, nodes: 2, gpus: 8, model: V100, memory_gb: 32, cpus: 96, ram_gb: 512}
          - {name: row-1, gpus: 4, model: 3090}  # one more node, of another kind
          - {nodes: 1, gpus: 1}
        """
    )
    big, second, small, plain = declare(str(file))

    assert [node.rack for node in (big, second, small, plain)] == ["row-1", "row-1", "row-1", "rack-3"]
    assert (big.name, big.cpus, big.ram_mb) == ("node-1", 96, 512 * 1024)
    assert second.devices[7] == Device("SIM-node-2-7", "node-2", 7, "V100", 32 * 1024)
    assert [device.model for device in small.devices] == ["3090"] * 4
    assert (plain.cpus, plain.ram_mb) == (0, 0)
    assert plain.devices == (Device("SIM-node-4-0", "node-4", 0, "GPU", round(DEFAULT_MEMORY_GB * 1024)),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no list of racks"),
        ("- 2x4", "no list of racks"),
        ("nodes: 4", r"racks: Field required"),
        ("racks: []", "racks: .* at least 1 item"),
        ("racks: [{nodes: 4}]", r"racks\[0\].gpus: Field required"),
        ("racks: [{gpus: 4}, {gpus: 0}]", r"racks\[1\].gpus: .* greater than or equal to 1"),
        ("racks: [{gpus: 4, memory_gb: .inf}]", r"racks\[0\].memory_gb: .* finite"),
        ("racks: [{gpus: 4, memory: 16}]", r"racks\[0\].memory: Extra inputs"),
        ("racks: [{gpus: 4", "is not YAML"),
    ],
)
def test_error_states_the_place_in_the_file(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "cluster.yml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        declare(str(file))
    assert str(file) in str(error.value)
    assert "racks: [{name: row-1" in str(error.value)


def test_missing_or_too_large_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.yaml cannot be read: No such file"):
        declare(str(tmp_path / "nowhere.yaml"))
    file = tmp_path / "huge.yaml"
    file.write_text("racks: [{nodes: 1000000, gpus: 8}]")
    with pytest.raises(ValueError, match=f"declare at most {MOST_DEVICES:,}"):
        declare(str(file))


def test_a_file_states_which_devices_are_linked(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("racks: [{name: a, gpus: 4, links: 'nvlink:2'}]")
    [node] = declare(str(path))
    assert [group.devices for group in node.links] == [(0, 1), (2, 3)]
    path.write_text("racks: [{gpus: 4, links: 'nvlink:8'}]")
    with pytest.raises(ValueError, match="nvlink:8"):
        declare(str(path))
