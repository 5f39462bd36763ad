"""How fast every view and named query answers over a large history, and how long the writer holds the file.

    python benchmarks/answers_sql.py [--days 10] [--jobs 20000] [--waiting 1000] [--keep FILE] [--json]

The history has 24 devices that are sampled every two seconds for ten days (10 million samples), 20,000 ended
jobs, 1,000 waiting and 20 running ones, with forecasts and shadows. Samples are rolled up as a worker does
it. Views and queries are timed through `run_query` (the way of `gpu-flows sql`: a process of its own, at most
1,000 rows), and the figures, the numbers and the tables of the last week as the report reads them, with their
drawing. The processor time of this is printed beside it, and the time inside DuckDB for all rows.

Exit code 1 if an answer takes more than a second, or if the writer holds the file for longer than half of the
time for which readers wait.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
from answers_history import DAY, DEVICES, POOL, START, make_facts

from gpu_flows.analytics import sql_files
from gpu_flows.analytics.facts import Fact
from gpu_flows.analytics.figures.catalogue import CHARTS
from gpu_flows.analytics.figures.chart import list_views, read_chart
from gpu_flows.analytics.query_runner import PATIENCE_S, run_query
from gpu_flows.analytics.recorder import Recorder
from gpu_flows.analytics.report import find_scope
from gpu_flows.analytics.report_tables import NUMBERS, TABLES, read_numbers, read_table
from gpu_flows.analytics.warehouse import Warehouse

SAMPLE_EVERY_S, LIMIT_S = 2, 1.0
HELD_S = PATIENCE_S / 2  # the longest that the file may be held for writing


def build(database: Path, days: float, jobs: int, waiting: int) -> float:
    """Write the history. Returns the time of its end."""
    end = START + days * DAY
    recorder = Recorder(database, database.parent / "spool")
    batch: list[Fact] = []
    for fact in make_facts(jobs, waiting, end):
        batch.append(fact)
        if len(batch) == 10_000:
            recorder.write(*batch)
            recorder.flush()
            batch.clear()
    recorder.write(*batch)
    if not recorder.drain():
        sys.exit(recorder.trouble)
    recorder.close()
    with duckdb.connect(str(database)) as connection:
        connection.execute(
            "create temp table sampled as select unnest($1::varchar[]) as device_id",
            [[d for d, _ in DEVICES]],
        )
        connection.execute(
            _SAMPLES, {"start": START, "every": SAMPLE_EVERY_S, "count": int(days * DAY / SAMPLE_EVERY_S)}
        )
    return end


_SAMPLES = """
insert into samples
select
    to_timestamp($start + $every * second + hash(device_id, second) % 100 / 1e3),
    device_id,
    hash(device_id, second // 300) % 101,
    hash(device_id, second // 300, 1) % 40_000,
    60 + hash(device_id, second) % 340,
    40 + hash(device_id, second // 30) % 40
from (select unnest(range($count)) as second), sampled
order by 1
"""


def age(database: Path, end: float, keep: timedelta | None) -> tuple[int, float, float]:
    """Roll up (and delete) all old samples. Returns the number of transactions, the longest and mean time."""
    warehouse, times = Warehouse(database), []
    warehouse.load(lambda: [])
    while True:
        began = time.perf_counter()
        more = warehouse.age_samples(datetime.fromtimestamp(end, UTC), keep)
        times.append(time.perf_counter() - began)
        if not more:
            break
    warehouse.close()
    return len(times), max(times), sum(times) / len(times)


@dataclass(frozen=True)
class Answer:
    """How long it took, in seconds: for who asked, of processor time, and inside DuckDB with all rows."""

    name: str
    seconds: float
    processor: float
    inside: float


Question = tuple[str, Callable[[], object], str, dict[str, Any]]
"""Its name, how it is asked, and its SQL with values."""


def ask_views(database: Path) -> Iterator[Question]:
    for name, sql in sql_files.views().items():
        if "create or replace view" in sql:
            yield name, partial(run_query, database, f"from {name}", max_rows=1000), f"from {name}", {}
    for query in sql_files.named_queries():
        defaults = {parameter.name: parameter.default for parameter in query.parameters}
        ask = partial(run_query, database, query.name, max_rows=1000)
        yield f"query {query.name}", ask, query.sql, defaults


def ask_report(database: Path) -> Iterator[Question]:
    scope = find_scope(database, POOL, 7 * DAY)
    views, values = list_views(scope), {"pool": POOL, "since": scope.since, "until": scope.until}
    for chart in CHARTS:
        yield f"figure {chart.key}", partial(read_chart, chart, scope, views), chart.sql, values
    yield "report numbers", partial(read_numbers, scope), NUMBERS, values
    for title, *rest in TABLES:
        yield f"report {title}", partial(read_table, scope, title, *rest), rest[1], values


def time_answers(database: Path) -> Iterator[Answer]:
    settings = {"threads": 2, "memory_limit": "2048MiB", "temp_directory": ""}
    connection = duckdb.connect(str(database), read_only=True, config=settings)
    for name, ask, sql, values in [*ask_views(database), *ask_report(database)]:
        began, cpu = time.perf_counter(), processor_time()
        ask()
        took, cpu = time.perf_counter() - began, processor_time() - cpu
        count = f"select count(columns(*)) from ({sql}\n)".replace(";", "")
        wanted = {key: value for key, value in values.items() if f"${key}" in sql}
        began = time.perf_counter()
        connection.execute(count, wanted or None).fetchall()
        yield Answer(name, took, cpu, time.perf_counter() - began)


def processor_time() -> float:
    """Return that of this process and of the query processes that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def age_and_print(database: Path, end: float, keep: timedelta | None, what: str) -> bool:
    """Returns whether no transaction held the file for too long."""
    count, longest, mean = age(database, end, keep)
    print(
        f"{what} in {count} transactions: longest {longest:.3f} s (limit {HELD_S:g} s), mean {mean:.3f} s;"
        f" the file has {database.stat().st_size / 2**20:.0f} MiB",
        file=sys.stderr,
    )
    return longest < HELD_S


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--days", type=float, default=10)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--waiting", type=int, default=1_000)
    parser.add_argument("--keep", type=Path, help="keep the warehouse in this file, and use it if it exists")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database = options.keep or Path(folder, "warehouse.duckdb")
        end = START + options.days * DAY
        is_short = True
        if not database.exists():
            began = time.perf_counter()
            build(database, options.days, options.jobs, options.waiting)
            size = database.stat().st_size / 2**20
            print(f"built in {time.perf_counter() - began:.0f} s, {size:.0f} MiB", file=sys.stderr)
            is_short = age_and_print(database, end, None, "rolled up")
        answers = list(time_answers(database))
        if not options.keep:
            what = "deleted what is older than 7 days"
            is_short = age_and_print(database, end, timedelta(days=7), what) and is_short
    if options.json:
        print(json.dumps([asdict(answer) for answer in answers]))
    else:
        for answer in answers:
            verdict = "PASS" if answer.seconds < LIMIT_S else "FAIL"
            print(
                f"{answer.name:32} {answer.seconds:7.3f} s   processor {answer.processor:7.3f} s"
                f"   inside {answer.inside:7.3f} s   {verdict}"
            )
        print("load:", *(f"{load:.1f}" for load in os.getloadavg()))
    sys.exit(not is_short or any(answer.seconds >= LIMIT_S for answer in answers))


if __name__ == "__main__":
    main()
