"""Which Prefect server to talk to, read from Prefect's own settings without importing Prefect.

Prefect takes seconds to import, and a command that only reads a list should answer at once. The
sources and their order are Prefect's: the environment, `.env`, `prefect.toml`, `[tool.prefect]`
of `pyproject.toml`, and the active profile. A test compares the outcome with Prefect's.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def setting(name: str) -> str:
    """The value of a setting such as PREFECT_API_URL; empty when it is set nowhere, or to nothing."""
    return next((str(source[name]) for source in _sources() if source.get(name) is not None), "")


def page_of_run(run_id: str) -> str:
    """Where the UI shows a run; empty when no server is known."""
    ui = setting("PREFECT_UI_URL") or setting("PREFECT_API_URL").rstrip("/").removesuffix("/api")
    return f"{ui.rstrip('/')}/runs/flow-run/{run_id}" if ui else ""


def _sources() -> Iterator[Mapping[str, Any]]:
    """In the order in which they win; each is read only when those before it said nothing."""
    yield os.environ
    yield _dotenv()
    yield _flat(_toml(Path("prefect.toml")))
    yield _flat(_toml(Path("pyproject.toml")).get("tool", {}).get("prefect", {}))
    yield _profile()


def _dotenv() -> Mapping[str, Any]:
    if not Path(".env").is_file():
        return {}
    from dotenv import dotenv_values

    return {name.upper(): value for name, value in dotenv_values(".env").items()}


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _flat(tables: Mapping[str, Any], prefix: str = "PREFECT") -> dict[str, Any]:
    """`[api] url = ...` as PREFECT_API_URL."""
    found: dict[str, Any] = {}
    for key, value in tables.items():
        name = f"{prefix}_{key.upper()}"
        found.update(_flat(value, name) if isinstance(value, dict) else {name: value})
    return found


def _profile() -> Mapping[str, Any]:
    path = os.environ.get("PREFECT_PROFILES_PATH") or _dotenv().get("PREFECT_PROFILES_PATH")
    home = os.environ.get("PREFECT_HOME") or Path.home() / ".prefect"
    profiles = _toml(Path(path) if path else Path(home) / "profiles.toml")
    active = os.environ.get("PREFECT_PROFILE") or profiles.get("active")
    return dict(profiles.get("profiles", {}).get(active, {}))
