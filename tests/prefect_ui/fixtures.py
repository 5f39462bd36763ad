"""Fixtures of the tests with a browser: both UIs of Prefect, each in a tab."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from environment import EnvironmentalFailure, skip_or_fail
from live import Pool
from prefect_ui.pages import V1, V2, Ui

if TYPE_CHECKING:
    from playwright.sync_api import Browser

OPTIONS = (
    "--no-sandbox",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # nothing but the server
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The Chromium of this machine. While it is open, Playwright keeps an event loop running in this thread,
    so that asyncio.run fails: a test file creates its stack before, and the browser is closed after it."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), "")
    skip_or_fail("" if program else "there is no Chromium on this machine (apt-get install chromium)")
    found = importlib.util.find_spec("playwright")
    skip_or_fail("" if found else "Playwright is not installed (pip install playwright)")
    from playwright.sync_api import Error, sync_playwright

    with sync_playwright() as playwright:
        try:
            opened = playwright.chromium.launch(executable_path=program, args=OPTIONS)
        except Error as error:
            raise EnvironmentalFailure(str(error)) from error
        yield opened
        opened.close()


@pytest.fixture(scope="module", params=[V1, V2])
def ui(request: pytest.FixtureRequest, pool: Pool, browser: Browser) -> Iterator[Ui]:
    """One UI of the server of the file's pool, after the other."""
    page = browser.new_page()
    opened: Ui = request.param(page, pool.stack.ui_url)
    yield opened
    page.close()
