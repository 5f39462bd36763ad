"""A pool follows its blocks: policies are swapped, nodes drained, devices opened again after a failure."""

from __future__ import annotations

import itertools
import logging
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_pool import FakePool, in_event_loop
from prefect.exceptions import ObjectNotFound

from gpu_flows.analytics.facts import Swapped
from gpu_flows.blocks import GpuCluster, GpuScheduler
from gpu_flows.config import block_follower
from gpu_flows.config.block_follower import BlockFollower
from gpu_flows.config.pool_blocks import BlockNames
from gpu_flows.devices.sources import open_devices
from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.network.tables import load_network
from gpu_flows.schedulers.policy import make_policy

CLUSTER = {"devices": "declared", "nodes": [{"count": 2, "gpus": 1}]}
CHECKSUMS = {
    kind.get_block_type_slug(): kind._calculate_schema_checksum() for kind in (GpuScheduler, GpuCluster)
}


class FakeBlocks:
    """A Prefect client with the documents of blocks."""

    def __init__(self, **saved: dict[str, Any]) -> None:
        self.documents: dict[str, SimpleNamespace] = {}
        self.clock = itertools.count()
        for kind, data in saved.items():
            self.save(f"gpu-{kind}", data)

    def save(self, slug: str, data: dict[str, Any]) -> None:
        updated = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=next(self.clock))
        schema = SimpleNamespace(checksum=CHECKSUMS[slug])
        self.documents[slug] = SimpleNamespace(data=data, updated=updated, block_schema=schema)

    async def read_block_document_by_name(self, name: str, slug: str) -> Any:
        if slug not in self.documents:
            raise ObjectNotFound(Exception())
        return self.documents[slug]


class FakeContainers:
    installation = "installation"

    def configure_hosts(self, *_: Any, **__: Any) -> None:
        pass

    def hosts(self) -> list[Any]:
        return []

    def describe_trouble(self, node: str) -> str:
        return ""


class FollowedPool(FakePool):
    def __init__(self, folder: Path, blocks: FakeBlocks) -> None:
        super().__init__(folder, "2x1", make_policy("fifo"))
        self.blocks = blocks
        self.follower = BlockFollower(
            blocks,  # type: ignore[arg-type]
            "pool",
            self.dispatcher,
            FakeContainers(),  # type: ignore[arg-type]
            lambda _: None,
            lambda *facts: self.facts.extend(facts),
            logging.getLogger("follower"),
        )

    async def save(self, slug: str, data: dict[str, Any]) -> None:
        self.blocks.save(slug, data)
        await self.apply()

    async def apply(self) -> None:
        await self.follower.apply(BlockNames())

    def swaps(self) -> list[tuple[str, str]]:
        return [(fact.to_policy, fact.error) for fact in self.facts if isinstance(fact, Swapped)]


@in_event_loop
async def test_a_save_without_a_change_swaps_nothing(tmp_path: Path) -> None:
    pool = FollowedPool(tmp_path, FakeBlocks(cluster=CLUSTER, scheduler={"policy": "fifo"}))
    await pool.apply()
    policy = pool.engine.policy
    everything = make_policy("fifo").options.model_dump()
    await pool.save("gpu-scheduler", {"policy": "fifo", "options": {"fifo": everything, "srtf": {}}})
    await pool.save("gpu-scheduler", {"policy": {"name": "fifo"}})
    assert pool.swaps() == [("fifo", "")]
    assert pool.engine.policy is policy
    assert pool.follower.policy_options == everything, "also what the block leaves out"
    await pool.follower.close()


@in_event_loop
async def test_the_protection_of_jobs_is_recorded_when_it_changes(tmp_path: Path) -> None:
    pool = FollowedPool(tmp_path, FakeBlocks(cluster=CLUSTER, scheduler={"policy": "fifo"}))
    protection = {"min_run_seconds": 5, "most_preemptions": 2}
    for saved in ({}, {}, {"protection": protection}, {"protection": protection}):
        await pool.save("gpu-scheduler", {"policy": "fifo", **saved})
    facts = [fact for fact in pool.facts if fact.table == "protections"]
    assert [(fact.pool, fact.min_run_seconds, fact.most_preemptions) for fact in facts] == [
        ("pool", 60, 10),
        ("pool", 5, 2),
    ]
    await pool.follower.close()


@in_event_loop
async def test_the_error_of_an_edit_ends_with_the_next_valid_one(tmp_path: Path) -> None:
    pool = FollowedPool(tmp_path, FakeBlocks(cluster=CLUSTER, scheduler={"policy": "fifo"}))
    await pool.apply()
    for wrong, reason in [
        ({"policy": "lifo"}, "no policy 'lifo'"),
        ({"policy": "fifo", "options": {"fifo": {"utilization_threshold": 900}}}, "utilization_threshold"),
        ({"policy": "fifo", "options": "skip"}, "names no usable options of policy 'fifo'"),
        ({"protection": {}}, "names no policy. Choose a policy in its form"),
    ]:
        await pool.save("gpu-scheduler", wrong)
        assert reason in pool.follower.policy_error
        assert pool.engine.policy.name == "fifo"
    saved = pool.follower.policy_saved
    await pool.save("gpu-scheduler", {"policy": "fifo"})
    assert pool.follower.policy_error == ""
    assert saved is not None
    assert pool.follower.policy_saved is not None
    assert pool.follower.policy_saved > saved, "this tells which save the error, or its absence, concerns"
    await pool.follower.close()


@in_event_loop
async def test_a_policy_that_could_not_be_opened_is_opened_after_the_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = FollowedPool(tmp_path, FakeBlocks(cluster=CLUSTER, scheduler={"policy": "srtf"}))

    async def fail(*_: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(pool.dispatcher, "open_policy", fail)
        await pool.apply()
    assert "opening policy 'srtf' raised OSError" in pool.follower.policy_error
    assert pool.engine.policy.name == "fifo"
    await pool.save("gpu-scheduler", {"policy": "srtf"})
    assert (pool.engine.policy.name, pool.follower.policy_error) == ("srtf", "")
    await pool.follower.close()


@in_event_loop
async def test_nothing_starts_on_a_drained_node_and_running_jobs_go_on(tmp_path: Path) -> None:
    pool = FollowedPool(tmp_path, FakeBlocks(cluster=CLUSTER, scheduler={"policy": "fifo"}))
    await pool.apply()
    source = pool.follower._source
    pool.submit("old")
    await pool.wait_for_running("old")
    [node] = pool.engine.running["old"].nodes
    other = ({"node-1", "node-2"} - {node}).pop()
    await pool.save("gpu-cluster", {**CLUSTER, "drained": [node, other]})
    pool.submit("new")
    await pool.settle()
    assert set(pool.runtime.live) == {"old"}
    [(_, reason)] = pool.dispatcher.reasons(10)
    assert reason.summary.endswith("; the nodes it could use are drained (node-1, node-2).")
    assert "`gpu-flows undrain node-1`" in reason.fix
    await pool.save("gpu-cluster", {**CLUSTER, "drained": [node]})
    await pool.wait_for_running("old", "new")
    assert pool.follower._source is source, "the devices were not opened again"
    pool.runtime.exit("old", 0)
    pool.submit("third")
    await pool.settle()
    assert set(pool.runtime.live) == {"new"}
    await pool.save("gpu-cluster", CLUSTER)
    await pool.wait_for_running("new", "third")
    await pool.follower.close()


@in_event_loop
async def test_a_drained_node_that_there_is_not_is_reported(tmp_path: Path) -> None:
    pool = FollowedPool(tmp_path, FakeBlocks(cluster={**CLUSTER, "drained": ["node-9"]}))
    await pool.apply()
    assert (
        pool.follower.unknown_drained == "The cluster block drains node-9, but the nodes are node-1, node-2."
    )
    await pool.save("gpu-cluster", CLUSTER)
    assert pool.follower.unknown_drained == ""
    await pool.follower.close()


@in_event_loop
async def test_devices_that_cannot_be_opened_are_tried_again_with_longer_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = FollowedPool(tmp_path, FakeBlocks(cluster=CLUSTER))
    await pool.apply()
    now, tried = 1000.0, list[float]()
    opens = block_follower.open_devices

    def fail(*_: Any) -> Any:
        tried.append(now)
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(block_follower, "open_devices", fail)
    monkeypatch.setattr(block_follower, "time", SimpleNamespace(monotonic=lambda: now, time=lambda: now))
    await pool.save("gpu-cluster", {**CLUSTER, "nodes": [{"count": 3, "gpus": 1}]})
    for _ in range(100):
        now += 1
        await pool.apply()
    assert [round(later - first) for first, later in itertools.pairwise(tried)] == [5, 10, 20, 40]
    assert "RuntimeError: unforeseen" in pool.follower.cluster_error
    assert list(pool.engine.cluster.nodes) == ["node-1", "node-2"], "the old devices stay"
    pool.submit("job")
    await pool.wait_for_running("job")

    monkeypatch.setattr(block_follower, "open_devices", opens)
    now += 60
    await pool.apply()
    assert list(pool.engine.cluster.nodes) == ["node-1", "node-2", "node-3"]
    assert pool.follower.cluster_error == ""
    await pool.follower.close()


@in_event_loop
async def test_the_error_of_the_cluster_block_ends_when_the_edit_is_undone(tmp_path: Path) -> None:
    pool = FollowedPool(tmp_path, FakeBlocks(cluster=CLUSTER))
    await pool.apply()
    source = pool.follower._source
    for _ in range(5):
        await pool.save("gpu-cluster", {"nodez": []})
    assert "nodez" in pool.follower.cluster_error
    await pool.save("gpu-cluster", CLUSTER)
    assert pool.follower.cluster_error == ""
    assert pool.follower._source is source, "the devices were not opened again"
    await pool.follower.close()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"nodes": [{"cnt": 3}]}, "There is no field 'cnt'. Did you mean 'count'?"),
        ({"node": [{"count": 3}]}, "there is no field 'node'. Did you mean 'nodes'?"),
        ({"containers": {"memory": 3}}, "There is no field 'memory'."),
        ({"runtime": "docker", "hosts": [{"adress": "x"}]}, "There is no field 'adress'."),
        ({"nodes": [{"count": "many"}]}, "nodes.0.count: Input should be a valid integer"),
    ],
)
def test_a_cluster_block_with_unknown_fields_is_refused(
    content: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    async def refuse() -> None:
        pool = FollowedPool(tmp_path, FakeBlocks(cluster=CLUSTER))
        await pool.apply()
        await pool.save("gpu-cluster", content)
        assert reason in pool.follower.cluster_error
        assert list(pool.engine.cluster.nodes) == ["node-1", "node-2"], "the old devices stay"
        await pool.follower.close()

    in_event_loop(refuse)()


@in_event_loop
async def test_policies_are_told_of_the_network_that_the_block_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = FollowedPool(tmp_path, FakeBlocks(cluster=CLUSTER))
    job, across_racks = Job("a", gpus=2, kind="resnet50"), ((1,), (1,))
    told: list[float] = []
    opened = []

    def open_counted(*arguments: Any) -> Any:
        opened.append(arguments)
        return open_devices(*arguments)

    monkeypatch.setattr(pool.engine, "set_network", lambda network: told.append(network(job, across_racks)))
    monkeypatch.setattr(block_follower, "open_devices", open_counted)
    realistic, dally = (load_network(name).slowdown(job, across_racks) for name in ("realistic", "dally"))
    assert pool.engine._state.network(job, across_racks) == realistic, "before any block is read"
    await pool.apply()
    await pool.save("gpu-cluster", {**CLUSTER, "network": "realistic"})  # the same
    await pool.save("gpu-cluster", {**CLUSTER, "network": "dally"})
    assert told == [dally]
    await pool.save("gpu-cluster", {**CLUSTER, "network": "daly"})
    await pool.apply()
    assert "There is no network table 'daly'. Did you mean 'dally'?" in pool.follower.network_error
    await pool.save("gpu-cluster", {**CLUSTER, "network": "dally"})
    assert pool.follower.network_error == ""
    assert len(opened) == 1, "the devices stay open"
    assert told == [dally]
    await pool.follower.close()


@in_event_loop
async def test_network_table_that_cannot_be_read_is_read_when_it_is_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ours.yaml"
    pool = FollowedPool(tmp_path, FakeBlocks(cluster={**CLUSTER, "network": str(path)}))

    def break_file() -> None:
        raise RuntimeError("unforeseen")

    os.mkfifo(path)
    for repair, reason in [
        (lambda: None, "it is not a file"),
        (path.unlink, "No such file"),
        (lambda: path.write_text("models: " + "[" * 3000), "recursion depth"),
        (lambda: monkeypatch.setattr(block_follower, "load_network", lambda _: break_file()), "unforeseen"),
    ]:
        repair()
        caplog.clear()
        for _ in range(2):
            await pool.apply()
            assert pool.follower.network_error.startswith("The network table stays 'realistic': ")
            assert reason in pool.follower.network_error
        assert len(caplog.records) == 1, "it is said once"
    monkeypatch.setattr(block_follower, "load_network", load_network)
    link = "{gbytes_per_s: 1, latency_us: 1}"
    path.write_text(f"tiers: {{node: {link}, rack: {link}, cluster: {link}}}")
    await pool.apply()
    assert pool.follower.network_error == ""
    job = Job("a", gpus=2, kind="resnet50")
    assert pool.engine._state.network(job, ((1, 1),)) == load_network(str(path)).slowdown(job, ((1, 1),))
    await pool.follower.close()


@in_event_loop
async def test_shadows_are_followed_and_malformed_ones_leave_the_rest_in_force(tmp_path: Path) -> None:
    saved = {"policy": "fifo", "shadows": ["srtf", "gone"], "options": {"srtf": {"by": "service"}}}
    pool = FollowedPool(tmp_path, FakeBlocks(cluster=CLUSTER, scheduler=saved))
    await pool.apply()
    assert pool.follower.shadows == {"srtf": {"by": "service"}, "gone": {}}
    policy = pool.engine.policy
    await pool.save(
        "gpu-scheduler", {"policy": "fifo", "shadows": "srtf", "protection": {"min_run_seconds": 7}}
    )
    assert pool.follower.shadows == {}
    assert "names its shadows by something else than a list" in pool.follower.shadows_error
    assert pool.engine.policy is policy
    assert pool.engine.protection.min_run_seconds == 7
    assert not pool.follower.policy_error
    await pool.save("gpu-scheduler", {"policy": "sjf", "shadows": ["fifo"]})
    assert (pool.follower.shadows, pool.follower.shadows_error) == ({"fifo": {}}, "")
    assert pool.swaps() == [("fifo", ""), ("sjf", "")]
    await pool.follower.close()
