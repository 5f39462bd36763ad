"""What the commands that draw figures need: the extra `charts`."""

from __future__ import annotations

from importlib.util import find_spec

from gpu_flows.cli.errors import CommandError


def require_charts(what: str) -> None:
    """Raise a CommandError unless the extra `charts` is installed. `what` begins its message."""
    absent = [name for name in ("plotly", "jinja2") if find_spec(name) is None]
    if absent:
        raise CommandError(
            f"{what} needs {' and '.join(absent)}.", "Install it: pip install 'gpu-flows[charts]'."
        )
