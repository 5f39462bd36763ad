"""Table artifacts on the Prefect server that are updated in place, so that each has one version for ever.

A worker that starts, or takes over, goes on with the artifacts of its predecessor. The requests are sent
directly: Prefect's own helpers also send an event with each update, with the whole table in it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx
from prefect.client.orchestration import PrefectClient


@dataclass(frozen=True, slots=True)
class Content:
    """What an artifact shows."""

    description: str
    data: str  # JSON

    @classmethod
    def of(cls, description: str, rows: list[dict[str, Any]]) -> Content:
        return cls(description, json.dumps(rows))

    def fields(self) -> dict[str, str]:
        return {"description": self.description, "data": self.data}


class TableArtifacts:
    def __init__(self, client: PrefectClient) -> None:
        self._client = client
        self._ids: dict[str, str] = {}  # by key
        self._written: dict[str, Content] = {}  # by key

    def forget(self) -> None:
        """Read the artifacts again before the next update, because another worker may have changed them."""
        self._ids.clear()
        self._written.clear()

    async def write(self, key: str, description: str, rows: list[dict[str, Any]]) -> None:
        """Make this the content of the artifact, which is created if it does not exist. Equal content is not
        sent again. Raises what the client raises."""
        content = Content.of(description, rows)
        if key not in self._ids:
            await self._find(key)
        if self._written.get(key) == content:
            return
        try:
            await self._send(key, content)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != 404:
                raise
            del self._ids[key]  # a person has deleted it
            await self._send(key, content)
        self._written[key] = content

    async def _send(self, key: str, content: Content) -> None:
        if key in self._ids:
            which = {"id": self._ids[key]}
            await self._client.request("PATCH", "/artifacts/{id}", path_params=which, json=content.fields())
        else:
            created = {"key": key, "type": "table", **content.fields()}
            answer = await self._client.request("POST", "/artifacts/", json=created)
            self._ids[key] = answer.json()["id"]

    async def _find(self, key: str) -> None:
        """Find the artifact that an earlier worker created."""
        which = {"artifacts": {"key": {"any_": [key]}}, "limit": 1}
        answer = await self._client.request("POST", "/artifacts/latest/filter", json=which)
        for found in answer.json():
            self._ids[key] = found["latest_id"]
            self._written[key] = Content(found["description"] or "", found["data"] or "")
