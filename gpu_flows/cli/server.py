"""The Prefect server, as the commands need it: a few requests, and clear words when they fail.

httpx is imported when the first request is made: many commands can answer without one.
"""

from __future__ import annotations

import base64
import ssl
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gpu_flows.cli.prefect_settings import setting
from gpu_flows.cli.problem import BAD_INPUT, Problem

if TYPE_CHECKING:
    import httpx

PAGE = 200  # the most the server gives at once
BUSY = (429, 502, 503)  # a server on SQLite answers so while somebody else writes
TRIES = 5
SCHEDULER, CLUSTER, WAREHOUSE = "gpu-scheduler", "gpu-cluster", "gpu-warehouse"  # kinds of blocks


class Unreachable(Problem):
    """No server is known, or none answers, or it does not let us in."""


class NotFound(Problem):
    """The server has no such thing."""


class Rejected(Problem):
    """The server does not accept what it was given; `detail` says why."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"The server did not accept it: {detail}", exit_code=BAD_INPUT)
        self.detail = detail


class Server:
    """Talks to the server that Prefect's settings name."""

    def __init__(self, timeout_s: float = 20.0) -> None:
        import httpx

        self.url = setting("PREFECT_API_URL").rstrip("/")
        if not self.url:
            raise Unreachable(
                "No Prefect server is known.",
                "Set PREFECT_API_URL, for example to http://127.0.0.1:4200/api, or start one: gpu-flows up",
            )
        try:
            self._http = httpx.Client(
                base_url=self.url,
                timeout=timeout_s,
                headers=_authorization(),
                verify=_trust(),
                follow_redirects=True,
            )
        except (OSError, ValueError, httpx.InvalidURL) as error:
            raise Unreachable(f"PREFECT_API_URL {self.url!r} cannot be used: {error}.") from None

    def get(self, path: str, **params: Any) -> Any:
        return self._ask("GET", path, params=params).json()

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._ask("POST", path, json=body).json()

    def patch(self, path: str, body: dict[str, Any]) -> None:
        self._ask("PATCH", path, json=body)

    def page(self, path: str, most: int | None = None, **body: Any) -> Iterator[Any]:
        """Everything a filter finds, page by page."""
        seen = 0
        while True:
            some = self.post(path, {**body, "limit": PAGE, "offset": seen})
            yield from some
            seen += len(some)
            if len(some) < PAGE or (most is not None and seen >= most):
                return

    def _ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        for attempt in range(1, TRIES + 1):
            response = self.send(method, path, **request)
            if response.status_code not in BUSY or attempt == TRIES:
                break
            time.sleep(0.25 * attempt)
        if response.status_code == 403 and "CSRF" in response.text:
            self._get_token()
            response = self.send(method, path, **request)
        return self._checked(response)

    def send(self, method: str, path: str, **request: Any) -> httpx.Response:
        """One request and its answer, whatever that says."""
        import httpx

        try:
            return self._http.request(method, path, **request)
        except httpx.UnsupportedProtocol:
            raise Unreachable(
                f"PREFECT_API_URL {self.url!r} does not begin with http:// or https://."
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unreachable(
                f"No Prefect server answers at {self.url} ({str(error) or type(error).__name__}).",
                "Start it (`prefect server start`, or `gpu-flows up`), or correct PREFECT_API_URL.",
            ) from None

    def _get_token(self) -> None:
        """A server with protection against forged requests wants its token back with each change."""
        client = str(uuid.uuid4())
        token = self._checked(self.send("GET", "/csrf-token", params={"client": client})).json()["token"]
        self._http.headers.update({"Prefect-Csrf-Token": token, "Prefect-Csrf-Client": client})

    def _checked(self, response: httpx.Response) -> httpx.Response:
        code = response.status_code
        if code < 400:
            return response
        if code in (401, 403):
            raise Unreachable(
                f"The Prefect server at {self.url} does not let us in ({code}).",
                "Set PREFECT_API_AUTH_STRING to its user:password (PREFECT_API_KEY for Prefect Cloud).",
            )
        detail = _detail(response)
        if code == 404:
            raise NotFound(f"The Prefect server at {self.url} does not have it: {detail}.")
        if code in (400, 409, 422):
            raise Rejected(detail)
        raise Problem(f"The Prefect server at {self.url} failed ({code}): {detail}", "See the server's log.")

    # -- what more than one command asks for --------------------------------------------------

    def pool(self, name: str) -> dict[str, Any]:
        try:
            return dict(self.get(f"/work_pools/{quote(name, safe='')}"))
        except NotFound:
            raise NotFound(
                f"The Prefect server at {self.url} has no work pool {name!r}.",
                f"Create it (`prefect work-pool create {name} --type gpu`), or name another with --pool.",
            ) from None

    def block_name(self, pool: str, field: str) -> str:
        """Which block a pool uses: the default of a field of its form."""
        form = self.pool(pool).get("base_job_template", {}).get("variables", {}).get("properties", {})
        return str(form.get(field, {}).get("default") or "default")

    def block(self, kind: str, name: str) -> dict[str, Any] | None:
        """A block's document, None if there is none of that name."""
        try:
            return dict(self.get(f"/block_types/slug/{kind}/block_documents/name/{quote(name, safe='')}"))
        except NotFound:
            return None

    def workers(self, pool: str) -> list[dict[str, Any]]:
        """The workers of a pool that are alive."""
        found = self.page(f"/work_pools/{quote(pool, safe='')}/workers/filter")
        return [worker for worker in found if worker.get("status") == "ONLINE"]


def _authorization() -> dict[str, str]:
    if basic := setting("PREFECT_API_AUTH_STRING"):
        return {"Authorization": f"Basic {base64.b64encode(basic.encode()).decode()}"}
    if key := setting("PREFECT_API_KEY"):
        return {"Authorization": f"Bearer {key}"}
    return {}


def _trust() -> ssl.SSLContext | bool:
    """By which certificates a server proves itself."""
    if setting("PREFECT_API_TLS_INSECURE_SKIP_VERIFY").lower() in ("1", "true", "yes", "on"):
        return False
    own = setting("PREFECT_API_SSL_CERT_FILE")
    return ssl.create_default_context(cafile=own) if own else True


def _detail(response: httpx.Response) -> str:
    """What the server says, on one line."""
    try:
        said = response.json()
    except ValueError:
        return response.text.strip()[:300] or response.reason_phrase
    said = said.get("detail") or said.get("exception_detail") or said if isinstance(said, dict) else said
    if isinstance(said, list):  # FastAPI's own validation
        return "; ".join(f"{'.'.join(map(str, e.get('loc', [])[1:]))}: {e.get('msg')}" for e in said)
    return str(said)[:500]
