"""Makes the images of the docs: figures that benchmarks have written become PNG, in a headless Chromium.

    python benchmarks/ams560.py --live --charts docs/figures
    python benchmarks/dally.py --trace philly20k.csv --seeds 100-104 --charts docs/figures
    python benchmarks/schedtune.py --charts docs/figures
    python docs/make_images.py [NAME ...]

Without names, every figure in docs/figures is drawn; docs/img/NAME.png is its image. Needs playwright and a
Chromium (`apt-get install chromium`). make_screenshots.py makes the other images.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pictures import open_browser, save
from plotly import graph_objects as go

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DOCS = Path(__file__).parent
FIGURES = DOCS / "figures"
WIDTH = 940


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="of figures; all of them if none is given")
    args = parser.parse_args()
    with open_browser() as browser, TemporaryDirectory() as folder:
        page = Path(folder, "page.html")
        for name in args.names or sorted(file.stem for file in FIGURES.glob("*.json")):
            draw_figure(browser, page, name)


def draw_figure(browser: Browser, page: Path, name: str) -> None:
    """Draw one figure on white, because docs are read in any theme."""
    figure = go.Figure(json.loads((FIGURES / f"{name}.json").read_text(encoding="utf-8")))
    figure.update_layout(paper_bgcolor="white", font={"color": "#24292f"})
    page.write_text(figure.to_html(include_plotlyjs=True, config={"displayModeBar": False}), encoding="utf-8")
    height = int(figure.layout.height)
    tab = browser.new_page(viewport={"width": WIDTH, "height": height + 20}, device_scale_factor=1.25)
    tab.goto(page.as_uri())
    tab.locator(".main-svg").first.wait_for()
    save(tab.locator(".js-plotly-plot"), name)
    tab.close()


if __name__ == "__main__":
    main()
