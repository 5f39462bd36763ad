"""Every private name of Prefect that gpu-flows uses, each with its effect if the name is missing.

No other module may use a Prefect name that begins with an underscore or that is defined under
`prefect._internal`. `find_missing_names()` checks all of them; the worker logs the result at its start, and
`gpu-flows doctor` shows it. Each function below also works without its name, with less effect.
"""

from __future__ import annotations

import gc
import importlib
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, cast

if TYPE_CHECKING:
    from prefect.workers.base import BaseWorker

    Worker = BaseWorker[Any, Any, Any]


CACHE_ENVIRONMENT_S = 30.0
MOST_CAUSES = 100  # of an error; they may form a circle
ENGINES = ("FlowRunEngine", "AsyncFlowRunEngine")


def find_missing_names() -> list[str]:
    """Return one line for each name that this version of Prefect lacks, with the effect of that."""
    return [f"{name}: {effect}" for name, check, effect in _PRIVATE_NAMES if not _passes(check)]


# -- stopping a run with a stated intent ------------------------------------------------------


def announce_intent(intent: str) -> None:
    """Announce to Prefect's engine in this process why it is about to receive SIGTERM.
    Without the name, the engine reports that the run crashed, and the worker corrects that afterwards."""
    set_intent = _lookup("prefect._internal.control_listener", "_set_intent")
    if set_intent and intent:
        set_intent(intent)


def announced_intent() -> str:
    """Return why this process was asked to stop, according to Prefect's engine. Without the name: an empty
    string."""
    get_intent = _lookup("prefect._internal.control_listener", "get_intent")
    return str(get_intent() or "") if get_intent else ""


# -- a run that is out of GPU memory ----------------------------------------------------------


def leave_unreported(run_id: str, applies: Callable[[str], bool]) -> None:
    """Let the engine in this process end without a report if the run fails with an error to which, or to
    whose cause, this applies: its worker then lets the run wait again. Without the names, the run is Failed
    until the worker corrects that, and has used up its retries."""
    signalled = _lookup("prefect.exceptions", "TerminationSignal")

    def wrap(handle: Callable[..., Any]) -> Callable[..., Any]:
        def handle_exception(engine: Any, error: Exception, *args: Any, **options: Any) -> Any:
            is_root = str(engine.flow_run.id) == run_id
            if is_root and any(applies(f"{type(cause).__name__}: {cause}") for cause in _causes(error)):
                announce_intent("reschedule")
                raise signalled(signal.SIGTERM)
            return handle(engine, error, *args, **options)

        return handle_exception

    for engine in (_lookup("prefect.flow_engine", name) for name in ENGINES):
        if signalled and hasattr(engine, "handle_exception"):
            engine.handle_exception = wrap(engine.handle_exception)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Return the error, the one that it was raised from, and so on."""
    for _ in range(MOST_CAUSES):
        if error is None:
            return
        yield error
        error = error.__cause__


# -- the log of a failed run ------------------------------------------------------------------


class LogErrorsOnce(logging.Filter):
    """Drops a traceback that the run's log already contains. Prefect's engine logs the error of a flow when
    it occurs, and again when the process ends. A failed state that the flow returned itself, with a message,
    needs no traceback at all."""

    def __init__(self) -> None:
        super().__init__()
        self._logged: BaseException | None = None

    @classmethod
    def install(cls) -> None:
        logging.getLogger("prefect.flow_runs").addFilter(cls())

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return True
        repeated = error is self._logged or type(error).__name__ == "FailedRun"
        self._logged = error
        return not repeated


# -- loading a flow's code --------------------------------------------------------------------


def load_directly(entrypoint: str) -> dict[str, str]:
    """Return the environment that makes Prefect's engine load this code without first requesting its location
    from the server. Without the name, the engine sends that request, which takes about half a second."""
    return {"PREFECT__FLOW_ENTRYPOINT": entrypoint} if _loads_directly() else {}


def _loads_directly() -> bool:
    load_flow = _lookup("prefect.flow_engine", "load_flow")
    return load_flow is not None and "PREFECT__FLOW_ENTRYPOINT" in load_flow.__code__.co_consts


class QuickEnvironment:
    """A mixin for a job configuration that caches the worker's Prefect settings as environment variables.
    Collecting them takes longer than the rest of a launch."""

    _cached: ClassVar[tuple[float, dict[str, str]]] = (0.0, {})

    @classmethod
    def _base_environment(cls) -> dict[str, str]:
        at, variables = QuickEnvironment._cached
        if not variables or time.monotonic() - at > CACHE_ENVIRONMENT_S:
            variables = super()._base_environment()  # type: ignore[misc]
            QuickEnvironment._cached = (time.monotonic(), variables)
        return dict(variables)


# -- the base worker's state ------------------------------------------------------------------


def record_poll(worker: Worker) -> None:
    """Record the time of a poll. The worker's health check fails if there was none for a while."""
    if hasattr(worker, "_last_polled_time"):
        worker._last_polled_time = datetime.now(UTC)


def is_synced(worker: Worker) -> bool:
    """Whether the worker has read its pool from the server."""
    return getattr(worker, "_work_pool", None) is not None and getattr(
        worker, "_has_successfully_synced", True
    )


def requested_queues(worker: Worker) -> set[str]:
    """Return the work queues named on the command line; empty means all of them."""
    return set(getattr(worker, "_work_queues", None) or ())


def logger(worker: Worker) -> logging.Logger:
    """Return the logger whose output `prefect worker start` shows."""
    return cast(logging.Logger, getattr(worker, "_logger", None) or logging.getLogger("prefect.worker.gpu"))


# -- the card in the UI's work-pool wizard ----------------------------------------------------


def add_wizard_card(package: str, describe: Callable[[], dict[str, Any]]) -> None:
    """Add the worker type to the list in the UI's wizard, if this process is the server. The server offers no
    public way for third parties. Without the name, pools can be created with the CLI only."""
    collections = sys.modules.get("prefect.server.api.collections")
    original = getattr(collections, "get_collection_view", None)
    if original is None or getattr(original, "shows_gpu_flows", False):
        return

    async def get_view_with_card(view: str) -> dict[str, Any]:
        collections_by_name = await original(view)
        if view != "aggregate-worker-metadata":
            return dict(collections_by_name)
        return {**collections_by_name, package: describe()}

    get_view_with_card.shows_gpu_flows = True  # type: ignore[attr-defined]
    setattr(collections, "get_collection_view", get_view_with_card)  # noqa: B010


# -- garbage collection in a server on SQLite --------------------------------------------------

COLLECT_EVERY_S = 0.5


def collect_garbage_in_thread() -> None:
    """Collect garbage in a thread of its own, if this process is a server on SQLite.

    Otherwise the collector may run in the event loop's thread and finalise an unused cursor there, which
    waits for its connection. The connection waits for the one writer, and the writer's commit waits for the
    event loop. This deadlock would last until SQLite's busy timeout, one minute."""
    if "prefect.server.api.server" not in sys.modules or not gc.isenabled() or not _on_sqlite():
        return
    gc.disable()
    threading.Thread(target=_keep_collecting, name="gpu-flows-garbage", daemon=True).start()


def _keep_collecting() -> None:
    """Do at regular intervals what Python's own collector does by counting allocations."""
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


# -- checks -----------------------------------------------------------------------------------


def _lookup(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name, None)
    except Exception:
        return None


def _passes(check: Callable[[], object]) -> bool:
    try:
        return bool(check())
    except Exception:
        return False


def _worker_has(name: str) -> bool:
    """Whether a base worker sets this attribute, according to its code. No worker is created for the
    check."""
    base = _lookup("prefect.workers.base", "BaseWorker")
    return name in base.__init__.__code__.co_names or hasattr(base, name)


_PRIVATE_NAMES: list[tuple[str, Callable[[], object], str]] = [
    (
        "prefect._internal.control_listener._set_intent",
        lambda: _lookup("prefect._internal.control_listener", "_set_intent"),
        "a run that is cancelled or preempted shows Crashed for a moment before its real state",
    ),
    (
        "prefect._internal.control_listener.get_intent",
        lambda: _lookup("prefect._internal.control_listener", "get_intent"),
        "a `command` run that finishes while it is being preempted runs again",
    ),
    (
        "FlowRunEngine.handle_exception",
        lambda: all(hasattr(_lookup("prefect.flow_engine", name), "handle_exception") for name in ENGINES),
        "a flow that runs out of GPU memory is Failed for a moment before it waits for more",
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
        "the worker treats a pool as synced as soon as it is known",
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
