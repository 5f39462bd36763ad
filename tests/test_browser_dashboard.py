"""The dashboard of a real pool in a real browser: by mouse and keyboard, on a phone, in the dark, live."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from live import Pool
from prefect_ui.pages import TIMEOUT_MS

from gpu_flows.bootstrap.local_stack import Stack, free_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest_plugins = ["prefect_ui.fixtures"]
pytestmark = pytest.mark.slow

USERS = ("ada", "bob", "<b>eve</b>")


@pytest.fixture(scope="module")
def pool(new_shared_stack: Callable[..., Stack]) -> Pool:
    """One job that holds both devices, and one of each user that waits for one."""
    pool = Pool(new_shared_stack("1x2:GTX 1080 Ti:11"))
    pool.until(pool.command("sleep 600", gpus=2, user="holder", expected_seconds=600), "Running")
    for user in USERS:
        pool.command("sleep 1", user=user, expected_seconds=60)
    return pool


class Server:
    """`gpu-flows dashboard` as a user starts it."""

    def __init__(self, stack: Stack) -> None:
        self.stack, self.port = stack, free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "gpu_flows.cli", "dashboard", "--port", str(self.port)]
        self._process = subprocess.Popen(
            command, env=self.stack.environment(), stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout
        assert self.url in self._process.stdout.readline()

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate()


@pytest.fixture(scope="module")
def server(pool: Pool) -> Iterator[Server]:
    served = Server(pool.stack)
    served.start()
    yield served
    served.stop()


@pytest.fixture
def page(server: Server, browser: Browser) -> Iterator[Page]:
    """A page of the dashboard. No script may fail or be refused by the page's own policy."""
    opened = browser.new_page()
    opened.set_default_timeout(TIMEOUT_MS)
    troubles: list[str] = []
    opened.on("pageerror", lambda error: troubles.append(str(error)))
    opened.on(
        "console",
        lambda line: troubles.append(line.text) if "Content Security Policy" in line.text else None,
    )
    yield opened
    opened.close()
    assert not troubles


def rows(page: Page) -> list[str]:
    """The users of the jobs that are listed."""
    return [text.strip() for text in page.locator("td.c-user").all_inner_texts()]


def until_listed(page: Page, *users: str) -> None:
    page.wait_for_function(
        "users => [...document.querySelectorAll('td.c-user')].map(cell => cell.innerText.trim())"
        ".sort().join('\\n') === users",
        arg="\n".join(sorted(users)),
    )


def test_the_queue_is_filtered_and_the_address_keeps_it(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/queue")
    until_listed(page, *USERS)
    page.keyboard.press("/")
    page.keyboard.type("bob")
    until_listed(page, "bob")
    assert page.url.endswith("/queue?q=bob")
    assert page.evaluate("document.activeElement.name") == "q", "what is typed in keeps the focus"
    page.reload()
    until_listed(page, "bob")
    page.get_by_role("link", name="Clear filters").click()
    until_listed(page, *USERS)
    page.get_by_label("User").select_option("<b>eve</b>")
    until_listed(page, "<b>eve</b>")
    page.get_by_role("link", name="Clear filters").click()
    page.get_by_role("link", name="User").click()
    page.wait_for_selector("th[aria-sort=ascending] >> text=User")
    assert rows(page) == sorted(USERS, key=str.casefold)


def test_the_reason_of_a_job_is_opened_by_click_and_by_keyboard(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/queue?q=ada")
    until_listed(page, "ada")
    page.locator("td.c-reason").click()  # anywhere in the row
    panel = page.locator("#panel")
    panel.get_by_text(re.compile("capacity")).first.wait_for()
    panel.get_by_text("It waits for").wait_for()  # by a simulation of the state that the worker wrote
    assert "job=" in page.url
    page.keyboard.press("Escape")
    panel.locator(".job").wait_for(state="detached")
    assert "job=" not in page.url

    page.keyboard.press("j")
    page.keyboard.press("Enter")
    panel.get_by_text("What would help").wait_for()
    assert page.evaluate("document.activeElement.id") == "job-title", "a screen reader begins there"
    page.keyboard.press("Escape")
    page.locator("a.open:focus").wait_for()


def test_a_hot_swap_is_seen_without_a_reload(page: Page, server: Server, pool: Pool) -> None:
    page.goto(f"{server.url}/queue")
    until_listed(page, *USERS)
    page.evaluate("window.isSamePage = true")
    page.get_by_label("Search").fill("a")
    pool.save_policy("srtf")
    policy = page.get_by_role("status").filter(has_text="Policy")
    policy.get_by_text("srtf").wait_for()
    assert page.evaluate("window.isSamePage")
    assert page.get_by_label("Search").input_value() == "a"
    pool.save_policy("no_such_policy")
    page.get_by_text("Policy srtf has an error.").wait_for()
    pool.save_policy("fifo")
    policy.get_by_text("fifo").wait_for()


def test_what_if_by_click(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/policies")
    page.get_by_label("srtf", exact=True).check()
    page.get_by_label("More or fewer GPUs").fill("2")
    page.get_by_role("button", name="Simulate").click()
    page.get_by_role("table", name="Outcomes").get_by_text("as it is").wait_for()
    assert page.locator("table[aria-label=Outcomes] tbody tr").count() == 2
    assert "policy=srtf&gpus=2" in page.url


def test_it_survives_a_restart_of_its_server(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/queue?q=bob")
    until_listed(page, "bob")
    server.stop()
    page.locator("#offline").wait_for(state="visible")
    server.start()
    page.locator("#offline").wait_for(state="hidden")
    until_listed(page, "bob")


def test_on_a_phone_in_the_dark(server: Server, browser: Browser) -> None:
    page = browser.new_page(
        viewport={"width": 320, "height": 640}, color_scheme="dark", reduced_motion="reduce"
    )
    page.set_default_timeout(TIMEOUT_MS)
    for view in ("overview", "queue", "running", "devices", "policies?policy=srtf", "history"):
        page.goto(f"{server.url}/{view}")
        page.locator("#view *").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 320, view
    page.goto(f"{server.url}/queue")
    page.locator("a.open").first.click()
    page.locator("#panel").get_by_text("Waited").wait_for()
    box = page.locator("#panel .card").bounding_box()
    assert box
    assert box["width"] == 320

    def colour() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    dark = colour()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Dark theme").click()
    assert colour() != dark
    page.close()


def test_figures_are_drawn_when_they_come_into_view(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/history?period=1h")
    page.locator("[data-figure^='figures/gantt'] .main-svg").first.wait_for()
