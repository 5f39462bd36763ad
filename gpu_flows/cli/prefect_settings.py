"""Prefect's settings, read without importing Prefect, which takes seconds.

The sources and their order are Prefect's: the environment, `.env`, `prefect.toml`, `[tool.prefect]` of
`pyproject.toml`, and the active profile. A test compares the result with Prefect's. If none of them names a
server, commands use the one of `gpu-flows up`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_flows.config.running_server import find_running_server


def read_setting(name: str) -> str:
    """The value of a setting such as PREFECT_API_URL; empty when it is not set."""
    return next((str(source[name]) for source in _read_sources() if source.get(name) is not None), "")


def use_running_server() -> None:
    """If no setting names a server, use that of `gpu-flows up` on this machine, with its home."""
    server = None if read_setting("PREFECT_API_URL") else find_running_server()
    if server and server.is_alive:
        os.environ.update(PREFECT_API_URL=server.api_url, GPU_FLOWS_HOME=server.home)


def build_run_url(run_id: str) -> str:
    """The address of a run's page in the Prefect UI; empty when no server is configured."""
    ui = read_setting("PREFECT_UI_URL") or read_setting("PREFECT_API_URL").rstrip("/").removesuffix("/api")
    return f"{ui.rstrip('/')}/runs/flow-run/{run_id}" if ui else ""


def _read_sources() -> Iterator[Mapping[str, Any]]:
    """Yield the sources in order of precedence. A source is read only if those before it lack the setting."""
    yield os.environ
    yield _read_dotenv()
    yield _flatten(_read_toml(Path("prefect.toml")))
    yield _flatten(_read_toml(Path("pyproject.toml")).get("tool", {}).get("prefect", {}))
    yield _read_profile()


def _read_dotenv() -> Mapping[str, Any]:
    if not Path(".env").is_file():
        return {}
    from dotenv import dotenv_values

    return {name.upper(): value for name, value in dotenv_values(".env").items()}


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _flatten(tables: Mapping[str, Any], prefix: str = "PREFECT") -> dict[str, Any]:
    """Name the entries of nested tables like settings: `[api] url` becomes PREFECT_API_URL."""
    found: dict[str, Any] = {}
    for key, value in tables.items():
        name = f"{prefix}_{key.upper()}"
        found.update(_flatten(value, name) if isinstance(value, dict) else {name: value})
    return found


def _read_profile() -> Mapping[str, Any]:
    path = os.environ.get("PREFECT_PROFILES_PATH") or _read_dotenv().get("PREFECT_PROFILES_PATH")
    home = os.environ.get("PREFECT_HOME") or Path.home() / ".prefect"
    profiles = _read_toml(Path(path) if path else Path(home) / "profiles.toml")
    active = os.environ.get("PREFECT_PROFILE") or profiles.get("active")
    return dict(profiles.get("profiles", {}).get(active, {}))
