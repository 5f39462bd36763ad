"""The network model: all-reduce times, slowdowns of shapes, and tables."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from toy_network import make_network

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.cluster.state import Cluster
from gpu_flows.schedulers.model import Job, Tier
from gpu_flows.schedulers.network.collectives import Collective, Link, allreduce_s, pipeline_s
from gpu_flows.schedulers.network.network import Network, Uneven
from gpu_flows.schedulers.network.shape import Shape
from gpu_flows.schedulers.network.tables import SHIPPED, load_network


def slowdown(network: Network, *racks: tuple[int, ...], kind: str = "") -> float:
    return network.slowdown(Job("job", gpus=sum(map(sum, racks)), kind=kind), racks)


# All-reduce


@pytest.mark.parametrize(
    ("collective", "members", "seconds"),
    [
        ("ring", 1, 0.0),
        ("ring", 2, 2 * 0.1 + 4.0),  # two steps, each with half of 4 bytes at 1 byte/s
        ("ring", 4, 6 * 0.1 + 6.0),
        ("tree", 2, 2 * 0.1 + 8.0),
        ("tree", 5, 6 * 0.1 + 8.0),  # three levels up and down
        ("direct", 4, 2 * 0.1 + 6.0),
    ],
)
def test_time_of_an_all_reduce(collective: Collective, members: int, seconds: float) -> None:
    assert allreduce_s(Link(1.0, 0.1, collective), members, 4.0) == pytest.approx(seconds)


def test_messages_follow_each_other_through_the_stages() -> None:
    assert pipeline_s([1.0, 3.0, 2.0], messages=1) == 6
    assert pipeline_s([1.0, 3.0, 2.0], messages=5) == 6 + 4 * 3


# Slowdown


def test_slowdown_compares_with_one_node() -> None:
    network = make_network(rack=Link(1e9, 0.0), cluster=Link(0.5e9, 0.25))
    assert slowdown(network, (8,)) == 1
    assert slowdown(network, (4, 4)) == 1 + 1  # a gigabyte to and from the other node
    assert slowdown(network, (2, 2, 2, 2)) == 1 + 1.5
    assert slowdown(network, (4,), (4,)) == 1 + 2 * 0.25 + 2
    assert slowdown(network, (2, 2), (2, 2)) == 1 + 1 + 2 * 0.25 + 2


def test_messages_overlap_with_computing_except_the_last() -> None:
    network = make_network(rack=Link(2e9, 0.0), messages=10, overlap=0.3)
    assert slowdown(network, (1, 1)) == pytest.approx(1 + 0.5 - 0.3)
    assert slowdown(make_network(Link(4e9, 0.0), messages=10, overlap=0.3), (1, 1)) == 1.025


def test_congestion_affects_the_network_beyond_the_node() -> None:
    calm = make_network(rack=Link(1e9, 0.1))
    assert slowdown(calm, (1, 1)) == 1 + 0.2 + 1
    assert slowdown(replace(calm, congestion=3), (1, 1)) == pytest.approx(1 + 3 * (0.2 + 1))
    assert slowdown(replace(calm, congestion=3), (2,)) == 1


@pytest.mark.parametrize(
    ("uneven", "shape", "expected"),
    [
        ("fullest", ((1, 3),), 1 + 2),  # two nodes, as if they had three devices each
        ("flat", ((1, 3),), 1 + 2 * 3),  # a ring of four devices
        ("flat", ((2, 2),), 1 + 2),
        ("fullest", ((2,), (1, 1)), 1 + 2 + 20),  # two nodes in a rack, and two racks
        ("flat", ((2,), (1, 1)), 1 + 2 + 20),  # two devices in each rack, and two racks
        ("flat", ((1,), (3,)), 1 + 2 * 3 * 10),  # a ring of four devices across racks
    ],
)
def test_uneven_shapes(uneven: Uneven, shape: Shape, expected: float) -> None:
    network = make_network(rack=Link(math.inf, 1.0), cluster=Link(math.inf, 10.0), uneven=uneven)
    assert slowdown(network, *shape) == expected


def test_slowdowns_are_remembered_by_kind_and_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    network = make_network(rack=Link(1e9, 0.0))
    first = slowdown(network, (1, 1))
    monkeypatch.setattr(Network, "compute_traffic", None)
    assert slowdown(network, (1, 1)) == first
    with pytest.raises(TypeError):
        slowdown(network, (1, 2))


@pytest.mark.parametrize(
    ("kind", "model"),
    [
        ("ResNet-50 (batch size 64)", "resnet50"),
        ("resnet_18", "resnet18"),
        ("pytorch-resnet", "resnet50"),
        ("VGG 16", "vgg16"),
        ("vgg11_bn", "vgg11"),
        ("mobilenet_v3_large", "mobilenetv3"),
        ("BERT", "bertlarge"),
        ("llama-2-7b", "lm7b"),
        ("gpt-1B", "lm1b"),
        ("llama-17b", "resnet50"),  # not known: the default
        ("0.7b", "resnet50"),
        ("", "resnet50"),
    ],
)
def test_kinds_name_models(kind: str, model: str) -> None:
    models = load_network("realistic").models
    assert models.find(kind).name == model
    assert models.is_known(kind) == (kind not in ("llama-17b", "0.7b", ""))


# Tables


def test_every_shipped_figure_has_a_source() -> None:
    for name in SHIPPED:
        network = load_network(name)
        assert network.name == name
        assert network.source
        assert all(model.source for model in network.models.models.values())


def test_latency_decides_in_the_table_of_dally_and_not_in_the_realistic_one() -> None:
    far: Shape = ((4,), (4,))
    assert slowdown(load_network("dally"), *far, kind="mobilenetv3") > 100
    assert 1 < slowdown(load_network("realistic"), *far, kind="mobilenetv3") < 1.5
    assert slowdown(load_network("realistic", congestion=4), *far, kind="mobilenetv3") > 1.5


OWN = """
tiers:
  node: {gbytes_per_s: 100, latency_us: 1}
  rack: {gbytes_per_s: 1, latency_us: 0}
  cluster: {gbytes_per_s: 1, latency_us: 0, collective: tree}
models:
  toy: {gradient_mb: 1000, messages: 1, compute_ms: 1000, overlap: 0, names: [my toy, "-"]}
"""


def test_own_table_adds_to_the_realistic_models(tmp_path: Path) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text(OWN)
    network = load_network(str(path))
    assert (network.name, network.models.default) == ("ours", "resnet50")
    assert network.models.find("My-Toy 3").name == "toy"
    assert network.models.find("resnet18") == load_network("realistic").models.find("resnet18")
    assert slowdown(network, (1, 1), kind="toy") == pytest.approx((1 + 1) / (1 + 0.01 + 2e-6))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("latency_us: 0}", "latency_us: -1}"), "tiers.rack.latency_us"),
        (("overlap: 0", "overlap: 2"), "models.toy.overlap"),
        (("gradient_mb", "gradient_gb"), "models.toy"),
        (("collective: tree", "collective: star"), "tiers.cluster.collective"),
        (("tiers:", "tier:"), "tiers: Field required"),
        (("models:", "default_model: tow\nmodels:"), "there is no model 'tow'. Did you mean 'toy'?"),
        (("tiers:", "tiers: ["), "is not YAML"),
        (("models:", "default_model: 2024-99-99\nmodels:"), "is not YAML: month must be in 1..12"),
        (("tiers:", "tiers: " + "[" * 3000), "is not YAML: maximum recursion depth"),
        (("models:", "#" * 1_000_000 + "\nmodels:"), "cannot be read: it has more than 1,000,000 bytes"),
        (("gradient_mb: 1000", "gradient_mb: 1.0e+305"), "models.toy.gradient_mb"),
        (("messages: 1", "messages: 1" + "0" * 400), "models.toy.messages"),
        (("compute_ms: 1000", "compute_ms: 1.0e-323"), "models.toy.compute_ms"),
    ],
)
def test_wrong_table_is_named_with_the_wrong_field(
    tmp_path: Path, change: tuple[str, str], expected: str
) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text(OWN.replace(*change))
    with pytest.raises(ValueError, match="ours") as error:
        load_network(str(path))
    assert expected in str(error.value)


def test_unknown_table_and_impossible_congestion() -> None:
    with pytest.raises(ValueError, match="Did you mean 'realistic'"):
        load_network("realstic")
    with pytest.raises(ValueError, match="cannot be read"):
        load_network("nowhere.yaml")
    for congestion in (0.5, math.nan, math.inf, 1e7):
        with pytest.raises(ValueError, match=r"is not a number from 1.* to 1,000,000"):
            load_network("dally", congestion)


def test_network_is_pickled_without_what_it_remembers() -> None:
    network = load_network("realistic", congestion=2)
    fresh = pickle.dumps(network.slowdown)
    before = slowdown(network, (2, 2), kind="vgg16")
    for number in range(100):
        slowdown(network, (2, 2), kind=f"kind-{number}")
    again = pickle.loads(pickle.dumps(network.slowdown))
    assert len(pickle.dumps(network.slowdown)) < 2 * len(fresh)
    assert again(Job("a", gpus=4, kind="vgg16"), ((2, 2),)) == before


# Devices


def test_tier_of_devices() -> None:
    cluster = Cluster(declare("4x2@2"))
    devices = [device for node in cluster for device in node.node.devices]
    assert cluster.tier(devices[:2]) == Tier.NODE
    assert cluster.tier(devices[1:3]) == Tier.RACK
    assert cluster.tier(devices[3:5]) == Tier.CLUSTER
    assert cluster.shape(devices[1:6]) == ((1, 2), (2,))


def test_devices_of_nodes_that_are_no_longer_declared_do_not_count() -> None:
    nodes = declare("4x2@2")
    gone, cluster = nodes[3].devices, Cluster(nodes[:3])
    assert cluster.shape((nodes[0].devices[0], *nodes[1].devices, gone[0])) == ((1, 2),)
    assert cluster.tier((nodes[0].devices[0], nodes[1].devices[0], gone[0])) == Tier.RACK
    assert cluster.tier((nodes[0].devices[0], gone[0])) == Tier.NODE
    assert (cluster.shape(gone), cluster.tier(gone)) == ((), Tier.NODE)
