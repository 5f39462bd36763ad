"""The plugin changes a Prefect server only where gpu-flows has started it, and is quick to import."""

from __future__ import annotations

import os
import subprocess
import sys

from gpu_flows.config.paths import EXTEND_SERVER

# The plugin finds out by these modules that it is in a server. The real ones take long to import.
PRETEND_TO_BE_A_SERVER = """
import gc, sys, types
collections = types.ModuleType("prefect.server.api.collections")
collections.get_collection_view = original = lambda view: None
sys.modules["prefect.server.api.collections"] = collections
sys.modules["prefect.server.api.server"] = types.ModuleType("prefect.server.api.server")
import gpu_flows.prefect_plugin
heavy = sorted({"duckdb", "psutil"} & set(sys.modules))
print(collections.get_collection_view is original, gc.isenabled(), *heavy)
"""


def load_in_server(**environment: str) -> str:
    env = {**{name: value for name, value in os.environ.items() if name != EXTEND_SERVER}, **environment}
    done = subprocess.run(
        [sys.executable, "-c", PRETEND_TO_BE_A_SERVER], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_server_of_someone_else_stays_as_it_is() -> None:
    assert load_in_server() == "True True", "not patched, with its own garbage collection, without duckdb"


def test_server_of_ours_is_extended() -> None:
    assert load_in_server(**{EXTEND_SERVER: "1"}) == "False False"
