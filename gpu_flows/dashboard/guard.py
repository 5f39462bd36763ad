"""Refuses requests that do not come from a page of this server, and tells the browser what such a page may.

The server listens on 127.0.0.1, but any web page can send requests there from the browser. A page under
a name that its owner makes point to 127.0.0.1 (DNS rebinding) sends that name as Host; a page elsewhere sends
its own address as Origin with every POST. What a page elsewhere fetches or embeds, it cannot read, but this
server would work for it; browsers tell that in Sec-Fetch-Site. A link to this server from anywhere is fine.
"""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL_NAMES = {"127.0.0.1", "localhost", "[::1]"}  # with any port: `ssh -L` may use another one
SAFE_METHODS = {"GET", "HEAD"}
ELSEWHERE = {"cross-site", "same-site"}  # a page of another port is of the same site

# plotly sets the styles of its elements, so styles may stand in the page; scripts may not.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Guard:
    """Wraps an app."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = find_refusal(scope["method"], Headers(scope=scope))
        answer = PlainTextResponse(f"{refusal}\n", 403) if refusal else self._app
        await answer(scope, receive, send_guarded)


def find_refusal(method: str, headers: Headers) -> str:
    """Return why a request is refused; empty if it is not."""
    host = headers.get("host", "")
    name, _, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
    if (name or port) not in LOCAL_NAMES:
        return "This server answers only under the names 127.0.0.1 and localhost."
    is_safe = method in SAFE_METHODS
    is_elsewhere = headers.get("sec-fetch-site") in ELSEWHERE and not (is_safe and _opens_page(headers))
    if is_elsewhere or not (is_safe or headers.get("origin") == f"http://{host}"):
        return "Only a page of this server may ask for this."
    return ""


def _opens_page(headers: Headers) -> bool:
    """Return whether the browser shows what it asks for as a page of its own."""
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
