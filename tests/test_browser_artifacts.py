"""What a pool shows in Prefect's UIs beside its runs: artifacts, events and automations."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from command_line.run import gpu_flows_process
from conftest import eventually
from live import Pool
from prefect_ui.pages import Ui

from gpu_flows.bootstrap.local_stack import Stack

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytest_plugins = ["prefect_ui.fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.long]

HOSTILE = '<img src=x onerror="window.harmed=1"> [a](javascript:window.harmed=2) https://evil.example `b` *c*'


@pytest.fixture(scope="module")
def pool(new_shared_stack: Callable[..., Stack]) -> Pool:
    return Pool(new_shared_stack("1x2:GTX 1080 Ti:11"))


class Inbox:
    """What a notification block has sent, by its subject."""

    def __init__(self) -> None:
        self.bodies: dict[str, str] = {}


@pytest.fixture(scope="module")
def inbox() -> Iterator[tuple[Inbox, str]]:
    """A receiver of notifications, and its address."""
    received = Inbox()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = json.loads(self.rfile.read(int(self.headers["content-length"])))
            received.bodies[sent["subject"]] = sent["body"]
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield received, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def waiting(pool: Pool) -> str:
    """A run with a hostile name that waits for the devices of another one."""
    pool.until(pool.command("sleep 600", gpus=2), "Running")
    return submit(pool, HOSTILE, gpus=1)


def submit(pool: Pool, name: str, **variables: Any) -> str:
    body = {"name": name, "parameters": {"command": "unused"}}
    body["job_variables"] = {"command": "sleep 600", **variables}
    return str(pool.post(f"/deployments/{pool.deployment}/create_flow_run", body)["id"])


def automations(pool: Pool, *words: str) -> dict[str, str]:
    """Run `gpu-flows automations` and return the states of the pool's automations."""
    done = gpu_flows_process("automations", *words, "--json", env=pool.stack.environment())
    return {a["name"]: a["state"] for a in done.json["automations"]}


def find_artifacts(pool: Pool, kind: str) -> list[dict[str, Any]]:
    """All versions of a pool's artifact."""
    which = {"artifacts": {"key": {"any_": [f"gpu-{kind}-{pool.stack.pool}"]}}}
    found: list[dict[str, Any]] = pool.post("/artifacts/filter", which)
    return found


def rows(pool: Pool, kind: str) -> list[dict[str, Any]]:
    found = find_artifacts(pool, kind)
    return json.loads(found[0]["data"]) if found else []


def events(pool: Pool, name: str) -> list[dict[str, Any]]:
    which = {
        "event": {"name": [name]},
        "any_resource": {
            "id": [f"prefect.work-pool.{pool.request('GET', f'/work_pools/{pool.stack.pool}')['id']}"]
        },
    }
    return list(pool.post("/events/filter", {"filter": which})["events"])


def open_artifact(ui: Ui, pool: Pool, kind: str) -> None:
    """Open the page of an artifact as a person does: the list, the artifact, its only version."""
    ui.open("/artifacts")
    ui.page.locator(f"a[href$='/artifacts/key/gpu-{kind}-{pool.stack.pool}']").first.click()
    version = ui.page.locator("a[href*='/artifacts/artifact/']")
    version.first.wait_for()
    assert version.count() == 1
    version.first.click()


def follow(link: Locator) -> Page:
    """Click a link and return the page that it leads to. V1 opens it in a tab of its own."""
    if link.get_attribute("target") != "_blank":
        link.click()
        return link.page
    with link.page.context.expect_page() as opened:
        link.click()
    return opened.value


def test_the_queue_shows_why_a_run_waits_and_leads_to_it(ui: Ui, pool: Pool, waiting: str) -> None:
    eventually(lambda: any(waiting in row["page"] for row in rows(pool, "queue")), "the artifact has the run")
    open_artifact(ui, pool, "queue")
    ui.shows("1st in the queue, needs 1 GPU; 0 such are free.")
    ui.shows("capacity")
    assert ui.page.locator("img[src=x]").count() == 0
    assert ui.page.locator("a[href*='javascript'], a[href*='evil']").count() == 0
    assert ui.page.evaluate("window.harmed") is None

    name = f"later-{type(ui).__name__}"
    later = submit(pool, name, gpus=2)
    eventually(lambda: any(later in row["page"] for row in rows(pool, "queue")), "it is in the artifact")
    ui.page.reload()
    ui.shows("2nd in the queue")
    assert len(find_artifacts(pool, "queue")) == 1, "it was updated in place"
    run_page = follow(ui.page.locator(f"a[href$='/runs/flow-run/{later}']").first)
    run_page.wait_for_url(f"**{ui.prefix}/runs/flow-run/{later}*")
    run_page.get_by_text(name).first.wait_for()
    pool.cancel(later)
    pool.until(later, "Cancelled")


def test_devices_and_events_are_shown(ui: Ui, pool: Pool, waiting: str) -> None:
    eventually(lambda: all(row["jobs"] for row in rows(pool, "devices")), "the artifact shows who holds them")
    open_artifact(ui, pool, "devices")
    ui.shows("2 of 2 in use")
    ui.shows("node-1:1")
    assert find_artifacts(pool, "comparison")
    (placed,) = eventually(lambda: events(pool, "gpu-flows.job.placed"), "the event of the placement")
    assert len(placed["payload"]["devices"]) == 2
    before = len(events(pool, "gpu-flows.policy.swapped"))
    pool.save_policy("fifo", skip=bool(before % 2))
    eventually(lambda: len(events(pool, "gpu-flows.policy.swapped")) > before, "the event of a swap")
    ui.open("/events")  # it shows the last ones
    ui.shows("gpu-flows.policy.swapped")


def test_automations_notify(pool: Pool, waiting: str, inbox: tuple[Inbox, str]) -> None:
    """Installed twice. A run that waits too long, an idle device and a refused policy are told."""
    received, url = inbox
    save_notifier(pool, url)
    automations(pool, "install")
    ids = find_automations(pool)
    states = automations(
        *(pool, "install", "--notify", f"custom-webhook/{pool.stack.pool}"),
        *("--within", "waiting-long=10s", "--within", "no-sign-of-life=10m"),
    )
    assert set(states.values()) == {"notifies"}
    assert find_automations(pool) == ids

    later = submit(pool, "waits-for-ever", gpus=2)
    scheduler, cluster = pool.block("gpu-scheduler")["data"], pool.block("gpu-cluster")["data"]
    pool.save_block("gpu-cluster", {**cluster, "idle_minutes": 0.02})
    pool.save_block("gpu-scheduler", {**scheduler, "policy": "no-such-policy"})
    name = pool.stack.pool
    eventually(lambda: f"Pool {name} cannot use its policy" in received.bodies, "the refused policy is told")
    assert "no-such-policy" in received.bodies[f"Pool {name} cannot use its policy"]
    eventually(lambda: f"A GPU of pool {name} is idle" in received.bodies, "the idle device is told")
    assert re.search(r"holds GPU SIM-\S+ on node-1", received.bodies[f"A GPU of pool {name} is idle"])
    eventually(lambda: f"A run waits long in pool {name}" in received.bodies, "the long wait is told")
    assert re.search(
        "in the queue, needs 2 GPUs.*\n.*/runs/flow-run/", received.bodies[f"A run waits long in pool {name}"]
    )
    pool.save_block("gpu-scheduler", scheduler)
    pool.save_block("gpu-cluster", cluster)
    pool.cancel(later)


def save_notifier(pool: Pool, url: str) -> None:
    """Save a notification block, as the UI does."""
    kind = pool.request("GET", "/block_types/slug/custom-webhook")["id"]
    schema = pool.post("/block_schemas/filter", {"block_schemas": {"block_type_id": {"any_": [kind]}}})[0][
        "id"
    ]
    message = {"subject": "{{subject}}", "body": "{{body}}"}
    data = {"name": "inbox", "url": url, "method": "POST", "json_data": message}
    body = {"name": pool.stack.pool, "block_type_id": kind, "block_schema_id": schema, "data": data}
    pool.post("/block_documents/", body)


def find_automations(pool: Pool) -> dict[str, str]:
    """The ids of the pool's automations by their names."""
    found = pool.post("/automations/filter", {})
    return {a["name"]: a["id"] for a in found if a["name"].endswith(f"({pool.stack.pool})")}


def test_automations_are_shown(ui: Ui, pool: Pool) -> None:
    automations(pool, "install", "--only", "sick-gpu")
    ui.open("/automations")
    ui.shows(f"gpu-flows sick-gpu ({pool.stack.pool})")
