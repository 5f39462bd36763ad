"""Addresses of the documentation, for the blocks and the worker, and the logo of the worker in the UI."""

from __future__ import annotations

PROJECT_URL = "https://github.com/gpu-flows/gpu-flows"
"""The same address as in pyproject.toml."""

LOGO = (  # a chip with an arrow
    "data:image/svg+xml;utf8,<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 64 64'>"
    "<rect x='12' y='12' width='40' height='40' rx='6' fill='%231f6feb'/>"
    "<path d='M20 4v8M32 4v8M44 4v8M20 52v8M32 52v8M44 52v8M4 20h8M4 32h8M4 44h8M52 20h8M52 32h8M52 44h8' "
    "stroke='%231f6feb' stroke-width='4'/><path d='M25 21l18 11-18 11z' fill='white'/></svg>"
)
"""The logo of the worker. It is part of the address, so the UI needs no network. Prefect accepts only
http addresses for a block, so blocks have none, and the UI draws its own."""


def documentation_url(page: str) -> str:
    """Return the address of a page of docs/, such as `blocks`."""
    return f"{PROJECT_URL}/blob/main/docs/{page}.md"
