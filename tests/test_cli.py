"""The command line in general: help, wrong usage, settings, and errors of the Prefect server."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line.run import NO_SERVER_URL, expect_error, gpu_flows
from command_line.server import FakeServer
from command_line.worker import device, waiting_job, write_status

from gpu_flows.cli import COMMANDS, load
from gpu_flows.cli.jobs.deployments import build_parameters
from gpu_flows.cli.options import parse_assignments, parse_json_or_text
from gpu_flows.cli.prefect_settings import build_run_url, read_setting

pytest_plugins = ["command_line.fixtures"]
pytestmark = pytest.mark.usefixtures("own_home")

# Help


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    heavy = ["prefect", "duckdb", "torch", "httpx", "rich", "pydantic", "docker"]
    code = (
        "import sys\nfrom gpu_flows.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit as end: print('code', end.code)\n"
        f"print('imported', [name for name in {heavy} if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "code 0" in out
    assert "imported []" in out
    for name, (line, _) in COMMANDS.items():
        assert f"  {name} " in out
        assert line in out


GROUPS = ("automations", "policy", "predict", "rl")  # commands that have subcommands


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_has_examples(name: str) -> None:
    result = gpu_flows(name, "--help")
    assert result.code == 0
    assert name in GROUPS or "Examples:\n    gpu-flows" in result.out


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"demo", "up", *GROUPS}))
def test_examples_parse(name: str) -> None:
    command = load(name)
    lines = [line.strip() for line in command.epilog.splitlines() if line.startswith("  gpu-flows")]
    for line in lines:
        words = shlex.split(line.split(" | ")[0])
        assert words[:2] == ["gpu-flows", name]
        command.make_context(name, words[2:])  # raises an error for an unknown option


@pytest.mark.parametrize("group", GROUPS)
def test_examples_of_groups_parse(group: str) -> None:
    check_examples(load(group), 3)


def check_examples(group: Any, words: int) -> None:
    """Parse the examples of a group's commands; the arguments of each follow after so many words."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            check_examples(command, words + 1)
            continue
        for line in command.epilog.splitlines()[2:]:
            command.make_context(name, shlex.split(line)[words:])


def test_commands_that_read_do_not_import_prefect() -> None:
    write_status(waiting=[waiting_job()], devices=[device()])
    code = (
        "import sys\nfrom gpu_flows.cli import main\n"
        "for words in (['queue'], ['gpus'], ['why', 'patient'], ['policies'], ['sql', '--list']):\n"
        "    try: main(words)\n    except SystemExit as end: assert end.code == 0, words\n"
        "print('imported', [n for n in ('prefect', 'duckdb', 'torch', 'docker') if n in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "imported []" in out


def test_version() -> None:
    assert gpu_flows("--version").out.startswith("gpu-flows ")


# Wrong usage


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["qeue"], "Did you mean 'queue'"),
        (["queue", "--limit", "many"], "--limit"),
        (["queue", "--nope"], "--nope"),
        (["why"], "RUN"),
        (["policy"], "Missing command"),
        (["submit", "--memory", "lots", "--", "true"], "--memory"),
        (["submit", "--memory", "nan", "--", "true"], "'nan' is no amount of memory"),
        (["submit", "--gpus", "two", "--", "true"], "--gpus"),
        (["submit", "--env", "NOVALUE", "--", "true"], "NAME=VALUE"),
        (["submit", "train", "--param", "=3"], "NAME=VALUE"),
        (["submit"], "put -- before a command: gpu-flows submit -- python train.py"),
        (["submit", "python", "train.py"], "gpu-flows submit -- python train.py"),
        (["submit", "train", "--", "true"], "not both"),
        (["submit", "--"], "no command after --"),
        (["sql"], "No query is given"),
        (["sql", "select 1", "--file", "x.sql"], "Two queries"),
        (["sql", "--file", "missing.sql"], "missing.sql"),
        (["sql", "select 1", "--json", "--csv"], "choose one"),
    ],
)
def test_wrong_usage_is_a_short_error_with_exit_code_2(words: list[str], expected: str) -> None:
    assert expected in expect_error(gpu_flows(*words))


@pytest.mark.parametrize(
    "words",
    [["queue"], ["why", "x"], ["policy", "show"], ["policy", "set", "fifo"], ["submit", "--", "true"]],
)
def test_error_names_the_address_of_a_server_that_does_not_answer(words: list[str]) -> None:
    error = expect_error(gpu_flows(*words), code=1)
    assert NO_SERVER_URL in error
    assert "prefect server start" in error


def test_error_names_the_setting_if_no_server_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL")
    assert "PREFECT_API_URL" in expect_error(gpu_flows("queue"), code=1)


@pytest.mark.parametrize("url", ["nonsense", "ftp://host/api", "http://[::1/api"])
def test_error_names_an_invalid_server_address(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", url)
    assert url in expect_error(gpu_flows("queue"), code=1)


# Answers of the server


def test_error_names_the_setting_for_a_missing_or_wrong_password(fake: FakeServer) -> None:
    fake.answers["/work_pools/gpu"] = 401, {"exception_message": "Unauthorized"}
    assert "PREFECT_API_AUTH_STRING" in expect_error(gpu_flows("queue"), code=1)


def test_password_of_the_settings_is_sent(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "admin:secret")
    gpu_flows("queue")
    assert fake.requests[0][1]["authorization"] == "Basic YWRtaW46c2VjcmV0"


def test_request_is_repeated_while_the_server_is_busy(fake: FakeServer) -> None:
    answers = iter([(503, {}), (503, {}), (200, {"base_job_template": {}})])
    fake.answers["/work_pools/gpu"] = lambda headers: next(answers)
    fake.answers["/flow_runs/filter"] = 200, []
    fake.answers["/work_pools/gpu/workers/filter"] = 200, []
    assert gpu_flows("queue").code == 0


def test_repeated_submission_has_the_same_idempotency_key(fake: FakeServer) -> None:
    run = {"id": "42", "name": "once", "state": {"name": "Scheduled"}, "state_type": "SCHEDULED"}
    answers = iter([(503, {}), (201, run)])
    fake.answers["/deployments/filter"] = 200, [{"id": "7", "name": "command", "work_pool_name": "gpu"}]
    fake.answers["/deployments/7/create_flow_run"] = lambda headers: next(answers)
    fake.answers["/work_pools/gpu/workers/filter"] = 200, []
    assert gpu_flows("submit", "--", "true").code == 0
    first, second = [body for path, _, body in fake.requests if path.endswith("create_flow_run")]
    assert first == second
    assert first["idempotency_key"], "the server recognises the repetition by it"


def test_csrf_token_is_fetched_and_sent(fake: FakeServer) -> None:
    fake.answers["/work_pools/gpu"] = 200, {"base_job_template": {}}
    fake.answers["/csrf-token"] = 200, {"token": "abc"}
    fake.answers["/work_pools/gpu/workers/filter"] = 200, []
    fake.answers["/flow_runs/filter"] = lambda headers: (
        (200, []) if headers.get("Prefect-Csrf-Token") == "abc" else (403, {"detail": "Missing CSRF token."})
    )
    assert gpu_flows("queue").code == 0


def test_error_has_the_message_of_a_failing_server(fake: FakeServer) -> None:
    fake.answers["/work_pools/gpu"] = 500, {"exception_message": "Internal Server Error"}
    assert "Internal Server Error" in expect_error(gpu_flows("queue"), code=1)


# Prefect's settings

_URL, _PASSWORD = "PREFECT_API_URL", "PREFECT_API_AUTH_STRING"
_PROFILE = (
    'active = "{0}"\n[profiles.a]\n{1} = "http://profile-a/api"\n[profiles.b]\n{1} = "http://profile-b/api"'
)


@pytest.mark.parametrize(
    ("files", "environment"),
    [
        ({}, {}),
        ({}, {_URL: "http://env/api"}),
        ({"prefect/profiles.toml": _PROFILE.format("a", _URL)}, {}),
        ({"prefect/profiles.toml": _PROFILE.format("a", _URL)}, {"PREFECT_PROFILE": "b"}),
        ({"prefect/profiles.toml": _PROFILE.format("gone", _URL)}, {}),
        ({"prefect/profiles.toml": _PROFILE.format("a", _URL)}, {_URL: ""}),
        ({"prefect/profiles.toml": _PROFILE.format("a", _URL), "prefect.toml": '[api]\nkey = "k"'}, {}),
        ({"prefect.toml": '[api]\nurl = "http://toml/api"\nauth_string = "u:p"'}, {}),
        ({"pyproject.toml": '[tool.prefect.api]\nurl = "http://project/api"'}, {}),
        (
            {
                "prefect.toml": '[api]\nurl = "http://toml/api"',
                "pyproject.toml": '[tool.prefect.api]\nurl = "http://project/api"\nauth_string = "a:b"',
                "prefect/profiles.toml": _PROFILE.format("a", _URL),
            },
            {},
        ),
        ({".env": f"{_URL}=http://dotenv/api\n", "prefect.toml": '[api]\nurl = "http://toml/api"'}, {}),
        ({".env": f"{_URL}=http://dotenv/api\n{_PASSWORD}='x:y'"}, {_URL: "http://env/api"}),
        ({"elsewhere.toml": _PROFILE.format("b", _URL)}, {"PREFECT_PROFILES_PATH": "elsewhere.toml"}),
    ],
)
def test_settings_are_the_ones_that_prefect_finds(
    files: dict[str, str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.settings.models.root import Settings

    monkeypatch.delenv(_URL)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for path, text in files.items():
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text(text)
    api = Settings().api
    secret = {_PASSWORD: api.auth_string, "PREFECT_API_KEY": api.key}
    assert read_setting(_URL) == (api.url or "")
    assert {name: read_setting(name) for name in secret} == {
        name: value.get_secret_value() if value else "" for name, value in secret.items()
    }


def test_url_of_a_run_in_the_ui() -> None:
    assert build_run_url("42") == "http://127.0.0.1:9/runs/flow-run/42"


# submit: parameters


def test_parameter_sets_a_field_of_the_one_model_that_has_it() -> None:
    from prefect.utilities.callables import parameter_schema

    from gpu_flows.flows.train import train

    schema = json.loads(parameter_schema(train).model_dump_json())
    deployment = {"parameter_openapi_schema": schema, "parameters": {"config": {"size": 3}}}
    reached = {"config": {"size": 3, "model": "cnn", "epochs": 2}}
    assert build_parameters(deployment, {"model": "cnn", "config.epochs": 2}) == reached
    assert build_parameters(deployment, {"config": {"model": "cnn"}}) == {"config": {"model": "cnn"}}
    assert deployment["parameters"] == {"config": {"size": 3}}, "the deployment is not changed"
    with pytest.raises(Exception, match=r"no parameter 'modell'. It has: config"):
        build_parameters(deployment, {"modell": "cnn"})


def test_values_are_parsed_as_json_if_they_are_json() -> None:
    given = ["a=1", "b=true", "c=[1, 2]", "d=cnn", "e=x=y", 'f="1"', "g="]
    assert parse_assignments(given, "--param", parse_json_or_text) == {
        "a": 1,
        "b": True,
        "c": [1, 2],
        "d": "cnn",
        "e": "x=y",
        "f": "1",
        "g": "",
    }
