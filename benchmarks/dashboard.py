"""How quick the dashboard is in Chromium, with a long queue and a large history.

    python benchmarks/dashboard.py [--waiting 1000] [--days 10] [--keep FILE] [--json FILE]

A status and a state with 1,000 waiting jobs on 40 devices, and the warehouse of benchmarks/answers_sql.py
with 10 million samples. The status is written anew every second, as a worker does it. Each view is opened and
filtered in Chromium; times are from the click until the page shows it. Goals: first paint under 2 s, any view
under 1 s.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import answers_sql
from common import Goal, report

if TYPE_CHECKING:
    from playwright.sync_api import Page

from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.forecast.pool_state import PoolState
from gpu_flows.schedulers.mirror import Held
from gpu_flows.schedulers.model import NO_PROGRESS, Job, all_devices
from gpu_flows.schedulers.prediction.estimate import Estimate

POOL, CLUSTER = "gpu", "6x4:A100:80+2x8:H100:80"
REPEATS = 5
FIRST_PAINT_S, VIEW_S, PANEL_S = 2.0, 1.0, 10.0
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def make_state(waiting: int) -> PoolState:
    """Every device is held by a job of its own, and the queue is long."""
    chance, now, nodes = random.Random(0), time.time(), tuple(declare(CLUSTER))
    running = tuple(
        Held(
            Job(f"running-{n}", now - 900, name=f"run {n}", user=f"user{n % 12}"),
            (device,),
            now - 600,
            1,
            NO_PROGRESS,
        )
        for n, device in enumerate(all_devices(nodes))
    )
    queue = tuple(
        (
            Job(
                f"waiting-{n}",
                now - waiting + n,
                chance.choice([1, 2, 4, 8]),
                name=f"train {n}",
                user=f"user{n % 12}",
            ),
            NO_PROGRESS,
        )
        for n in range(waiting)
    )
    jobs = [job for job, _ in queue] + [held.job for held in running]
    durations = {
        job.id: Estimate(seconds := chance.uniform(700, 9000), 2 * seconds, "history") for job in jobs
    }
    return PoolState(POOL, now, "fifo", {}, nodes, queue, running, durations)


@contextmanager
def written(state: PoolState) -> Iterator[None]:
    """Write the state, and the status every second, as a worker does."""
    from gpu_flows.config.paths import pool_folder
    from gpu_flows.forecasting.state_file import state_path
    from gpu_flows.worker.status import Status, write_status

    pool_folder(POOL).mkdir(parents=True)
    state_path(pool_folder(POOL)).write_bytes(state.to_json())
    stop = threading.Event()

    def describe(job: Job) -> dict[str, Any]:
        return {name: getattr(job, name) for name in ("id", "name", "user", "gpus", "priority", "submitted")}

    def write() -> None:
        while not stop.is_set():
            now = time.time()
            why = {"reason": "capacity", "why": "The devices it needs are busy.", "fix": ""}
            waiting = [describe(job) | why | {"waited": now - job.submitted} for job, _ in state.waiting]
            running = [
                describe(held.job)
                | {"since": held.since, "attempt": 1, "devices": [device.id for device in held.devices]}
                for held in state.running
            ]
            reading = {"utilization": 80.0, "memory_used_mb": 9000.0, "power_w": 200.0, "temperature_c": 60.0}
            devices = [
                asdict(held.devices[0]) | reading | {"healthy": True, "detail": "", "jobs": [held.job.name]}
                for held in state.running
            ]
            policy = {"name": "fifo", "options": {}, "serving": "fifo", "error": ""}
            write_status(Status(POOL, "benchmark", now, policy, waiting, running, devices))
            stop.wait(1.0)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def served(environment: dict[str, str]) -> Iterator[str]:
    command = [sys.executable, "-m", "gpu_flows.cli", "dashboard", "--port", "0"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield next(word for word in process.stdout.readline().split() if word.startswith("http")).rstrip("/")
        process.terminate()


def time_it(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def median(act: Callable[[], object]) -> float:
    return statistics.median(time_it(act) for _ in range(REPEATS))


def measure(page: Page, url: str) -> Iterator[Goal]:
    page.goto(f"{url}/queue")
    paint = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    paint_ms = page.wait_for_function(paint).json_value()
    yield Goal("first paint, first visit", paint_ms / 1000, FIRST_PAINT_S, " s")
    shows = {
        "overview": "text=Next in the queue",
        "queue": "text=train 0",
        "running": "text=run 0",
        "devices": "text=node-1",
        "policies": "text=In force",
        "history": "text=Devices over time",
    }
    for view, text in shows.items():
        yield Goal(f"view {view}", median(partial(show, page, f"{url}/{view}", text)), VIEW_S, " s")
        fragments = partial(page.request.get, f"{url}/fragments/{view}")
        yield Goal(f"fragments of {view}", median(fragments), VIEW_S, " s")
    yield from measure_queue(page, url)
    yield from measure_figures(page, url)


def show(page: Page, address: str, text: str) -> None:
    page.goto(address, wait_until="commit")
    page.wait_for_selector(text)


def measure_queue(page: Page, url: str) -> Iterator[Goal]:
    page.goto(f"{url}/queue")

    def search() -> None:
        number = random.randrange(900)
        page.fill("input[type=search]", f"train {number}")
        page.wait_for_selector(f"tbody tr:first-child >> text='train {number}'")

    yield Goal("filter of the queue by what is typed", median(search), VIEW_S, " s")
    page.goto(f"{url}/queue")

    def turn() -> None:
        for name, number in (("Next", 2), ("Previous", 1)):
            page.get_by_role("link", name=name, exact=True).click()
            page.wait_for_selector(f"text=Page {number} of")

    yield Goal("next page of the queue", median(turn) / 2, VIEW_S, " s")
    page.goto(f"{url}/queue")
    page.click("a.open >> nth=7")
    panel = time_it(lambda: page.wait_for_selector("#panel >> text=The devices it needs are busy"))
    yield Goal("why: the panel of a job", panel, VIEW_S, " s")
    helped = time_it(lambda: page.wait_for_selector("#panel >> text=As things are"))
    yield Goal("what would help, by simulation (not waited for)", panel + helped, PANEL_S, " s")


def measure_figures(page: Page, url: str) -> Iterator[Goal]:
    from gpu_flows.analytics.figures.catalogue import CHARTS

    for chart in CHARTS:
        read = partial(page.request.get, f"{url}/figures/{chart.key}?period=7d", timeout=120_000)
        yield Goal(f"figure {chart.key}, first", time_it(read), VIEW_S, " s")
        yield Goal(f"figure {chart.key}, kept", median(read), VIEW_S, " s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--waiting", type=int, default=1_000)
    parser.add_argument("--days", type=float, default=10)
    parser.add_argument("--keep", type=Path, help="keep the warehouse in this file, and use it if it exists")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GPU_FLOWS_HOME"] = folder
        os.environ["PREFECT_API_URL"] = (
            "http://127.0.0.1:9/api"  # no server is needed, and none answers there
        )
        warehouse = options.keep or Path(folder, "warehouse.duckdb")
        if not warehouse.exists():
            answers_sql.START = time.time() - options.days * answers_sql.DAY
            answers_sql.build(warehouse, options.days, 20_000, options.waiting)
            answers_sql.age(warehouse, time.time(), None)
        if options.keep:
            Path(folder, "warehouse.duckdb").symlink_to(options.keep.resolve())
        with written(make_state(options.waiting)), served(dict(os.environ)) as url:
            goals = list(browse(url))
    sys.exit(report(goals, {}, options.json))


def browse(url: str) -> Iterator[Goal]:
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, PROGRAMS)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield from measure(browser.new_page(), url)
        browser.close()


if __name__ == "__main__":
    main()
