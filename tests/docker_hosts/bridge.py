"""Network bridges for engines, each with its own subnet."""

from __future__ import annotations

import subprocess

PREFIX = "gfd"


def make_bridge() -> tuple[str, str]:
    """Create a bridge. Returns its name and the machine's address on it; two empty strings if that fails.

    The kernel refuses a name that is taken, so processes never share a bridge.
    """
    for number in range(1, 255):
        name, gateway = f"{PREFIX}{number}", f"10.213.{number}.1"
        if _ip("link", "add", name, "type", "bridge"):
            if _ip("addr", "add", f"{gateway}/24", "dev", name) and _ip("link", "set", name, "up"):
                return name, gateway
            remove_bridge(name)
            break
        if not _ip("link", "show", name):
            break  # refused for another reason than its name
    return "", ""


def network_range(gateway: str) -> str:
    """Return the addresses for further networks of the engine behind this gateway."""
    return f"10.214.{gateway.split('.')[2]}.0/24"


def remove_bridge(name: str) -> None:
    """Remove the bridge, and the interfaces that killed containers left on it."""
    listed = subprocess.run(["ip", "-o", "link", "show", "master", name], capture_output=True, text=True)
    for line in listed.stdout.splitlines():
        _ip("link", "delete", line.split(":")[1].split("@")[0].strip())
    _ip("link", "delete", name)


def _ip(*arguments: str) -> bool:
    return subprocess.run(["ip", *arguments], capture_output=True).returncode == 0
