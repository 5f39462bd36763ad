"""A small client of the Prefect API: the few requests that commands make, with readable errors.

Prefect's own client takes seconds to import, so commands that only read or submit use this one. httpx is
imported with the first client, because many commands work without a server.
"""

from __future__ import annotations

import base64
import ssl
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gpu_flows.cli.errors import BAD_INPUT, CommandError
from gpu_flows.cli.prefect_settings import read_setting
from gpu_flows.common.retry import Backoff, retry_blocking
from gpu_flows.config.running_server import find_running_server
from gpu_flows.prefect_api.conventions import PAGE

if TYPE_CHECKING:
    import httpx

BUSY = (429, 502, 503)  # among others the answers of a server on SQLite while another process writes
RETRIES = Backoff(first_s=0.25, factor=1.6, most_s=2.0, attempts=12)
SCHEDULER_BLOCK, CLUSTER_BLOCK, WAREHOUSE_BLOCK = "gpu-scheduler", "gpu-cluster", "gpu-warehouse"


class Unreachable(CommandError):
    """No server is configured, none answers, or it refuses the credentials."""


class NotFound(CommandError):
    """The server does not have the object."""


class Rejected(CommandError):
    """The server refuses the request; `detail` is its reason."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"The Prefect server refused the request: {detail}", exit_code=BAD_INPUT)
        self.detail = detail


class PrefectClient:
    """Sends requests to the server that Prefect's settings name."""

    def __init__(self, timeout_s: float = 20.0) -> None:
        import httpx

        self.url = read_setting("PREFECT_API_URL").rstrip("/")
        if not self.url:
            raise _describe_missing_server()
        try:
            self._http = httpx.Client(
                base_url=self.url,
                timeout=timeout_s,
                headers=_make_authorization(),
                verify=_find_certificates(),
                follow_redirects=True,
            )
        except (OSError, ValueError, httpx.InvalidURL) as error:
            raise Unreachable(f"PREFECT_API_URL {self.url!r} cannot be used: {error}.") from None

    def get(self, path: str, **params: Any) -> Any:
        return self._request("GET", path, params=params).json()

    def post(self, path: str, body: Any) -> Any:
        """Send a request and return what the server answers; None for an empty answer."""
        response = self._request("POST", path, json=body)
        return response.json() if response.content else None

    def patch(self, path: str, body: dict[str, Any]) -> None:
        self._request("PATCH", path, json=body)

    def put(self, path: str, body: dict[str, Any]) -> None:
        self._request("PUT", path, json=body)

    def delete(self, path: str) -> None:
        self._request("DELETE", path)

    def fetch_all(self, path: str, most: int | None = None, **body: Any) -> Iterator[Any]:
        """Yield everything that a filter finds, page by page, up to about `most`."""
        seen = 0
        while True:
            page = self.post(path, {**body, "limit": PAGE, "offset": seen})
            yield from page
            seen += len(page)
            if len(page) < PAGE or (most is not None and seen >= most):
                return

    def send(self, method: str, path: str, **request: Any) -> httpx.Response:
        """Send one request and return the response, whatever its status."""
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

    def _request(self, method: str, path: str, **request: Any) -> httpx.Response:
        """Send a request, again while the server is busy. Raises what `_check` raises."""

        def send() -> httpx.Response:
            response = self.send(method, path, **request)
            if response.status_code in BUSY:
                raise _Busy(response)
            return response

        try:
            response = retry_blocking(send, RETRIES, lambda error: isinstance(error, _Busy))
        except _Busy as busy:
            response = busy.response
        if response.status_code == 403 and "CSRF" in response.text:
            self._fetch_csrf_token()
            response = self.send(method, path, **request)
        return self._check(response)

    def _fetch_csrf_token(self) -> None:
        """Get the token that a server with CSRF protection wants with every change."""
        client = str(uuid.uuid4())
        token = self._check(self.send("GET", "/csrf-token", params={"client": client})).json()["token"]
        self._http.headers.update({"Prefect-Csrf-Token": token, "Prefect-Csrf-Client": client})

    def _check(self, response: httpx.Response) -> httpx.Response:
        """Return the response if it is a success, else raise Unreachable, NotFound, Rejected or an error."""
        code = response.status_code
        if code < 400:
            return response
        if code in (401, 403):
            raise Unreachable(
                f"The Prefect server at {self.url} refuses the credentials ({code}).",
                "Set PREFECT_API_AUTH_STRING to its user:password (PREFECT_API_KEY for Prefect Cloud).",
            )
        detail = _read_detail(response)
        if code == 404:
            raise NotFound(f"The Prefect server at {self.url} does not have it: {detail}.")
        if code in (400, 409, 422):
            raise Rejected(detail)
        raise CommandError(
            f"The Prefect server at {self.url} failed ({code}): {detail}", "See the server's log."
        )

    # -- requests of several commands ---------------------------------------------------------

    def read_pool(self, name: str) -> dict[str, Any]:
        try:
            return dict(self.get(f"/work_pools/{quote(name, safe='')}"))
        except NotFound:
            raise NotFound(
                f"The Prefect server at {self.url} has no work pool {name!r}.",
                f"Create it (`prefect work-pool create {name} --type gpu`), or name another with --pool.",
            ) from None

    def find_block_name(self, pool: str, field: str) -> str:
        """The name of the block that a pool uses: the default of a field of its job template."""
        return str(template_fields(self.read_pool(pool)).get(field, {}).get("default") or "default")

    def read_block(self, kind: str, name: str) -> dict[str, Any] | None:
        """A block document, or None if there is none of that name."""
        try:
            return dict(self.get(f"/block_types/slug/{kind}/block_documents/name/{quote(name, safe='')}"))
        except NotFound:
            return None

    def read_pool_block(self, pool: str, field: str, kind: str) -> dict[str, Any]:
        """The data of the block that a pool uses, empty if the block does not exist."""
        document = self.read_block(kind, self.find_block_name(pool, field))
        return dict(document["data"]) if document else {}

    def list_workers(self, pool: str) -> list[dict[str, Any]]:
        """The workers of a pool that are online."""
        found = self.fetch_all(f"/work_pools/{quote(pool, safe='')}/workers/filter")
        return [worker for worker in found if worker.get("status") == "ONLINE"]


def template_fields(pool: dict[str, Any]) -> dict[str, Any]:
    """The fields of a pool's job template, with their JSON schemas."""
    return dict(pool.get("base_job_template", {}).get("variables", {}).get("properties", {}))


def _describe_missing_server() -> Unreachable:
    """Say that no server is known, or that the one of the last `gpu-flows up` is gone."""
    if ended := find_running_server():
        return Unreachable(
            f"The server of `{ended.command}` ({ended.api_url}) is not running any more.",
            f"Start it again: {ended.command}",
        )
    return Unreachable(
        "No Prefect server is configured.",
        "Set PREFECT_API_URL, for example to http://127.0.0.1:4200/api, or start one: gpu-flows up",
    )


class _Busy(Exception):
    def __init__(self, response: httpx.Response) -> None:
        self.response = response


def _make_authorization() -> dict[str, str]:
    if basic := read_setting("PREFECT_API_AUTH_STRING"):
        return {"Authorization": f"Basic {base64.b64encode(basic.encode()).decode()}"}
    if key := read_setting("PREFECT_API_KEY"):
        return {"Authorization": f"Bearer {key}"}
    return {}


def _find_certificates() -> ssl.SSLContext | bool:
    """What to verify the server's certificate with: a given file, the system's, or (False) nothing."""
    if read_setting("PREFECT_API_TLS_INSECURE_SKIP_VERIFY").lower() in ("1", "true", "yes", "on"):
        return False
    file = read_setting("PREFECT_API_SSL_CERT_FILE")
    return ssl.create_default_context(cafile=file) if file else True


def _read_detail(response: httpx.Response) -> str:
    """The server's reason, on one line."""
    try:
        body = response.json()
    except ValueError:
        return response.text.strip()[:300] or response.reason_phrase
    detail = body.get("detail") or body.get("exception_detail") or body if isinstance(body, dict) else body
    if isinstance(detail, list):  # the validation errors of FastAPI
        return "; ".join(f"{'.'.join(map(str, e.get('loc', [])[1:]))}: {e.get('msg')}" for e in detail)
    return str(detail)[:500]
