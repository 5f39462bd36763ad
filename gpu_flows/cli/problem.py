"""What goes wrong by no fault of ours: told in a line or two, with an exit code and no traceback."""

from __future__ import annotations

FAILED = 1  # something failed, or was not found
BAD_INPUT = 2  # wrong usage: the same words will never work
INTERRUPTED = 130  # as shells say it of a Ctrl-C


def inert(value: object) -> str:
    """Text that can do nothing to a terminal: whatever is not printable is spelled out."""
    text = str(value)
    return text if text.isprintable() else "".join(map(_spelled_out, text))


def inert_lines(value: object) -> str:
    """The same for a text that may have lines."""
    return "\n".join(map(inert, str(value).splitlines()))


def _spelled_out(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


class Problem(Exception):
    """Says what is wrong and why, and on a second line how to fix it."""

    def __init__(self, what: str, fix: str = "", exit_code: int = FAILED) -> None:
        super().__init__(what)
        self.what, self.fix, self.exit_code = inert_lines(what), inert_lines(fix), exit_code

    def __str__(self) -> str:
        return f"{self.what}\n{self.fix}" if self.fix else self.what


class BadInput(Problem):
    """What was typed makes no sense."""

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(what, fix, BAD_INPUT)
