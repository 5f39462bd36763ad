"""The devices by node, with their load, memory, health and jobs."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import Any

from gpu_flows.dashboard.views.look import Look, contains, page_of
from gpu_flows.schedulers.model import DEFAULT_RACK
from gpu_flows.schedulers.reasons import DRAINED

NODES_ON_A_PAGE = 40
STATES = {"busy": "busy", "idle": "idle", "sick": "sick", "drained": "drained"}


def state_of(device: dict[str, Any]) -> str:
    """Return busy, idle, drained or sick. A drained device whose job still runs is busy."""
    if device["healthy"]:
        return "busy" if device["jobs"] else "idle"
    if device["detail"] != DRAINED:
        return "sick"
    return "busy" if device["jobs"] else "drained"


def by_node(devices: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the nodes with their devices, each with its state."""
    nodes: dict[str, list[dict[str, Any]]] = {}
    for device in devices:
        nodes.setdefault(device["node"], []).append({**device, "state": state_of(device)})
    return [_describe(name, found) for name, found in nodes.items()]


def _describe(name: str, devices: list[dict[str, Any]]) -> dict[str, Any]:
    details = {device["detail"] for device in devices}
    rack = devices[0].get("rack", DEFAULT_RACK)
    loads = [device["utilization"] for device in devices if device["utilization"] is not None]
    return {
        "name": name,
        "rack": "" if rack == DEFAULT_RACK else rack,
        "models": ", ".join(sorted({device["model"] for device in devices})),
        "devices": devices,
        "busy": sum(device["state"] == "busy" for device in devices),
        "utilization": fmean(loads) if loads else None,
        "trouble": details.pop() if len(details) == 1 else "",  # of the whole node
    }


def values(look: Look) -> dict[str, Any]:
    state, text = look.get("state"), look.get("q")
    jobs = {job["name"]: job["id"] for job in look.snapshot.running}
    nodes = by_node(look.snapshot.devices)
    found = []
    for node in nodes:
        kept = [
            device
            for device in node["devices"]
            if (not state or device["state"] == state)
            and contains(text, node["name"], node["rack"], device["model"], device["id"], *device["jobs"])
        ]
        if kept:
            found.append({**node, "shown": kept})
    return {
        "page": page_of(found, look.get("page"), NODES_ON_A_PAGE),
        "states": STATES,
        "filtered": bool(state or text),
        "total": len(nodes),
        "job_ids": jobs,
    }
