"""Artifacts are updated in place, by whichever worker leads, and a server in trouble disturbs nothing."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import httpx
import pytest
from fake_pool import in_event_loop
from prefect.client.orchestration import PrefectClient
from test_pool_tables import status, waiting

from gpu_flows.analytics.query_runner import QueryResult
from gpu_flows.prefect_api.pool_artifacts import TableArtifacts
from gpu_flows.worker import artifact_refresh
from gpu_flows.worker.artifact_refresh import ArtifactRefresh

ROWS = [{"a": 1}]


class Artifacts:
    """The artifacts of a server, and the requests that it got."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, Any]] = {}
        self.requests: list[str] = []
        self.failure: Exception | None = None

    async def request(
        self, method: str, path: str, path_params: dict[str, str] | None = None, json: Any = None
    ) -> httpx.Response:
        self.requests.append(method if "latest" not in path else "find")
        if self.failure:
            raise self.failure
        if method == "PATCH":
            assert path_params
            if path_params["id"] not in self.kept:
                response = httpx.Response(404, request=httpx.Request(method, "http://x"))
                raise httpx.HTTPStatusError("", request=response.request, response=response)
            self.kept[path_params["id"]].update(json)
            return httpx.Response(204)
        if "latest" in path:
            keys = json["artifacts"]["key"]["any_"]
            return httpx.Response(200, json=[a for a in self.kept.values() if a["key"] in keys])
        id = str(uuid4())
        self.kept[id] = {"id": id, "latest_id": id, **json}
        return httpx.Response(201, json={"id": id})

    def data(self) -> dict[str, Any]:
        return {a["key"]: json.loads(a["data"]) for a in self.kept.values()}


@pytest.fixture
def server() -> Artifacts:
    return Artifacts()


def writer(server: Artifacts) -> TableArtifacts:
    return TableArtifacts(cast(PrefectClient, server))


@in_event_loop
async def test_an_artifact_is_created_once_and_updated_in_place(server: Artifacts) -> None:
    first = writer(server)
    await first.write("key", "text", ROWS)
    await first.write("key", "text", ROWS)
    assert server.requests == ["find", "POST"], "equal content is not sent again"
    await first.write("key", "text", [{"a": 2}])
    assert server.requests[2:] == ["PATCH"]
    assert server.data() == {"key": [{"a": 2}]}


@in_event_loop
async def test_the_next_worker_goes_on_with_the_artifacts_of_the_last(server: Artifacts) -> None:
    await writer(server).write("key", "text", ROWS)
    server.requests.clear()
    second = writer(server)
    await second.write("key", "text", ROWS)
    assert server.requests == ["find"], "it is what it shall be"
    await second.write("key", "other", ROWS)
    assert server.requests == ["find", "PATCH"]
    assert len(server.kept) == 1


@in_event_loop
async def test_an_artifact_that_a_person_deleted_is_created_again(server: Artifacts) -> None:
    artifacts = writer(server)
    await artifacts.write("key", "text", ROWS)
    server.kept.clear()
    await artifacts.write("key", "text", [{"a": 2}])
    assert server.data() == {"key": [{"a": 2}]}


def refresh(server: Artifacts) -> ArtifactRefresh:
    return ArtifactRefresh(cast(PrefectClient, server), lambda: None, logging.getLogger("refresh"))


@in_event_loop
async def test_a_server_in_trouble_disturbs_nothing_and_gets_the_next_change(
    server: Artifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact_refresh, "REFRESH_S", 0.0)
    artifacts = refresh(server)
    artifacts.show(status(waiting("a")))
    server.failure = httpx.ConnectError("away")
    await artifacts.write_round()
    assert not server.kept
    server.failure = None
    artifacts.show(status(waiting("a"), waiting("b")))
    await artifacts.write_round()
    assert [row["run"] for row in server.data()["gpu-queue-gpu"]] == ["a", "b"]


@in_event_loop
async def test_a_failed_write_is_tried_again_although_nothing_changes(
    server: Artifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact_refresh, "REFRESH_S", 0.0)
    artifacts = refresh(server)
    artifacts.show(status(waiting("a")))
    server.failure = httpx.ReadTimeout("busy")
    await artifacts.write_round()
    server.failure = None
    await artifacts.write_round()
    assert [row["run"] for row in server.data()["gpu-queue-gpu"]] == ["a"]


@in_event_loop
async def test_only_the_leader_writes(server: Artifacts) -> None:
    artifacts = refresh(server)
    artifacts.show(replace(status(waiting("a")), leads=False))
    await artifacts.write_round()
    assert not server.requests
    artifacts.show(status(waiting("a")))
    await artifacts.write_round()
    assert set(server.data()) == {"gpu-queue-gpu", "gpu-devices-gpu"}
    server.requests.clear()
    for _ in range(5):
        await artifacts.write_round()
    assert not server.requests, "nothing changes"


@in_event_loop
async def test_a_lease_that_was_lost_after_the_last_status_counts(
    server: Artifacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact_refresh, "RECORDED_AFTER_S", 0.0)
    monkeypatch.setattr(artifact_refresh, "run_query", lambda *_: QueryResult(["policy"], [("fifo",)], False))
    log = logging.getLogger("refresh")
    artifacts = ArtifactRefresh(cast(PrefectClient, server), lambda: tmp_path, log, is_leading=lambda: False)
    artifacts.show(status(waiting("a")))
    await artifacts.write_round()
    await artifacts.compare()
    assert not server.requests


@in_event_loop
async def test_policies_are_compared_after_a_job_has_ended(
    server: Artifacts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []

    def answer(database: Path, query: str, params: Any) -> QueryResult:
        asked.append((query, params))
        return QueryResult(["pool", "policy"], [("gpu", f"fifo-{len(asked)}")], False)

    monkeypatch.setattr(artifact_refresh, "run_query", answer)
    monkeypatch.setattr(artifact_refresh, "RECORDED_AFTER_S", 0.0)
    monkeypatch.setattr(artifact_refresh, "COMPARE_S", 0.0)
    monkeypatch.setattr(artifact_refresh, "PAUSE_FACTOR", 0.0)
    log = logging.getLogger("refresh")
    artifacts = ArtifactRefresh(cast(PrefectClient, server), lambda: tmp_path, log)
    artifacts.show(status(running=[waiting("a")]))
    server.failure = httpx.ConnectError("away")
    await artifacts.compare()
    server.failure = None
    for _ in range(3):
        await artifacts.compare()
    assert asked == 2 * [("policies", {"pool": "gpu"})], "again after the failure, and not while nothing ends"
    artifacts.show(status())
    await artifacts.compare()
    assert server.data()["gpu-comparison-gpu"] == [{"policy": "fifo-3"}]
