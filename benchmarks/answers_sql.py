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
import heapq
import json
import os
import random
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

from gpu_flows.analytics import sql_files
from gpu_flows.analytics.facts import (
    Allocated,
    AttemptEnded,
    AttemptInterrupted,
    AttemptStarted,
    Decided,
    DeviceEvent,
    DeviceSeen,
    ExperimentRan,
    Fact,
    FeaturesSeen,
    Forecast,
    JobEnded,
    JobSubmitted,
    MemoryPeak,
    NodeSeen,
    Offered,
    Predicted,
    ProgressReported,
    Regretted,
    SavedWork,
    ShadowDecided,
    ShadowProjected,
    Swapped,
)
from gpu_flows.analytics.figures.catalogue import CHARTS
from gpu_flows.analytics.figures.chart import list_views, read_chart
from gpu_flows.analytics.query_runner import PATIENCE_S, run_query
from gpu_flows.analytics.recorder import Recorder
from gpu_flows.analytics.report import find_scope
from gpu_flows.analytics.report_tables import NUMBERS, TABLES, read_numbers, read_table
from gpu_flows.analytics.warehouse import Warehouse

START, DAY, LIMIT_S = 1_700_000_040.0, 86_400.0, 1.0
HELD_S = PATIENCE_S / 2  # the longest that the file may be held for writing
NODES, PER_NODE, SAMPLE_EVERY_S = 6, 4, 2
POOL, USERS, POLICIES = "gpu", [f"user{number}" for number in range(12)], ["fifo", "srtf", "tiresias"]
DEVICES = [
    (f"GPU-{n:02d}{i}-1111-2222-3333-444444444444", f"n{n}") for n in range(NODES) for i in range(PER_NODE)
]


class Cluster:
    """Devices and when each is free: jobs are placed one after another on those that are free first."""

    def __init__(self) -> None:
        self._free = [(START, device, node) for device, node in DEVICES]

    def take(self, count: int, submitted: float, run_s: float) -> tuple[float, list[tuple[str, str]]]:
        taken = [heapq.heappop(self._free) for _ in range(count)]
        started = max(submitted, *(free for free, _, _ in taken)) + 0.1
        for _, device, node in taken:
            heapq.heappush(self._free, (started + run_s, device, node))
        return started, [(device, node) for _, device, node in taken]

    @property
    def busy_until(self) -> float:
        return max(free for free, _, _ in self._free)


def make_facts(jobs: int, waiting: int, end: float) -> Iterator[Fact]:
    """The facts of a busy pool: ended jobs until a little before the end, running and waiting ones at it."""
    chance, cluster = random.Random(0), Cluster()
    for number in range(NODES):
        yield NodeSeen(START, POOL, f"n{number}", f"r{number // 2}")
    for number, (device, node) in enumerate(DEVICES):
        yield DeviceSeen(device, POOL, node, number % PER_NODE, "A100", (40_960, 81_920)[number % 2], START)
    for number in range(40):
        at, (device, node) = START + (end - START) * number / 40, DEVICES[number % len(DEVICES)]
        yield DeviceEvent(at, device, node, "sick", "xid 79")
        yield DeviceEvent(at + 900, device, node, "healthy")
    for number in range(20):
        before, after = POLICIES[number % 3], POLICIES[(number + 1) % 3]
        yield Swapped(START + (end - START) * number / 20, POOL, before, after, "{}")
    for number in range(5):
        yield ExperimentRan(f"bench{number}", START + DAY * number, "{}")
    yield from projections(end, chance)
    mean_s = (end - START) * len(DEVICES) / jobs / 2.0
    for number in range(jobs):
        submitted = START + (end - START - 7200) * number / jobs
        yield from ended_job(f"job-{number}", number, submitted, chance, cluster, mean_s)
    for number in range(20):
        job_id = f"running-{number}"
        yield submitted_job(job_id, number, end - 3600, 1, chance)
        yield AttemptStarted(job_id, 1, "srtf", "process", '["n0"]', end - 1800, end - 1800)
        yield Allocated(job_id, 1, *DEVICES[number], 40_960, end - 1800)
    for number in range(waiting):
        job_id, submitted = f"waiting-{number}", end - 3500 + number
        yield submitted_job(job_id, number, submitted, chance.choice([1, 2, 4, 8]), chance)
        yield from forecasts(job_id, submitted, end + 600, end + 1200, "srtf", chance)


def projections(end: float, chance: random.Random) -> Iterator[Fact]:
    """What each policy would have done with the jobs of each hour, and of each night."""
    for hour in range(int((end - START) // 3600)):
        policy = POLICIES[hour // 12 % 3]
        for shadow in POLICIES:
            projected = 50, chance.uniform(500, 1000), chance.uniform(5000, 9000)
            yield ShadowProjected(START + 3600.0 * hour, POOL, policy, shadow, *projected)
        if hour % 24 == 0:
            at = START + 3600.0 * hour
            yield Regretted(at, POOL, at - DAY, at, policy, "srtf", chance.uniform(0, 30), 2000)


def forecasts(
    job_id: str, submitted: float, started: float, ended: float, policy: str, chance: random.Random
) -> Iterator[Forecast]:
    """Three forecasts of a job while it waited, and one while it ran."""
    for part in range(4):
        at = submitted + (started - submitted) * part / 3 if part < 3 else (started + ended) / 2
        start_s, end_s = (
            max(0.0, started - at) * chance.uniform(0.7, 1.2),
            (ended - at) * chance.uniform(0.7, 1.2),
        )
        times = at + start_s, at + 1.3 * start_s, at + end_s, at + 1.3 * end_s
        yield Forecast(at, POOL, job_id, *times, policy)


def shadowed(at: float, policy: str, chance: random.Random) -> Iterator[ShadowDecided]:
    """What the shadows would have decided instead."""
    for shadow in POLICIES:
        if shadow != policy:
            same = chance.random() < 0.7
            plan = same, same and chance.random() < 0.5, 1, 0, float(same), chance.uniform(50, 900), 0
            yield ShadowDecided(at, POOL, policy, shadow, *plan)


def submitted_job(job_id: str, number: int, at: float, gpus: int, chance: random.Random) -> JobSubmitted:
    user, experiment = USERS[chance.randrange(12)], f"bench{number // 100}" if number < 500 else ""
    memory_mb, expected_s = chance.choice([0, 8_000, 40_000, 60_000]), chance.uniform(10, 1000)
    request = gpus, memory_mb, chance.randrange(3), at + 7200 if number % 3 else None, expected_s
    return JobSubmitted(
        job_id, POOL, f"train {job_id}", f"flow{number % 30}", "d", user, "[]", *request, at, experiment
    )


def ended_job(
    job_id: str, number: int, submitted: float, chance: random.Random, cluster: Cluster, mean_s: float
) -> Iterator[Fact]:
    gpus, kind = chance.choice([1, 1, 1, 1, 2, 2, 4]), f"kind{number % 30}"
    yield submitted_job(job_id, number, submitted, gpus, chance)
    yield FeaturesSeen(job_id, kind, "{}", "[]")
    attempts = 2 if number % 10 == 0 else 1
    outcome = "failed" if number % 25 == 1 else "completed"
    at = submitted
    for attempt in range(1, attempts + 1):
        run_s = min(chance.expovariate(attempts * gpus / mean_s), 7000.0)
        started, held = cluster.take(gpus, at, run_s)
        at, is_last = started + run_s, attempt == attempts
        policy = POLICIES[int((started - START) // (DAY / 2)) % 3]
        nodes = json.dumps(sorted({node for _, node in held}))
        yield AttemptStarted(job_id, attempt, policy, "process", nodes, started - 0.1, started)
        yield from (Allocated(job_id, attempt, device, node, 40_960, started) for device, node in held)
        yield AttemptEnded(job_id, attempt, at, outcome if is_last else "preempted", 0)
        if not is_last:
            yield AttemptInterrupted(job_id, attempt, at - 1, at, "preempted", policy, "[]")
        yield SavedWork(job_id, attempt, 3, 1.5, 10**8, at - 5, 100, None, None, None, 5.0)
        yield from (MemoryPeak(job_id, attempt, device, 20_000.0, "nvml") for device, _ in held)
        for part in range(4):
            fraction = (attempt - 1 + part / 4) / attempts
            yield ProgressReported(
                job_id, attempt, started + run_s * part / 4, fraction, run_s * (1 - part / 4), "tqdm"
            )
        yield Decided(started - 0.1, POOL, policy, 5, 10, 1, 150.0)
        yield from shadowed(started - 0.1, policy, chance)
        if attempt == 1:
            yield from forecasts(job_id, submitted, started, at, policy, chance)
        yield Offered(started - 0.1, POOL, job_id, policy, "node", True, started - submitted, None, 1.0, 0.1)
    for quantity, value in (("seconds", 100.0), ("memory_mb", 20_000.0)):
        yield Predicted(job_id, submitted, quantity, "", value, 2 * value, "history")
    yield JobEnded(job_id, at, outcome)


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
