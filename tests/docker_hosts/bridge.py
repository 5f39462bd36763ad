"""Bridges for engines: devices of our own, each with a subnet of its own."""

from __future__ import annotations

import subprocess

PREFIX = "gfd"


def make_bridge() -> tuple[str, str]:
    """A new bridge and the address of the machine on it, or two empty strings where none can be made.

    The kernel refuses a name that is taken, so processes that choose at the same time never share one.
    """
    for number in range(1, 255):
        name, gateway = f"{PREFIX}{number}", f"10.213.{number}.1"
        if _ip("link", "add", name, "type", "bridge"):
            if _ip("addr", "add", f"{gateway}/24", "dev", name) and _ip("link", "set", name, "up"):
                return name, gateway
            remove_bridge(name)
            break
        if not _ip("link", "show", name):
            break  # it was not refused because of its name
    return "", ""


def networks_of(gateway: str) -> str:
    """Addresses for further networks of the engine behind this gateway."""
    return f"10.214.{gateway.split('.')[2]}.0/24"


def remove_bridge(name: str) -> None:
    """The bridge, and what containers that were killed left plugged into it."""
    listed = subprocess.run(["ip", "-o", "link", "show", "master", name], capture_output=True, text=True)
    for line in listed.stdout.splitlines():
        _ip("link", "delete", line.split(":")[1].split("@")[0].strip())
    _ip("link", "delete", name)


def _ip(*arguments: str) -> bool:
    return subprocess.run(["ip", *arguments], capture_output=True).returncode == 0
