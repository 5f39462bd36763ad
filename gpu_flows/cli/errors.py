"""The errors that a command reports in one or two lines, with an exit code and without a traceback."""

from __future__ import annotations

from gpu_flows.cli.escaping import escape_lines

FAILED = 1  # something failed, or was not found
BAD_INPUT = 2  # wrong usage: the same command line will never work
INTERRUPTED = 130  # what shells report after Ctrl-C


class CommandError(Exception):
    """States what is wrong and why and, on a second line, how to fix it."""

    def __init__(self, what: str, fix: str = "", exit_code: int = FAILED) -> None:
        super().__init__(what)
        self.what, self.fix, self.exit_code = escape_lines(what), escape_lines(fix), exit_code

    def __str__(self) -> str:
        return f"{self.what}\n{self.fix}" if self.fix else self.what


class BadInput(CommandError):
    """The options, the arguments or a file that they name are not valid."""

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(what, fix, BAD_INPUT)
