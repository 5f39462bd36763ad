"""Every private name of Prefect that we lean on, each with what happens where it is missing.

Nothing else in the project may touch a Prefect name that begins with an underscore or lives
under `prefect._internal`. `missing()` tries them all; the worker logs what it finds at start,
`gpu-flows doctor` shows it, and each function below goes on without its name.
"""

from __future__ import annotations

import gc
import importlib
import logging
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, cast

if TYPE_CHECKING:
    from prefect.workers.base import BaseWorker

    Worker = BaseWorker[Any, Any, Any]


KEEP_ENVIRONMENT_S = 30.0


def missing() -> list[str]:
    """What this Prefect lacks, and what we do instead, one line each."""
    return [f"{name}: {instead}" for name, check, instead in _LEANED_ON if not _holds(check)]


# -- stopping a run with a stated intent ------------------------------------------------------


def announce_intent(intent: str) -> None:
    """Tell Prefect's engine in this process why the SIGTERM that follows comes.
    Without it the engine reports the run crashed, and the worker puts that right afterwards."""
    set_intent = _lookup("prefect._internal.control_listener", "_set_intent")
    if set_intent and intent:
        set_intent(intent)


def announced_intent() -> str:
    """Why this process was asked to stop, as far as Prefect's engine knows. Without the name: nothing."""
    get_intent = _lookup("prefect._internal.control_listener", "get_intent")
    return str(get_intent() or "") if get_intent else ""


# -- loading a flow's code ---------------------------------------------------------------------


def load_directly(entrypoint: str) -> dict[str, str]:
    """The environment that makes Prefect's engine load this code at once, without asking the server
    where it is. Without it the engine asks, which takes about half a second."""
    return {"PREFECT__FLOW_ENTRYPOINT": entrypoint} if _loads_directly() else {}


def _loads_directly() -> bool:
    load_flow = _lookup("prefect.flow_engine", "load_flow")
    return load_flow is not None and "PREFECT__FLOW_ENTRYPOINT" in load_flow.__code__.co_consts


class QuickEnvironment:
    """Mixed into a job configuration: every launch asks for the worker's Prefect settings as environment
    variables, which takes longer than everything else about it. They are kept for a moment."""

    _kept: ClassVar[tuple[float, dict[str, str]]] = (0.0, {})

    @classmethod
    def _base_environment(cls) -> dict[str, str]:
        at, variables = QuickEnvironment._kept
        if not variables or time.monotonic() - at > KEEP_ENVIRONMENT_S:
            variables = super()._base_environment()  # type: ignore[misc]
            QuickEnvironment._kept = (time.monotonic(), variables)
        return dict(variables)


# -- the base worker's inner state ------------------------------------------------------------


def note_poll(worker: Worker) -> None:
    """Keep the worker's health check content: it looks at when runs were last asked for."""
    if hasattr(worker, "_last_polled_time"):
        worker._last_polled_time = datetime.now(UTC)


def is_synced(worker: Worker) -> bool:
    """Whether the worker has heard of its pool from the server."""
    return getattr(worker, "_work_pool", None) is not None and getattr(
        worker, "_has_successfully_synced", True
    )


def queues_asked_for(worker: Worker) -> set[str]:
    """The work queues named on the command line; empty means all of them."""
    return set(getattr(worker, "_work_queues", None) or ())


def logger(worker: Worker) -> logging.Logger:
    """The logger whose lines `prefect worker start` shows."""
    return cast(logging.Logger, getattr(worker, "_logger", None) or logging.getLogger("prefect.worker.gpu"))


# -- our card in the UI's work-pool wizard ----------------------------------------------------


def show_card_in_wizard(package: str, describe: Callable[[], dict[str, Any]]) -> None:
    """Add our worker type to the list the UI's wizard offers, when this process is the server.
    The server knows no other way for a third party. Without it the pool is made by the CLI."""
    collections = sys.modules.get("prefect.server.api.collections")
    original = getattr(collections, "get_collection_view", None)
    if original is None or getattr(original, "shows_gpu_flows", False):
        return

    async def with_our_card(view: str) -> dict[str, Any]:
        listed = await original(view)
        if view != "aggregate-worker-metadata":
            return dict(listed)
        return {**listed, package: describe()}

    with_our_card.shows_gpu_flows = True  # type: ignore[attr-defined]
    setattr(collections, "get_collection_view", with_our_card)  # noqa: B010


# -- a server on SQLite that must not stand still -----------------------------------------------

COLLECT_EVERY_S = 0.5


def collect_garbage_aside() -> None:
    """When this process is a server on SQLite: collect garbage in a thread of its own.

    Otherwise the collector may run in the event loop's thread, finalise a forgotten cursor there and
    wait for its connection; the connection waits for the one writer; and the writer's commit waits
    for the event loop. Only SQLite's busy timeout, a minute, undoes that knot."""
    if "prefect.server.api.server" not in sys.modules or not gc.isenabled() or not _on_sqlite():
        return
    gc.disable()
    threading.Thread(target=_keep_collecting, name="gpu-flows-garbage", daemon=True).start()


def _keep_collecting() -> None:
    """What Python's own collector does by counting, done by the clock."""
    thresholds = gc.get_threshold()
    while True:
        time.sleep(COLLECT_EVERY_S)
        due = [age for age, count in enumerate(gc.get_count()) if count > thresholds[age]]
        if due:
            gc.collect(max(due))


def _on_sqlite() -> bool:
    settings = _lookup("prefect.settings", "get_current_settings")
    try:
        url = settings().server.database.connection_url
        return "sqlite" in (url.get_secret_value() if url else "sqlite")
    except Exception:
        return False


# -- inside -----------------------------------------------------------------------------------


def _lookup(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name, None)
    except Exception:
        return None


def _holds(check: Callable[[], object]) -> bool:
    try:
        return bool(check())
    except Exception:
        return False


def _worker_has(name: str) -> bool:
    """Whether a base worker sets this attribute, told from its source without making one."""
    base = _lookup("prefect.workers.base", "BaseWorker")
    return name in base.__init__.__code__.co_names or hasattr(base, name)


_LEANED_ON: list[tuple[str, Callable[[], object], str]] = [
    (
        "prefect._internal.control_listener._set_intent",
        lambda: _lookup("prefect._internal.control_listener", "_set_intent"),
        "a run that is cancelled or preempted shows Crashed for a moment before it shows what it is",
    ),
    (
        "prefect._internal.control_listener.get_intent",
        lambda: _lookup("prefect._internal.control_listener", "get_intent"),
        "a `command` run that finishes while it is asked to leave is run again",
    ),
    (
        "BaseJobConfiguration._base_environment",
        lambda: hasattr(_lookup("prefect.workers.base", "BaseJobConfiguration"), "_base_environment"),
        "each launch takes some tens of milliseconds longer",
    ),
    (
        "PREFECT__FLOW_ENTRYPOINT",
        _loads_directly,
        "each run starts about half a second later",
    ),
    (
        "prefect.server.api.collections.get_collection_view",
        lambda: _lookup("prefect.server.api.collections", "get_collection_view"),
        "the UI's wizard does not offer the pool; `prefect work-pool create --type gpu` does",
    ),
    (
        "BaseWorker._last_polled_time",
        lambda: _worker_has("_last_polled_time"),
        "`--with-healthcheck` reports the worker as stale",
    ),
    (
        "BaseWorker._has_successfully_synced",
        lambda: _worker_has("_has_successfully_synced"),
        "the worker takes a known pool as a synced one",
    ),
    (
        "BaseWorker._work_queues",
        lambda: _worker_has("_work_queues"),
        "`--work-queue` is ignored: the worker serves every queue of the pool",
    ),
    (
        "BaseWorker._logger",
        lambda: _worker_has("_logger"),
        "the worker logs under another name",
    ),
]
