"""`gpu-flows automations`: what it asks of the server, which here is a fake one. A real one triggers them in
test_browser_artifacts.py."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from command_line.run import expect_error, gpu_flows
from command_line.server import Answer, FakeServer, serve
from prefect.server.events.schemas.automations import AutomationCreate

from gpu_flows.cli.automations import build_automation, make_name, read_definitions

pytest_plugins = ["command_line.fixtures"]
NAMES = [definition["name"] for definition in read_definitions()]
BLOCK = "6f1d0c4e-0000-4000-8000-000000000003"


class AutomationServer(FakeServer):
    """A server with a pool, a notification block and a block of another kind, which keeps automations."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, dict[str, Any]] = {}

    def answer(self, path: str, headers: Any, body: bytes) -> Answer:
        sent = json.loads(body) if body else None
        match path.removeprefix("/api").strip("/").split("/"):
            case ["work_pools", "gpu"]:
                return 200, {"name": "gpu"}
            case ["block_types", "slug", kind, *_, "mine"]:
                does = ["notify"] if kind == "slack-webhook" else ["storage"]
                return 200, {"id": BLOCK, "block_schema": {"capabilities": does}}
            case ["automations", "filter"]:
                names = sent["automations"]["name"]["any_"]
                return 200, [a for a in self.kept.values() if a["name"] in names]
            case ["automations"]:
                AutomationCreate.model_validate_json(body)
                automation = {"id": str(uuid4()), **sent}
                self.kept[automation["id"]] = automation
                return 201, automation
            case ["automations", id] if sent:
                self.kept[id].update(sent)
                return 200, None
            case ["automations", id]:
                del self.kept[id]
                return 200, None
        return 404, {"detail": "Not found"}

    def named(self, name: str) -> dict[str, Any]:
        (found,) = [a for a in self.kept.values() if a["name"] == make_name(name, "gpu")]
        return found


@pytest.fixture
def automations(own_home: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    with serve(AutomationServer()) as server:
        monkeypatch.setenv("PREFECT_API_URL", server.url)
        yield server


@pytest.mark.parametrize("definition", read_definitions(), ids=NAMES)
@pytest.mark.parametrize("block", [None, BLOCK])
def test_every_definition_is_a_valid_automation_of_its_pool(
    definition: dict[str, Any], block: str | None
) -> None:
    """Prefect also checks the templates of subject and body."""
    body = build_automation(definition, "my lab", block)
    automation = AutomationCreate.model_validate_json(json.dumps(body))
    assert automation.name == f"gpu-flows {definition['name']} (my lab)"
    assert "{pool}" not in json.dumps(body)
    assert "my lab" in json.dumps(body["trigger"]), "it looks at one pool only"


def test_installing_again_changes_nothing_but_what_is_asked(automations: AutomationServer) -> None:
    first = gpu_flows("automations", "install", "--json").json
    assert {a["name"]: a["state"] for a in first["automations"]} == dict.fromkeys(NAMES, "event feed only")
    ids = set(automations.kept)
    automations.named("regret")["enabled"] = False
    again = gpu_flows(
        *("automations", "install", "--notify", "slack-webhook/mine", "--within", "waiting-long=2h", "--json")
    ).json
    assert set(automations.kept) == ids
    states = {a["name"]: a["state"] for a in again["automations"]}
    assert states == {**dict.fromkeys(NAMES, "notifies"), "regret": "disabled"}
    assert automations.named("waiting-long")["trigger"]["within"] == 7200
    assert {a["actions"][0]["block_document_id"] for a in automations.kept.values()} == {BLOCK}


def test_one_is_installed_and_removed_alone(automations: AutomationServer) -> None:
    gpu_flows("automations", "install", "--only", "idle-gpu", "--only", "sick-gpu")
    gpu_flows("automations", "remove", "--only", "sick-gpu")
    shown = gpu_flows("automations", "list").out
    installed = [line.split()[0] for line in shown.splitlines() if "event feed only" in line]
    assert installed == ["idle-gpu"]
    gpu_flows("automations", "remove")
    assert not automations.kept


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["install", "--only", "idle-gpus"], "Did you mean 'idle-gpu'?"),
        (["install", "--notify", "my-block"], "TYPE/NAME"),
        (["install", "--notify", "local-file-system/mine"], "cannot notify"),
        (["install", "--within", "idle-gpu=1h"], "There are: waiting-long, no-sign-of-life"),
        (["install", "--within", "waiting-long=soon"], "--within waiting-long=soon"),
        (["install", "--within", "waiting-long=5s"], "at least 10 s"),
    ],
)
def test_a_mistake_is_explained(automations: AutomationServer, words: list[str], expected: str) -> None:
    assert expected in expect_error(gpu_flows("automations", *words))
    assert not automations.kept


def test_a_missing_block_and_a_missing_pool_are_named(automations: AutomationServer) -> None:
    error = expect_error(gpu_flows("automations", "install", "--notify", "slack-webhook/other"), code=1)
    assert "no block 'slack-webhook/other'" in error
    assert "'lab'" in expect_error(gpu_flows("automations", "install", "--pool", "lab"), code=1)
