"""The choice of a policy as a GPU Scheduler block saves it:

    {"policy": "round_robin", "options": {"round_robin": {"wait_for_turn": true}, "fifo": {"skip": true}}}

A block keeps the options of every policy; those of the chosen one count. What is left out has its default.
`"shadows": ["sjf", "srtf"]` names policies that plan beside the chosen one; their options count too.
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


def read_shadows(saved: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the options of each shadow, by name. The chosen policy is not its own shadow. Raises ValueError
    if the block has no list of names, or no usable options for one of them."""
    names = saved.get("shadows") or []
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise ValueError("names its shadows by something else than a list of policies")
    chosen = saved.get("policy")
    chosen = chosen.get("name") if isinstance(chosen, Mapping) else chosen
    return {name: read_choice({**saved, "policy": name})[1] for name in names if name != chosen}


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


def promote(saved: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the content of the block in which this shadow is the policy, and the policy is a shadow in its
    place. Both keep their options. Raises ValueError if the block names no policy, and KeyError if it has no
    such shadow."""
    before, its_options = read_choice(saved)
    shadows = read_shadows(saved)
    content = write_choice(write_choice(saved, before, its_options), name, shadows[name])
    return {**content, "shadows": [before if shadow == name else shadow for shadow in shadows]}
