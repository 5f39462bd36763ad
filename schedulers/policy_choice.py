"""The choice of a policy as a GPU Scheduler block saves it:

    {"policy": "round_robin", "options": {"round_robin": {"wait_for_turn": true}, "fifo": {"skip": true}}}

A block keeps the options of every policy; those of the chosen one count. What is left out has its default.
Until 0.3 a block had one policy, with its name among its options:

    {"policy": {"name": "round_robin", "wait_for_turn": true}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def read_choice(saved: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of the chosen policy. Raises ValueError if the block has none."""
    chosen = saved.get("policy")
    name = chosen.get("name") if isinstance(chosen, Mapping) else chosen
    if not isinstance(name, str) or not name:
        raise ValueError("names no policy")
    if isinstance(chosen, Mapping):
        return name, {key: value for key, value in chosen.items() if key != "name"}
    sections = saved.get("options") or {}
    options = (sections.get(name) or {}) if isinstance(sections, Mapping) else sections
    if not isinstance(options, Mapping):
        raise ValueError(f"names no usable options of policy {name!r}")
    return name, dict(options)


def describe_options(options: Mapping[str, Any]) -> str:
    """Return `sharing=exclusive, skip=true`, as one would type them."""
    return ", ".join(f"{name}={_write_value(value)}" for name, value in options.items()) or "no options"


def _write_value(value: Any) -> str:
    return str(value) if isinstance(value, str) else json.dumps(value)


def write_choice(saved: Mapping[str, Any], name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of the block with another choice. The options of other policies stay."""
    sections = saved.get("options")
    kept = dict(sections) if isinstance(sections, Mapping) else {}
    if isinstance(saved.get("policy"), Mapping) and saved["policy"].get("name"):
        before, its_options = read_choice(saved)
        kept[before] = its_options
    return {**saved, "policy": name, "options": {**kept, name: dict(options)}}
