"""What a worker asks before a container starts, and which unstarted containers it adopts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import requests
from containers import make_launch
from docker.errors import APIError

from gpu_flows.blocks import ContainerRules
from gpu_flows.runtimes.base import LaunchCancelled
from gpu_flows.runtimes.docker import container_start
from gpu_flows.runtimes.docker.adoption import Adoption
from gpu_flows.runtimes.docker.container_start import ContainerStart
from gpu_flows.runtimes.docker.host import HostUnreachable
from gpu_flows.runtimes.docker.mounts import OpenMounts


def test_a_lease_lost_while_checkpoints_are_copied_prevents_the_start() -> None:
    host, leads = mock.MagicMock(), [True]
    steps: list[str] = []

    def prepare() -> None:
        steps.append("prepare")
        leads.clear()

    start = ContainerStart(
        host,
        make_launch("true"),
        "test",
        ContainerRules(),
        lambda: bool(leads),
        prepare,
        lambda: steps.append("started"),
        lambda text: None,
        OpenMounts((), ""),
    )
    created = container_start._Created("id", has_run=False)
    with (
        mock.patch.object(ContainerStart, "_check_rules"),
        mock.patch.object(ContainerStart, "_create_or_find", return_value=created),
        mock.patch.object(container_start, "_copy_files"),
        mock.patch.object(container_start, "_start") as started,
        pytest.raises(LaunchCancelled),
    ):
        start.run()
    assert steps == ["prepare"]
    started.assert_not_called()


def api_error(status: int) -> APIError:
    response = requests.Response()
    response.status_code = status
    return APIError("no", response=response)


@pytest.mark.parametrize(
    ("failure", "started_at", "was_started"),
    [
        (None, "", False),
        (api_error(404), "", False),
        (api_error(500), "", False),
        (HostUnreachable("away"), "", False),
        (api_error(409), "2026-01-01T00:00:00Z", True),
        (api_error(409), "0001-01-01T00:00:00Z", False),  # its removal is already in progress
    ],
)
def test_an_unstarted_container_is_adopted_only_if_it_was_started_meanwhile(
    failure: Exception | None, started_at: str, was_started: bool
) -> None:
    api, monitored = mock.Mock(), mock.Mock()
    api.remove_container.side_effect = failure
    api.inspect_container.return_value = {"State": {"StartedAt": started_at}}

    async def call(request: Callable[[Any], Any]) -> Any:
        return request(api)

    monitored.host.call = call
    adoption = Adoption(*(mock.Mock() for _ in range(7)))
    assert asyncio.run(adoption._remove_unless_started(monitored, {"Id": "c"})) is was_started
