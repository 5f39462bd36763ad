"""The warehouse: one DuckDB file, opened for writing only for moments.

DuckDB lets nobody in while a process has the file open for writing. So the recorder keeps an
empty in-memory instance, attaches the file to it (a tenth of the cost of opening one from
scratch), commits one batch of spool files, and detaches. In between anybody may read.

Exactly once: a batch's file names are committed in the same transaction as its facts. A file
whose name is found there was committed by somebody who died before removing it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb

from gpu_flows.analytics import schema_keeper
from gpu_flows.analytics.spool import UNREADABLE

logger = logging.getLogger(__name__)


class WarehouseError(Exception):
    """The file cannot be written now; the message says why and what to do."""


class Warehouse:
    """Writes batches of spool files into the database file. Used by one thread at a time."""

    def __init__(self, database: Path) -> None:
        self.database = database.absolute()
        self._instance: duckdb.DuckDBPyConnection | None = None
        self._inserts: dict[str, str] = {}  # for each table the statement that fills it
        self._removed: list[str] = []  # files that are gone, whose names need no remembering

    def load(self, next_batch: Callable[[], Sequence[Path]], patience_s: float = 0.0) -> None:
        """Commit the facts of a batch of files and remove the files.

        The batch is asked for when the file is open, so nothing is collected in vain while
        somebody reads. Raises WarehouseError, with the files kept, when it is not to be had.
        """
        try:
            self._load(next_batch, patience_s)
        except duckdb.Error as error:
            if not _is_damage(error):
                raise self._cannot_write(error) from error
            self._move_aside(error)
            try:
                self._load(next_batch, patience_s)
            except duckdb.Error as second:
                raise self._cannot_write(second) from second
        except OSError as error:
            raise self._cannot_write(error) from error

    @property
    def is_prepared(self) -> bool:
        """Whether this process has found, or made, the file in order."""
        return bool(self._inserts)

    def close(self) -> None:
        if self._instance is not None:
            with suppress(duckdb.Error):
                self._instance.close()
            self._instance = None

    def _load(self, next_batch: Callable[[], Sequence[Path]], patience_s: float) -> None:
        with self._opened(patience_s) as warehouse:
            texts = _read(next_batch())
            known = {name for (name,) in warehouse.execute("select file from drained").fetchall()}
            new = [path for path in texts if path.name not in known]
            text = "".join(texts[path] for path in new)
            warehouse.execute(_STAGE, {"text": text, "tables": list(self._inserts)})
            tables = {table for (table,) in warehouse.execute(_STAGED_TABLES).fetchall()}
            if None in tables:
                _keep_unreadable(warehouse, new)
            warehouse.execute("begin")
            for table in tables - {None}:
                warehouse.execute(self._inserts[table])
            warehouse.execute(_NOTE, [[path.name for path in new]])
            warehouse.execute(_FORGET, [self._removed])
            warehouse.execute("commit")
            # Still inside, so that no other recorder can read these files before they are gone.
            for path in texts:
                path.unlink(missing_ok=True)
            self._removed = [path.name for path in texts]

    @contextmanager
    def _opened(self, patience_s: float) -> Iterator[duckdb.DuckDBPyConnection]:
        """The file attached as the default database, with its schema and views up to date."""
        connection = self._attach(patience_s)
        try:
            connection.execute("use warehouse")
            self._prepare(connection)
            yield connection
            connection.execute("use memory")
            connection.execute("detach warehouse")
        except BaseException:
            # A failed transaction, a full disk and a fatal error all leave an instance that is not to
            # be trusted. A new one costs 20 ms and finds whatever was committed.
            self.close()
            raise

    def _attach(self, patience_s: float) -> duckdb.DuckDBPyConnection:
        if self._instance is None:
            self._instance = duckdb.connect(":memory:", config={"threads": 1})
        self.database.parent.mkdir(parents=True, exist_ok=True)
        path = str(self.database).replace("'", "''")
        deadline = time.monotonic() + patience_s
        while True:
            try:
                return self._instance.execute(f"attach '{path}' as warehouse")
            except duckdb.Error as error:
                if isinstance(error, duckdb.FatalException):
                    self.close()
                if not _is_lock_conflict(error) or time.monotonic() >= deadline:
                    raise
            time.sleep(0.05)

    def _prepare(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Bring an older or empty file up to date; refuse one of a newer version."""
        version, newest = schema_keeper.version(connection), schema_keeper.newest_version()
        if version > newest:
            raise WarehouseError(
                f"{self.database} was written by a newer gpu-flows (its schema is {version}, this one knows"
                f" {newest}). Upgrade gpu-flows, or name another file in the Warehouse block."
            )
        if version < newest or not self.is_prepared:
            schema_keeper.bring_up_to_date(connection)
            self._inserts = schema_keeper.inserts(connection)

    def _move_aside(self, error: Exception) -> None:
        """A damaged file would stop everything for ever: keep it for a doctor and begin a new one."""
        aside = self.database.with_name(f"{self.database.name}.damaged-{time.strftime('%Y%m%dT%H%M%S')}")
        self.database.rename(aside)
        with suppress(FileNotFoundError):
            self.database.with_name(self.database.name + ".wal").rename(aside.with_name(aside.name + ".wal"))
        aside.with_name(aside.name + ".reason.txt").write_text(f"{error}\n", encoding="utf-8")
        logger.critical(
            "The warehouse %s was damaged (%s). It was moved to %s, and a new one begins with what the spool"
            " holds; older facts are only in the file that was moved.",
            self.database,
            _first_line(error),
            aside,
        )

    def _cannot_write(self, error: Exception) -> WarehouseError:
        if _is_lock_conflict(error):
            return WarehouseError(
                f"{self.database} is in use by {_lock_holder(error)}; facts wait in the spool meanwhile."
            )
        advice = " Free some space or fix its permissions." if _is_about_the_disk(error) else ""
        return WarehouseError(
            f"The warehouse cannot be written: {_first_line(error).rstrip('.')}.{advice}"
            " Facts wait in the spool and follow by themselves."
        )


def _is_lock_conflict(error: Exception) -> bool:
    """Another process, or another connection of this one, has the file open."""
    return "Could not set lock" in str(error) or "Unique file handle conflict" in str(error)


def _lock_holder(error: Exception) -> str:
    """Out of `... Conflicting lock is held in /usr/bin/duckdb (PID 4711) ...`."""
    _, found, rest = str(error).partition("(PID ")
    return f"process {rest.partition(')')[0]}" if found else "another connection of this process"


def _is_damage(error: Exception) -> bool:
    signs = ("not a valid DuckDB database file", "Corrupt database file", "Could not read enough bytes")
    return any(sign in str(error) for sign in signs)


def _is_about_the_disk(error: Exception) -> bool:
    signs = ("No space left", "Read-only file system", "Permission denied", "Not a directory")
    return any(sign in str(error) for sign in signs)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].strip() or type(error).__name__


# Lines of the spool, each with the table it belongs to; none for a line that makes no sense.
_STAGE = """
create or replace temp table incoming as
select fact, if(list_contains($tables, named), named, null) as table_name
from (
    select fact, case when json_valid(fact) then fact ->> '$.table' end as named
    from (select unnest(string_split($text, chr(10))) as fact)
    where fact <> ''
)
"""
_NOTE = "insert into drained select unnest($1::varchar[])"
_FORGET = "delete from drained where list_contains($1::varchar[], file)"
_STAGED_TABLES = "select distinct table_name from incoming"
_UNREADABLE_LINES = "select fact from incoming where table_name is null"


def _read(files: Sequence[Path]) -> dict[Path, str]:
    """The text of those that are still there."""
    texts = {}
    for path in files:
        with suppress(FileNotFoundError):
            texts[path] = path.read_text(encoding="utf-8", errors="replace")
    return texts


def _keep_unreadable(warehouse: duckdb.DuckDBPyConnection, files: Sequence[Path]) -> None:
    """A line that makes no sense (a disk's mistake, a newer version's table) is kept for a human."""
    lines = [line for (line,) in warehouse.execute(_UNREADABLE_LINES).fetchall()]
    kept = files[0].with_suffix(UNREADABLE)
    kept.write_text("\n".join(lines) + "\n", encoding="utf-8")
    logger.error("%d spooled lines could not be read; they are kept in %s", len(lines), kept)
