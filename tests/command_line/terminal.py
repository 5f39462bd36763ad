"""A command line in a terminal: a pseudo-terminal of a given width."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

COLOURS = re.compile(r"\x1b\[[\d;]*m")


def show_in_terminal(*words: str, columns: int = 80) -> str:
    """Run a command line in a terminal, and return what it shows, without colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    command = [sys.executable, "-m", "gpu_flows.cli", *words]
    with subprocess.Popen(command, env={**env, "TERM": "xterm"}, stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 65_536):
                shown += part
        except OSError:  # Linux reports the end like this
            pass
    os.close(ours)
    return COLOURS.sub("", shown.decode()).replace("\r\n", "\n")
