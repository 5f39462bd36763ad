"""The warehouse: one DuckDB file, which is open for writing only for moments.

While a process has a DuckDB file open for writing, no other process can open it. So the recorder keeps
an empty in-memory instance, attaches the file to it (a tenth of the cost of opening one from scratch),
commits one batch of spool files, and detaches. In between, other processes can read.

Each file is loaded exactly once: its name is committed in the same transaction as its facts. A file
whose name is found there was loaded by a process that died before it removed the file.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import duckdb

from gpu_flows.analytics import migrations, sample_minutes
from gpu_flows.analytics.fact_spool import UNREADABLE
from gpu_flows.analytics.insert_statements import INCOMING, insert_statements
from gpu_flows.common.retry import Backoff, retry_blocking

logger = logging.getLogger(__name__)

ATTACH_EVERY_S = 0.05


class WarehouseError(Exception):
    """The file cannot be written now. The message says why and what to do; `problem` is the message without
    what becomes of the facts in the spool."""

    def __init__(self, problem: str, consequence: str = "") -> None:
        super().__init__(f"{problem} {consequence}".strip())
        self.problem = problem


class Warehouse:
    """Writes batches of spool files into the database file. Used by one thread at a time."""

    def __init__(self, database: Path) -> None:
        self.database = database.absolute()
        self._instance: duckdb.DuckDBPyConnection | None = None
        self._inserts: dict[str, str] = {}  # the statement for each name under which facts are spooled
        self._removed: list[
            str
        ] = []  # loaded and removed files, whose names can be deleted from the database

    def load(self, next_batch: Callable[[], Sequence[Path]], patience_s: float = 0.0) -> None:
        """Commit the facts of a batch of files, and remove the files.

        `next_batch` is called when the database is open, so that no batch is collected in vain while
        another process has it open. Raises WarehouseError if the database cannot be written; then the
        files are kept.
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

    def age_samples(self, now: datetime, keep: timedelta | None, patience_s: float = 0.0) -> bool:
        """Roll up samples, or delete some that are older than `keep`; None keeps all. One short transaction,
        so it returns whether it did something: there may be more to do. Raises WarehouseError."""
        try:
            with self._opened(patience_s) as warehouse:
                if sample_minutes.roll_up(warehouse, now):
                    return True
                return keep is not None and sample_minutes.delete_old_samples(warehouse, now - keep)
        except (duckdb.Error, OSError) as error:
            raise self._cannot_write(error) from error

    @property
    def is_prepared(self) -> bool:
        """Whether this process has brought the schema and the views up to date."""
        return bool(self._inserts)

    def close(self) -> None:
        """Close the in-memory instance; the next load opens another one."""
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
            sample_minutes.note_late_facts(warehouse)
            warehouse.execute(_ADD_DRAINED, [[path.name for path in new]])
            warehouse.execute(_DELETE_DRAINED, [self._removed])
            warehouse.execute("commit")
            # The database is still locked, so no other recorder can load these files meanwhile.
            for path in texts:
                path.unlink(missing_ok=True)
            self._removed = [path.name for path in texts]

    @contextmanager
    def _opened(self, patience_s: float) -> Iterator[duckdb.DuckDBPyConnection]:
        """Attach the file as the default database, with its schema and views up to date."""
        connection = self._attach(patience_s)
        try:
            connection.execute("use warehouse")
            self._prepare(connection)
            yield connection
            connection.execute("use memory")
            connection.execute("detach warehouse")
        except BaseException:
            # After a failed transaction, a full disk or a fatal error the instance cannot be trusted. A new
            # one costs 20 ms and reads what was committed.
            self.close()
            raise

    def _attach(self, patience_s: float) -> duckdb.DuckDBPyConnection:
        if self._instance is None:
            self._instance = duckdb.connect(":memory:", config={"threads": 1})
        self.database.parent.mkdir(parents=True, exist_ok=True)
        path = str(self.database).replace("'", "''")
        attach = partial(self._instance.execute, f"attach '{path}' as warehouse")
        backoff = Backoff(ATTACH_EVERY_S, attempts=1 + round(patience_s / ATTACH_EVERY_S))
        try:
            return retry_blocking(attach, backoff, _is_lock_conflict)
        except duckdb.FatalException:
            self.close()
            raise

    def _prepare(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Bring an older or empty file up to date. Refuse one that a newer version has written."""
        version, newest = migrations.read_version(connection), migrations.newest_version()
        if version > newest:
            raise WarehouseError(
                f"{self.database} was written by a newer gpu-flows (its schema is {version}, this one knows"
                f" {newest}). Upgrade gpu-flows, or name another file in the Warehouse block."
            )
        if version < newest or not self.is_prepared:
            migrations.migrate(connection)
            self._inserts = insert_statements(connection)

    def _move_aside(self, error: Exception) -> None:
        """Rename a damaged file, so that recording continues in a new one and the old one can be examined."""
        aside = self.database.with_name(f"{self.database.name}.damaged-{time.strftime('%Y%m%dT%H%M%S')}")
        self.database.rename(aside)
        with suppress(FileNotFoundError):
            self.database.with_name(self.database.name + ".wal").rename(aside.with_name(aside.name + ".wal"))
        aside.with_name(aside.name + ".reason.txt").write_text(f"{error}\n", encoding="utf-8")
        logger.critical(
            "The warehouse %s is damaged (%s). It was moved to %s, and a new one starts with the facts in the"
            " spool; older facts are only in the file that was moved.",
            self.database,
            _first_line(error),
            aside,
        )

    def _cannot_write(self, error: Exception) -> WarehouseError:
        if _is_lock_conflict(error):
            return WarehouseError(
                f"{self.database} is in use by {_lock_holder(error)}.", "Facts wait in the spool until then."
            )
        advice = " Free some space or fix its permissions." if _is_disk_problem(error) else ""
        return WarehouseError(
            f"The warehouse cannot be written: {_first_line(error).rstrip('.')}.{advice}",
            "Facts wait in the spool and are loaded when it can be.",
        )


def _is_lock_conflict(error: Exception) -> bool:
    """Return whether another process, or another connection of this one, has the file open."""
    return "Could not set lock" in str(error) or "Unique file handle conflict" in str(error)


def _lock_holder(error: Exception) -> str:
    """Parse `... Conflicting lock is held in /usr/bin/duckdb (PID 4711) ...`."""
    _, found, rest = str(error).partition("(PID ")
    return f"process {rest.partition(')')[0]}" if found else "another connection of this process"


def _is_damage(error: Exception) -> bool:
    signs = ("not a valid DuckDB database file", "Corrupt database file", "Could not read enough bytes")
    return any(sign in str(error) for sign in signs)


def _is_disk_problem(error: Exception) -> bool:
    signs = ("No space left", "Read-only file system", "Permission denied", "Not a directory")
    return any(sign in str(error) for sign in signs)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].strip() or type(error).__name__


# The lines of the spool, each with the table it belongs to, or NULL if it cannot be read.
_STAGE = f"""
create or replace temp table {INCOMING} as
select fact, if(list_contains($tables, named), named, null) as table_name
from (
    select fact, case when json_valid(fact) then fact ->> '$.table' end as named
    from (select unnest(string_split($text, chr(10))) as fact)
    where fact <> ''
)
"""
_STAGED_TABLES = f"select distinct table_name from {INCOMING}"
_UNREADABLE_LINES = f"select fact from {INCOMING} where table_name is null"
_ADD_DRAINED = "insert into drained select unnest($1::varchar[])"
_DELETE_DRAINED = "delete from drained where list_contains($1::varchar[], file)"


def _read(files: Sequence[Path]) -> dict[Path, str]:
    """Return the texts of the files that still exist."""
    texts = {}
    for path in files:
        with suppress(FileNotFoundError):
            texts[path] = path.read_text(encoding="utf-8", errors="replace")
    return texts


def _keep_unreadable(warehouse: duckdb.DuckDBPyConnection, files: Sequence[Path]) -> None:
    """Keep lines that cannot be loaded (damaged on disk, or of a newer version's table) in a file."""
    lines = [line for (line,) in warehouse.execute(_UNREADABLE_LINES).fetchall()]
    kept = files[0].with_suffix(UNREADABLE)
    kept.write_text("\n".join(lines) + "\n", encoding="utf-8")
    logger.error("%d spooled lines could not be read; they are kept in %s", len(lines), kept)
