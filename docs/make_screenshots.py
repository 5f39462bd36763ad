"""Takes the screenshots of the docs: a real stack with jobs, its dashboard, its report and the Prefect UI.

    python docs/make_screenshots.py [--only dashboard,report,prefect]

It takes about three minutes, and writes PNGs into docs/img/.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_flows.bootstrap.local_stack import Stack
from gpu_flows.common.retry import wait_until
from gpu_flows.worker.status import read_status

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

IMAGES = Path(__file__).parent / "img"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CLUSTER, POOL = "3x4:A100:80", "gpu"
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 360, "height": 740}
# User, name, GPUs, jobs, seconds of each: the first of them fill the cluster, and the later ones wait.
JOBS = (
    ("ada", "resnet", 1, 8, 25),
    ("bob", "bert", 2, 6, 30),
    ("chen", "sweep", 1, 14, 20),
    ("dora", "llama", 4, 4, 60),
    ("ada", "vit", 4, 4, 50),
    ("bob", "probe", 1, 10, 15),
)
HISTORY_S = 60.0  # how long the pool works before pictures are taken


def cli(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "gpu_flows.cli", *words], check=True, stdout=subprocess.DEVNULL)


def submit_jobs() -> None:
    for user, name, gpus, count, seconds in JOBS:
        array = ("--array", f"1-{count}", "--name", name, "--user", user, "--gpus", str(gpus))
        cli("submit", *array, "--expected", f"{seconds}s", "--", "sleep", str(seconds))


@contextmanager
def working_pool(home: Path) -> Iterator[Stack]:
    """A pool that has worked for a while, with jobs that wait and run."""
    with Stack(home, pool=POOL) as stack:
        os.environ.update(stack.environment())
        stack.start_server()
        stack.set_up(CLUSTER)
        stack.deploy()
        stack.start_worker()
        submit_jobs()
        cli("policy", "set", "srtf")
        time.sleep(HISTORY_S)
        cli("policy", "set", "fifo")
        submit_jobs()  # so that jobs wait also where the first have ended by now
        wait_until(lambda: len(status.waiting) > 5 if (status := read_status(POOL)) else False, 60)
        yield stack


@contextmanager
def dashboard() -> Iterator[str]:
    command = [sys.executable, "-m", "gpu_flows.cli", "dashboard", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield next(word for word in process.stdout.readline().split() if word.startswith("http")).rstrip("/")
        process.terminate()


def save(page: Page, name: str) -> None:
    page.wait_for_timeout(1500)  # until animations have ended
    page.screenshot(path=str(IMAGES / f"{name}.png"))
    print(IMAGES / f"{name}.png")


def take_dashboard(browser: Browser, stack: Stack) -> None:
    with dashboard() as url:
        page = browser.new_page(viewport=WIDE)
        page.goto(url)
        save(page, "dashboard")
        page.goto(f"{url}/queue")
        page.click("a.open >> nth=1")
        page.wait_for_selector("#panel >> text=As things are", timeout=60_000)
        save(page, "dashboard-job")
        page.goto(f"{url}/policies")
        for policy in ("srtf", "fair_share"):
            page.get_by_label(policy, exact=True).check()
        page.get_by_label("More or fewer GPUs").fill("4")
        page.get_by_role("button", name="Simulate").click()
        page.get_by_text("Simulated in").wait_for(timeout=60_000)
        save(page, "dashboard-whatif")
        page.goto(f"{url}/history?period=1h")
        page.wait_for_selector(".main-svg", timeout=60_000)
        save(page, "dashboard-history")
        dark = browser.new_page(viewport=WIDE, color_scheme="dark")
        dark.goto(f"{url}/devices")
        save(dark, "dashboard-dark")
        phone = browser.new_page(viewport=PHONE)
        phone.goto(f"{url}/queue")
        save(phone, "dashboard-phone")


def take_report(browser: Browser, stack: Stack) -> None:
    report = stack.home / "report.html"
    cli("report", "--out", str(report))
    page = browser.new_page(viewport=WIDE)
    page.goto(report.as_uri())
    page.wait_for_selector("body[data-drawn]", timeout=60_000)
    save(page, "report")


def take_prefect(browser: Browser, stack: Stack) -> None:
    page = browser.new_page(viewport=WIDE)
    for name, path in (("prefect-runs", "/runs"), ("prefect-pool", f"/work-pools/work-pool/{POOL}")):
        page.goto(f"{stack.ui_url}{path}")
        page.wait_for_load_state("networkidle")
        save(page, name)


PARTS = {"dashboard": take_dashboard, "report": take_report, "prefect": take_prefect}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parts = parser.parse_args().only.split(",")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: the stack is stopped
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, PROGRAMS)), "")
    if not program:
        sys.exit("There is no Chromium on this machine.")
    IMAGES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as home,
        working_pool(Path(home)) as stack,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for part in parts:
            PARTS[part](browser, stack)
        browser.close()


if __name__ == "__main__":
    main()
