"""The report in a real browser, without any network."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from report_history import EVIL, POOL, record_live

from gpu_flows.analytics.report import find_scope, read_report, render_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest_plugins = ["prefect_ui.fixtures"]
pytestmark = pytest.mark.slow

FIGURES = 10


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    report = read_report(find_scope(record_live(folder, policies=("srtf", "fifo")), POOL, 7 * 86_400.0))
    page = folder / "report.html"
    page.write_text(render_report(report, datetime.now(UTC), "1"), encoding="utf-8")
    return page


class Opened:
    """The report in a tab, with what the browser asked for and complained about."""

    def __init__(self, page: Page, file: Path) -> None:
        self.page, self.requests, self.complaints = page, [], []  # type: tuple[Page, list[str], list[str]]
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(file.as_uri())
        page.locator("body[data-drawn]").wait_for()

    def colour(self, selector: str, what: str) -> str:
        return str(self.page.locator(selector).first.evaluate(f"each => getComputedStyle(each).{what}"))


@pytest.fixture
def opened(browser: Browser, file: Path) -> Iterator[Opened]:
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    yield Opened(context.new_page(), file)
    context.close()


def test_it_draws_all_figures_and_asks_the_network_for_nothing(opened: Opened, file: Path) -> None:
    page = opened.page
    assert page.locator(".js-plotly-plot").count() == FIGURES
    marks = page.locator(".js-plotly-plot").evaluate_all(
        "plots => plots.map(plot => plot.querySelectorAll('.mlayer path, .mlayer image').length)"
    )
    assert all(marks), marks
    assert page.locator("#gantt .bars .point").count() > 100
    assert opened.requests == [file.as_uri()]
    assert opened.complaints == []


def test_hostile_names_are_shown_as_text(opened: Opened) -> None:
    page = opened.page
    page.get_by_text("The data as a table").first.click()
    shown = page.locator("#gantt table").inner_text()
    assert EVIL.partition("\x1b")[0] in shown
    assert page.locator("#turnaround-by-user").get_by_text("<img src=x onerror=al").count() > 0
    page.evaluate(
        """() => {
            const plot = document.querySelector("#gantt .figure");
            const bar = plot.data[0].hovertext.findIndex((text) => text.includes("script"));
            Plotly.Fx.hover(plot, [{ curveNumber: 0, pointNumber: bar }]);
        }"""
    )
    assert EVIL.partition("\x1b")[0] in (page.locator("#gantt .hoverlayer").text_content() or "")
    assert page.locator("main img").count() == 0
    assert opened.complaints == []


def test_the_theme_follows_the_system_and_the_button_also_changes_the_figures(opened: Opened) -> None:
    page, label = opened.page, "#gantt .xtick text"
    light = opened.colour("body", "backgroundColor"), opened.colour(label, "fill")
    button = page.get_by_role("button", name="Dark theme")
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    page.wait_for_function(
        f"before => getComputedStyle(document.querySelector('{label}')).fill !== before", arg=light[1]
    )
    assert opened.colour("body", "backgroundColor") != light[0]
    assert button.get_attribute("aria-pressed") == "true"
    page.reload()
    page.locator("body[data-drawn]").wait_for()
    assert opened.colour("body", "backgroundColor") != light[0]  # it is remembered
    page.evaluate("localStorage.clear()")
    page.emulate_media(color_scheme="dark")
    page.reload()
    page.locator("body[data-drawn]").wait_for()
    assert page.get_by_role("button", name="Dark theme").get_attribute("aria-pressed") == "true"
    assert opened.complaints == []


def test_it_can_be_used_by_keyboard(opened: Opened) -> None:
    page = opened.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "theme"
    assert opened.colour("#theme", "outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert page.get_by_role("button", name="Dark theme").get_attribute("aria-pressed") == "true"
    levels = page.locator("h1, h2, h3").evaluate_all("all => all.map(each => Number(each.tagName[1]))")
    assert levels[0] == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))


def test_it_fits_a_phone(browser: Browser, file: Path) -> None:
    context = browser.new_context(offline=True, viewport={"width": 360, "height": 740}, is_mobile=True)
    page = Opened(context.new_page(), file).page
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    widths = page.locator(".js-plotly-plot").evaluate_all("plots => plots.map(plot => plot.clientWidth)")
    assert max(widths) <= 360
    page.set_viewport_size({"width": 740, "height": 360})
    page.wait_for_function("() => document.querySelector('#gantt .main-svg').clientWidth > 500")
    context.close()
