"""Prefect's two UIs as a person uses them: pages are opened, fields found by their labels, buttons clicked.

V1 is served at `/`, V2 at `/v2`. Both draw forms from the same JSON schemas, with different elements.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Request, Response

TIMEOUT_MS = 60_000  # for a loaded machine
TRIES = 4  # of a click that sends nothing
# Not "Cancel": in V2 this closes the dialog.
CONFIRM = re.compile("^(Confirm|Submit|(Cancel|Pause) Flow Run|Resume)$")


class Ui(ABC):
    """One of the UIs in one tab of the browser."""

    prefix = ""  # of every path

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url
        page.set_default_timeout(TIMEOUT_MS)

    def open(self, path: str, button: str = "") -> None:
        """Open a page, and wait until it has this button and has loaded all it shows. Before that, V2 may
        draw its form anew, and with it drop what was chosen and what was clicked."""
        self.page.goto(f"{self.url}{self.prefix}{path}", wait_until="commit")
        if button:
            self.button(button).wait_for()
            self.page.wait_for_load_state("networkidle")

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def accepted(
        self,
        act: Callable[[], None],
        is_sent: Callable[[Request], bool],
        timeout_ms: float = TIMEOUT_MS / TRIES,
    ) -> Response:
        """Do something that sends a request, and return the answer, which must not be an error. Do it again,
        as a person does, if nothing was sent: a form of V2 may move while it is clicked, so that the click
        misses the button. Do it again also after a 503: Prefect's server answers so while SQLite is busy."""
        from playwright.sync_api import TimeoutError as NothingSent

        for _ in range(TRIES):
            try:
                with self.page.expect_request(is_sent, timeout=timeout_ms) as sent:
                    act()
            except NothingSent:
                continue
            answer = sent.value.response()
            if answer and answer.status != 503:
                assert answer.ok, f"{answer.status} for {sent.value.url} {sent.value.post_data}"
                return answer
        raise AssertionError(f"tried {TRIES} times, and nothing was accepted")

    def save(self) -> None:
        """Click Save, and wait until the server has accepted it."""
        self.accepted(self.button("Save").click, lambda request: request.method in ("PATCH", "PUT"))

    def save_is_refused(self, *labels: str) -> None:
        """Click Save, and wait until the form marks this field as wrong. It must not send anything."""
        sent: list[str] = []
        self.page.on("request", lambda request: sent.append(request.method))
        self.button("Save").click()
        self.field(*labels).locator(self.mark_of_a_mistake).wait_for()
        assert not {"PATCH", "PUT"}.intersection(sent)

    def shows(self, text: str) -> None:
        """Wait until the page shows this text."""
        self.page.get_by_text(text).first.wait_for()

    def field(self, *labels: str) -> Locator:
        """Return the field with this label, inside the sections whose labels come before it."""
        found = self.page.locator("body")
        for label in labels:
            exactly = re.compile(rf"^\s*{re.escape(label)}( \(Optional\))?\s*$")
            found = found.locator(self.label_tag, has_text=exactly).first.locator(
                f"xpath=ancestor::div[contains(concat(' ', @class, ' '), ' {self.field_class} ')][1]"
            )
        return found

    label_tag: str
    field_class: str

    def fill(self, *labels: str, value: str) -> None:
        self.field(*labels).locator("input, textarea").first.fill(value)

    def switch(self, *labels: str) -> None:
        """Click a switch."""
        self.field(*labels).get_by_role("switch").click()

    @abstractmethod
    def fill_json(self, label: str, value: str) -> None:
        """Replace the content of a JSON editor."""

    @abstractmethod
    def add_to_list(self, *labels: str, value: str) -> None:
        """Add a text to an empty list."""

    @abstractmethod
    def act_on_run(self, action: str) -> None:
        """Do something with the run whose page is open, and confirm it."""

    suspend: str  # what the UI calls it
    mark_of_a_mistake: str  # what a form shows in a field whose value it refuses

    def choose(self, *labels: str, option: str) -> None:
        """Choose an option of a menu."""
        self.open_menu(*labels)
        self.page.get_by_role("option", name=option, exact=True).click()

    def toggle(self, *labels: str, options: Iterable[str]) -> None:
        """Choose options of a menu that takes several, and drop those that were chosen."""
        self.open_menu(*labels)
        for option in options:  # of the last menu: an earlier one may still be closing
            self.page.get_by_role("option", name=option, exact=True).last.click()
        self.page.keyboard.press("Escape")

    @abstractmethod
    def open_menu(self, *labels: str) -> None:
        """Show the options of a menu."""

    @abstractmethod
    def chosen(self, *labels: str) -> str:
        """Return what a menu shows as chosen."""


class V1(Ui):
    label_tag = "label.p-label__label"
    field_class = "p-label"
    suspend = "Suspend"
    mark_of_a_mistake = ".p-label__message--failed"

    def fill_json(self, label: str, value: str) -> None:
        self.fill(label, value=value)

    def add_to_list(self, *labels: str, value: str) -> None:
        self.fill(*labels, value=f'["{value}"]')

    def act_on_run(self, action: str) -> None:
        self.button(action).click()
        self.page.get_by_role("dialog").get_by_role("button", name=CONFIRM).last.click()

    def open_menu(self, *labels: str) -> None:
        # A click on the text opens the menu and closes it again; a click on the arrow only opens it.
        self.field(*labels).locator(".p-select-button__icon").click()

    def chosen(self, *labels: str) -> str:
        return self.field(*labels).locator(".p-select-button__value").first.inner_text()


class V2(Ui):
    prefix = "/v2"
    label_tag = "label[data-slot=label]"
    field_class = "group"
    suspend = "Pause"
    mark_of_a_mistake = "input:invalid:focus"  # beside it, the browser shows why

    def fill_json(self, label: str, value: str) -> None:
        # Fields of V2's own forms have no class that tells them apart.
        beside = self.page.locator(self.label_tag, has_text=label).last
        beside.locator("xpath=following::*[contains(@class, 'cm-content')][1]").fill(value)

    def add_to_list(self, *labels: str, value: str) -> None:
        self.field(*labels).get_by_role("button", name="Add").click()
        self.field(*labels).locator("input, textarea").last.fill(value)

    def act_on_run(self, action: str) -> None:
        self.page.wait_for_load_state("networkidle")  # before that, V2 draws the menu anew, which closes it
        self.button("Open menu").first.click()
        self.page.get_by_role("menuitem", name=action).click()
        dialog = self.page.locator("[role=dialog], [role=alertdialog]")
        dialog.get_by_role("button", name=CONFIRM).last.click()

    def open_menu(self, *labels: str) -> None:
        self.field(*labels).locator("fieldset button").first.click()

    def chosen(self, *labels: str) -> str:
        return self.field(*labels).locator("fieldset button").first.inner_text()
