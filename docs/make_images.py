"""Makes the images of the docs: figures that benchmarks have written become PNG, in a headless Chromium.

    python benchmarks/ams560.py --live --charts docs/figures
    python benchmarks/dally.py --trace philly20k.csv --seeds 100-104 --charts docs/figures
    python benchmarks/schedtune.py --charts docs/figures
    python docs/make_images.py [--report WAREHOUSE --pool NAME] [NAME ...]

Without names, every figure in docs/figures is drawn; docs/img/NAME.png is its image. With --report, the page
that `gpu-flows report` makes of a warehouse is drawn too, light, dark and for a phone: docs/img/report-*.png.
Needs playwright and a Chromium (`apt-get install chromium`).
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from plotly import graph_objects as go

from gpu_flows import __version__
from gpu_flows.analytics.report import find_scope, read_report, render_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DOCS = Path(__file__).parent
FIGURES, IMAGES = DOCS / "figures", DOCS / "img"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
WIDTH = 940
EVERYTHING_S = 50 * 365 * 86_400.0
REPORTS = {  # image -> width, height, theme
    "report-light": (1360, 1120, "light"),
    "report-dark": (1360, 1120, "dark"),
    "report-phone": (390, 844, "light"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="of figures; all of them if none is given")
    parser.add_argument(
        "--report", type=Path, metavar="WAREHOUSE", help="draw the report of this warehouse too"
    )
    parser.add_argument("--pool", default="gpu", help="the pool of the report (gpu)")
    args = parser.parse_args()
    with open_browser() as browser, TemporaryDirectory() as folder:
        page = Path(folder, "page.html")
        for name in args.names or sorted(file.stem for file in FIGURES.glob("*.json")):
            draw_figure(browser, page, name)
        if args.report:
            draw_report(browser, page, args.report, args.pool)


@contextmanager
def open_browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


def draw_figure(browser: Browser, page: Path, name: str) -> None:
    """Draw one figure on white, because docs are read in any theme."""
    figure = go.Figure(json.loads((FIGURES / f"{name}.json").read_text(encoding="utf-8")))
    figure.update_layout(paper_bgcolor="white", font={"color": "#24292f"})
    page.write_text(figure.to_html(include_plotlyjs=True, config={"displayModeBar": False}), encoding="utf-8")
    height = int(figure.layout.height)
    tab = browser.new_page(viewport={"width": WIDTH, "height": height + 20}, device_scale_factor=1.25)
    tab.goto(page.as_uri())
    tab.locator(".main-svg").first.wait_for()
    tab.locator(".js-plotly-plot").screenshot(path=IMAGES / f"{name}.png")
    tab.close()
    print(f"Wrote {IMAGES / name}.png")


def draw_report(browser: Browser, page: Path, warehouse: Path, pool: str) -> None:
    """Draw what a reader sees first of the report."""
    report = read_report(find_scope(warehouse, pool, EVERYTHING_S))
    page.write_text(render_report(report, datetime.now().astimezone(), __version__), encoding="utf-8")
    for name, (width, height, theme) in REPORTS.items():
        tab = browser.new_page(viewport={"width": width, "height": height})
        tab.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        tab.goto(page.as_uri())
        tab.locator("body[data-drawn]").wait_for()
        tab.screenshot(path=IMAGES / f"{name}.png")
        tab.close()
        print(f"Wrote {IMAGES / name}.png")


if __name__ == "__main__":
    main()
