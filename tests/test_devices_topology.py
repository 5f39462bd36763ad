"""How the GPUs of a machine are linked, as NVML reports it: the real bindings over the stand-in library."""

from __future__ import annotations

import pytest
from nvml.helpers import by_id
from nvml.standin import GPU_IS_LOST, UNKNOWN_ERROR, StandIn

from gpu_flows.devices.nvml import NvmlDevices
from gpu_flows.schedulers.model import DeviceLink, LinkGroup

pytest_plugins = ["nvml.fixtures"]

SINGLE, HOSTBRIDGE, NODE, SYSTEM = 10, 30, 40, 50  # NVML's topology levels


def test_nvlinks_switches_and_processors_make_groups(nvml: StandIn, devices: NvmlDevices) -> None:
    nvml.add_gpu(nvlink="1", ancestors=f"- {SINGLE} {SYSTEM} {SYSTEM}")
    nvml.add_gpu(nvlink="0", ancestors=f"{SINGLE} - {SYSTEM} {SYSTEM}")
    nvml.add_gpu(nvlink="", ancestors=f"{SYSTEM} {SYSTEM} - {HOSTBRIDGE}")
    nvml.add_gpu(nvlink="", ancestors=f"{SYSTEM} {SYSTEM} {HOSTBRIDGE} -")

    [node] = devices.nodes()

    assert node.links == (LinkGroup(DeviceLink.NVLINK, (0, 1)), LinkGroup(DeviceLink.NUMA, (2, 3)))


def test_a_mesh_of_nvlinks_keeps_each_link(nvml: StandIn, devices: NvmlDevices) -> None:
    """As in a DGX-1: four GPUs are linked with each other, and each with one of the other four."""
    for gpu in range(8):
        near = [other for other in range(8) if other // 4 == gpu // 4 and other != gpu]
        ancestors = " ".join(str(SINGLE if gpu // 2 == other // 2 else NODE) for other in range(8))
        nvml.add_gpu(nvlink=" ".join(map(str, [*near, (gpu + 4) % 8])), ancestors=ancestors)

    [node] = devices.nodes()

    nvlinks = {group.devices for group in node.links if group.link is DeviceLink.NVLINK}
    assert nvlinks == {(0, 1, 2, 3), (4, 5, 6, 7), (0, 4), (1, 5), (2, 6), (3, 7)}
    assert LinkGroup(DeviceLink.NUMA, tuple(range(8))) in node.links


def test_numa_nodes_count_where_the_driver_knows_no_ancestors(nvml: StandIn, devices: NvmlDevices) -> None:
    for numa in (1, 1, 2, 2):
        nvml.add_gpu(numa=numa)

    [node] = devices.nodes()

    assert node.links == (LinkGroup(DeviceLink.NUMA, (0, 1)), LinkGroup(DeviceLink.NUMA, (2, 3)))


@pytest.mark.parametrize("value", [None, f"!{UNKNOWN_ERROR}", f"!{GPU_IS_LOST}"])
def test_a_topology_that_the_driver_does_not_tell_is_unknown_and_no_fault(
    nvml: StandIn, devices: NvmlDevices, value: str | None
) -> None:
    fields = dict.fromkeys(("nvlink", "ancestors", "numa"), value) if value else {}
    for _ in range(2):
        nvml.add_gpu(**fields)

    [node] = devices.nodes()

    assert node.links == ()
    assert all(reading.healthy for reading in by_id(devices).values())


def test_a_gpu_without_a_handle_has_no_links(nvml: StandIn, devices: NvmlDevices) -> None:
    nvml.add_gpu(nvlink="1 2")
    nvml.add_gpu(nvlink="0 2", handle=GPU_IS_LOST)
    nvml.add_gpu(nvlink="0 1")

    [node] = devices.nodes()

    assert [device.id for device in node.devices] == ["GPU-0", "GPU-2"]
    assert node.links == (
        LinkGroup(DeviceLink.NVLINK, (0, 1)),
    )  # the index counts the devices that were found


def test_slices_share_the_path_of_their_gpu_and_have_no_nvlink(nvml: StandIn, devices: NvmlDevices) -> None:
    nvml.add_gpu(nvlink="1", ancestors=f"- {NODE}")
    nvml.add_gpu(nvlink="0", ancestors=f"{NODE} -")
    for gpu in (0, 1):
        for number in (0, 1):
            nvml.add_slice(gpu, number)

    [node] = devices.nodes()

    assert node.links == (
        LinkGroup(DeviceLink.SWITCH, (0, 1)),
        LinkGroup(DeviceLink.SWITCH, (2, 3)),
        LinkGroup(DeviceLink.NUMA, (0, 1, 2, 3)),
    )


def test_the_rack_of_the_machine_is_the_one_in_the_block(nvml: StandIn) -> None:
    nvml.add_gpu()
    source = NvmlDevices(library=nvml.library, rack="row-2")
    try:
        assert [node.rack for node in source.nodes()] == ["row-2"]
    finally:
        source.close()
