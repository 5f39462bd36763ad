"""What the scripts that make the images of the docs share: a headless Chromium, and pictures of commands."""

from __future__ import annotations

import fcntl
import html
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

IMAGES = Path(__file__).parent / "img"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MOST_BYTES = 250_000  # of a picture, so that the pages load quickly
MOST_RUNS = 20  # of a command that is to print something
COLUMNS = 118  # of a terminal: as many as can be read at the width of the README
THEME = TerminalTheme(
    background=(255, 255, 255),
    foreground=(31, 35, 40),
    normal=[
        *((31, 35, 40), (207, 34, 46), (17, 99, 41), (125, 78, 0)),
        *((9, 105, 218), (130, 80, 223), (27, 124, 131), (110, 119, 129)),
    ],
)
TERMINAL = """<!doctype html><meta charset="utf-8"><style>
body { margin: 0; padding: 12px; width: max-content; background: white }
figure { margin: 0; border: 1px solid #d0d7de; border-radius: 8px; overflow: hidden }
header { padding: 7px 12px; background: #f6f8fa; border-bottom: 1px solid #d0d7de }
header { font: 13px sans-serif; color: #57606a }
pre { margin: 0; padding: 14px 16px; font: 14px/1.45 "DejaVu Sans Mono", monospace; color: #1f2328 }
b { color: #0550ae }
</style><figure><header>Terminal</header><pre><b>$ COMMAND</b>
OUTPUT</pre></figure>"""


@contextmanager
def open_browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, PROGRAMS)), "")
    if not program:
        sys.exit("There is no Chromium on this machine.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


def save(shown: Page | Locator, name: str) -> None:
    """Save what is shown as docs/img/NAME.png."""
    file = IMAGES / f"{name}.png"
    shown.screenshot(path=file)
    size = file.stat().st_size
    print(f"Wrote {file} ({size // 1000} KB)", flush=True)
    if size > MOST_BYTES:
        sys.exit(f"{file.name} is larger than {MOST_BYTES // 1000} KB. Show less of it.")


def save_terminal(
    browser: Browser, name: str, words: list[str], folder: Path, env: Mapping[str, str], until: str = ""
) -> None:
    """Run a gpu-flows command in a terminal, until it prints `until`, and save a picture."""
    for _ in range(MOST_RUNS):
        printed = run_in_terminal([sys.executable, "-m", "gpu_flows.cli", *words], folder, env)
        if until in printed:
            break
    else:
        sys.exit(f"`gpu-flows {' '.join(words)}` does not print {until!r}: {printed}")
    command = " ".join(["gpu-flows", *words])
    page = browser.new_page(viewport={"width": 400, "height": 100}, device_scale_factor=1.25)
    page.set_content(
        TERMINAL.replace("COMMAND", html.escape(command)).replace("OUTPUT", format_ansi(printed))
    )
    save(page.locator("body"), name)
    page.close()


def run_in_terminal(command: list[str], folder: Path, env: Mapping[str, str]) -> str:
    """Run a command in a terminal of its own, and return what it prints, with its colours."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    environment = {**env, "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(command, cwd=folder, env=environment, stdin=its, stdout=its, stderr=its) as process:
        os.close(its)
        chunks = []
        try:
            while chunk := os.read(ours, 65_536):
                chunks.append(chunk)
        except OSError:  # how Linux says that nobody has the terminal open any more
            pass
    os.close(ours)
    printed = b"".join(chunks).decode().replace("\r\n", "\n")
    if process.returncode:
        sys.exit(f"`{' '.join(command[2:])}` failed: {printed}")
    return printed.rstrip()


def format_ansi(printed: str) -> str:
    """Return text with ANSI escape sequences as HTML."""
    console = Console(record=True, file=StringIO(), width=COLUMNS, color_system="truecolor", highlight=False)
    console.print(Text.from_ansi(printed), soft_wrap=True)
    return console.export_html(theme=THEME, inline_styles=True, code_format="{code}").rstrip()
