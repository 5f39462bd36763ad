"""What the server answers: pages, their fragments, figures, files, and the start of a what-if."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl

from markupsafe import Markup
from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from gpu_flows import __version__
from gpu_flows.analytics.query_runner import QueryError
from gpu_flows.dashboard.answers import Answers
from gpu_flows.dashboard.guard import Guard
from gpu_flows.dashboard.pages import find_asset, render
from gpu_flows.dashboard.pool_watch import PoolWatch
from gpu_flows.dashboard.questions import QuestionError
from gpu_flows.dashboard.replays import Replays
from gpu_flows.dashboard.views import devices, history, job, overview, policies, queue, running
from gpu_flows.dashboard.views.look import Look, Settings, Sources

VIEWS: dict[str, tuple[str, Callable[[Look], dict[str, Any]]]] = {
    "overview": ("Overview", overview.values),
    "queue": ("Queue", queue.values),
    "running": ("Running", running.values),
    "devices": ("Devices", devices.values),
    "policies": ("Policies", policies.values),
    "history": ("History", history.values),
}
WITH_PANEL = {"overview", "queue", "running", "devices"}
SIMULATIONS = 2  # at once
MOST_KEPT = 64  # fragments of different addresses
LONGEST_FORM = 10_000  # bytes


class Dashboard:
    """One pool's dashboard. Fragments are rendered once for all who look at the same."""

    def __init__(self, settings: Settings) -> None:
        self.sources = Sources(
            settings,
            PoolWatch(settings.pool),
            queries=Answers(1, (QueryError,)),  # between two, the recorder can write to the file
            forecasts=Answers(SIMULATIONS, (QuestionError,)),
            replays=Replays(),
        )
        self._rendered: OrderedDict[tuple[str, str], tuple[str, bytes]] = OrderedDict()

    def app(self) -> Starlette:
        routes = [
            Route("/fragments/{view}", self.answer_fragments),
            Route("/figures/{key}", self.answer_figure),
            Route("/static/{name}", self.answer_asset),
            Route("/whatif", self.start_whatif, methods=["POST"]),
            Route("/", self.answer_page),
            Route("/{view}", self.answer_page),
        ]
        middleware = [Middleware(Guard), Middleware(GZipMiddleware, minimum_size=1000)]
        return Starlette(routes=routes, middleware=middleware, lifespan=self._live)

    @asynccontextmanager
    async def _live(self, app: Starlette) -> AsyncIterator[None]:
        yield
        sources = self.sources
        await asyncio.gather(sources.queries.close(), sources.forecasts.close(), sources.replays.close())

    # -- pages and fragments ------------------------------------------------------------------

    async def answer_page(self, request: Request) -> Response:
        look = self._look(request, request.path_params.get("view", "overview"))
        title = f"{VIEWS[look.view][0]} · pool {look.snapshot.pool}"
        fragments = {name: Markup(text) for name, text in self._render(look).items()}
        tabs = [(name if name != "overview" else "./", name, label) for name, (label, _) in VIEWS.items()]
        values = {"title": title, "look": look, "tabs": tabs, "fragments": fragments, "version": __version__}
        return HTMLResponse(render("page.html", values), headers={"Cache-Control": "no-store"})

    async def answer_fragments(self, request: Request) -> Response:
        """Return the fragments of a view as JSON, or 304 if they are those that the browser has."""
        look = self._look(request, request.path_params["view"])
        tag, key = self._tag(look), (look.view, str(look.params))
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"ETag": tag})
        known, body = self._rendered.get(key, ("", b""))
        if known != tag:
            body = json.dumps(self._render(look)).encode()
            tag = self._tag(look)
            self._rendered[key] = tag, body
            self._rendered.move_to_end(key)
            while len(self._rendered) > MOST_KEPT:
                self._rendered.popitem(last=False)
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        return Response(body, media_type="application/json", headers=headers)

    def _look(self, request: Request, view: str) -> Look:
        if view not in VIEWS:
            raise HTTPException(404, f"There is no view {view[:40]!r}; there are {', '.join(VIEWS)}.")
        return Look(view, self.sources.watch.look(), request.query_params, self.sources)

    def _tag(self, look: Look) -> str:
        """Return what differs if a fragment of this view may differ."""
        sources = self.sources
        revisions = sources.queries.revision, sources.forecasts.revision, sources.replays.revision
        whole = repr((__version__, look.view, str(look.params), look.snapshot.version, revisions))
        return f'"{sha256(whole.encode()).hexdigest()[:24]}"'

    def _render(self, look: Look) -> dict[str, str]:
        """Return the fragments of the view by the ids of their places in the page."""
        shared = {
            "look": look,
            "snapshot": look.snapshot,
            "status": look.snapshot.status,
            "now": look.snapshot.now,
        }
        _, values = VIEWS[look.view]
        panel = job.values(look) if look.view in WITH_PANEL else None
        return {
            "state": render("state.html", shared),
            "view": render(f"{look.view}.html", {**shared, **values(look)}),
            "panel": render("job.html", {**shared, **panel}) if panel else "",
        }

    # -- figures, files, what-if --------------------------------------------------------------

    async def answer_figure(self, request: Request) -> Response:
        period = request.query_params.get("period", history.DEFAULT_PERIOD)
        try:
            answer = await history.find_figure(self.sources, request.path_params["key"], period)
        except KeyError:
            raise HTTPException(404, "There is no such figure or period.") from None
        tag = f'"{answer.at:.6f}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"ETag": tag})
        values = {
            "drawn": answer.value,
            "error": answer.error,
            "wide": request.path_params["key"] in history.WIDE,
        }
        page = await asyncio.to_thread(render, "figure.html", values)
        return HTMLResponse(page, headers={"ETag": tag, "Cache-Control": "no-cache"})

    async def answer_asset(self, request: Request) -> Response:
        try:
            asset = find_asset(request.path_params["name"])
        except KeyError:
            raise HTTPException(404) from None
        tag = f'"{asset.digest}"'
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(asset.text, media_type=asset.kind, headers=headers)

    async def start_whatif(self, request: Request) -> Response:
        """Start to answer a what-if question, or cancel it. This changes nothing in the pool."""
        body = await _read_form(request)
        params = QueryParams(parse_qsl(body))
        try:
            question = policies.read_question(params)
        except policies.BadQuestion as error:
            return PlainTextResponse(str(error), 400)
        if params.get("action") == "cancel":
            self.sources.replays.cancel(question)
        else:
            self.sources.replays.start(question, policies.make_request(self.sources, question))
        return Response(status_code=204)


async def _read_form(request: Request) -> str:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LONGEST_FORM:
            raise HTTPException(413)
    return body.decode(errors="replace")
