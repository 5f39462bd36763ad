"""Takes the screenshots of the docs, among them the ten screens of docs/tour.md.

    python docs/make_screenshots.py

A real pool of simulated GPUs (`lab.py`) works for some minutes. The screens are taken meanwhile, in
the order of the tour, of real pages and of what real commands print. They are PNGs in docs/img/. Needs
playwright and a Chromium (`apt-get install chromium`).
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from lab import AFTERNOON, Lab, open_lab
from pictures import IMAGES, open_browser, save, save_terminal

from gpu_flows.common.retry import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WIDTH = 1280
TIMEOUT_MS = 120_000  # for a machine that has other work too
JOB = "bert-finetune"
SUBMIT = ("--name", JOB, "--gpus", "4", "--expected", "90s", "--", "python", "train.py", "--epochs", "86")
AFTERNOON_S = 120.0  # how long the pool works under the second policy before it is looked back at


@dataclass(frozen=True)
class Camera:
    """What the screens are taken of, and with."""

    lab: Lab
    browser: Browser
    dashboard: str  # its address

    def open(self, url: str, height: int, theme: str = "light", width: int = WIDTH) -> Page:
        page = self.browser.new_page(
            viewport={"width": width, "height": height},
            color_scheme="dark" if theme == "dark" else "light",
        )
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(url)
        return page

    def take(self, page: Page, name: str, still_s: float = 1.5) -> None:
        page.wait_for_timeout(still_s * 1000)  # until animations have ended
        save(page, name)
        page.close()

    def take_command(self, name: str, *words: str, until: str = "") -> None:
        save_terminal(self.browser, name, [*words], self.lab.folder, self.lab.environment(), until)


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: the pool is stopped
    IMAGES.mkdir(exist_ok=True)
    began = time.monotonic()
    with (
        TemporaryDirectory() as home,
        open_browser() as browser,
        open_lab(Path(home)) as lab,
        open_dashboard(lab) as address,
    ):
        camera = Camera(lab, browser, address)
        take_morning(camera)
        take_switch(camera)
        time.sleep(AFTERNOON_S)
        take_evening(camera)
    print(f"It took {time.monotonic() - began:.0f} s.")


@contextmanager
def open_dashboard(lab: Lab) -> Iterator[str]:
    command = [sys.executable, "-m", "gpu_flows.cli", "dashboard", "--port", "0"]
    with subprocess.Popen(command, env=lab.environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            words = process.stdout.readline().split()
            yield next(word for word in words if word.startswith("http")).rstrip("/")
        finally:
            process.terminate()


def take_morning(camera: Camera) -> None:
    """Ann asks, submits, and finds out why her job waits."""
    lab = camera.lab
    lab.wait_for_forecast("tokenize[2]")
    camera.take_command("dry-run", "submit", "--dry-run", *SUBMIT)
    lab.cli("submit", *SUBMIT)
    run = lab.wait_for_forecast(JOB)
    camera.take_command("queue", "queue")
    take_run(camera, run)
    camera.take_command("why", "why", JOB, until="would start")
    camera.take(camera.open(camera.dashboard, 1210), "dashboard")
    page = camera.open(f"{camera.dashboard}/queue", 900)
    page.locator("a.open", has_text=JOB).click()
    page.mouse.move(0, 0)  # so that no row looks pointed at
    page.locator("#panel").get_by_text("As things are").wait_for()
    camera.take(page, "dashboard-job")
    camera.take(camera.open(f"{lab.stack.ui_url}/v2/runs", 1150), "runs", still_s=4)


def take_run(camera: Camera, run: str) -> None:
    """The page of a run reads the log once, so it is reloaded until the worker's line is there."""
    page = camera.open(f"{camera.lab.stack.ui_url}/v2/runs/flow-run/{run}", 480)

    def is_logged() -> bool:
        page.reload()
        page.wait_for_load_state("networkidle")
        return page.get_by_text("Waiting:").count() > 0

    if not wait_until(is_logged, TIMEOUT_MS / 1000, every_s=2):
        raise RuntimeError("The page of the run does not show the worker's line.")
    camera.take(page, "prefect-run")


def take_switch(camera: Camera) -> None:
    """The shadows are compared, and the best one is promoted while the dashboard is open."""
    camera.take_command("shadows", "policy", "show")
    take_whatif(camera)
    camera.lab.submit(AFTERNOON)
    page = camera.open(f"{camera.dashboard}/queue", 760, "dark")
    page.get_by_text("fifo").first.wait_for()
    with ThreadPoolExecutor() as beside:
        promoted = beside.submit(camera.lab.cli, "policy", "promote", "srtf")
        page.locator(".flash.new").wait_for()
        camera.take(page, "swap", still_s=0.1)
    promoted.result()
    camera.take(camera.open(f"{camera.dashboard}/queue", 740, width=360), "dashboard-phone")


def take_whatif(camera: Camera) -> None:
    page = camera.open(f"{camera.dashboard}/policies", 900)
    for policy in ("srtf", "fair_share"):
        page.get_by_label(policy, exact=True).check()
    page.get_by_label("More or fewer GPUs").fill("4")
    page.get_by_role("button", name="Simulate").click()
    page.get_by_text("Simulated in").wait_for()
    camera.take(page, "dashboard-whatif")


def take_evening(camera: Camera) -> None:
    """The day is looked back at."""
    camera.take_command("whatif", "whatif", "--since", "1d", "--policy", "fifo,srtf,sjf", "--gpus", "+4")
    report = camera.lab.folder / "report.html"
    camera.lab.cli("report", "--since", "1d", "--out", str(report))
    page = camera.open(report.as_uri(), 1040)
    page.locator("body[data-drawn]").wait_for()
    camera.take(page, "report")


if __name__ == "__main__":
    main()
