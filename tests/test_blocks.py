"""The blocks as the Prefect UI shows them: descriptions, documentation and logos."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.blocks.core import Block
from prefect.client.orchestration import get_client
from prefect.testing.utilities import prefect_test_harness
from pydantic import BaseModel

from gpu_flows.blocks import GpuCluster, GpuScheduler, Warehouse
from gpu_flows.common.urls import LOGO, PROJECT_URL
from gpu_flows.deployments.workload import Workload
from gpu_flows.prefect_api.job_variables import GpuJobVariables
from gpu_flows.training.config import TrainConfig
from gpu_flows.worker.gpu_worker import GpuWorker

BLOCKS: list[type[Block]] = [GpuScheduler, GpuCluster, Warehouse]
ROOT = Path(__file__).parents[1]


def properties(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The fields of the block and of every form inside it."""
    yield from schema.get("properties", {}).items()
    for definition in (schema.get("definitions") or schema.get("$defs") or {}).values():
        yield from definition.get("properties", {}).items()


@pytest.mark.parametrize("block", BLOCKS)
def test_every_field_has_a_description_that_markdown_keeps(block: type[Block]) -> None:
    fields = list(properties(block.model_json_schema()))
    assert fields
    for name, field in fields:
        description = field.get("description", "")
        assert description.endswith("."), name
        assert "*" not in description, name
        assert "''" not in description, name


@pytest.mark.parametrize("described", [*BLOCKS, GpuWorker])
def test_the_documentation_is_a_page_of_this_project(described: Any) -> None:
    base = f"{PROJECT_URL}/blob/main/"
    url = str(described._documentation_url)
    assert url.startswith(base)
    assert (ROOT / url.removeprefix(base)).is_file()


def test_the_package_names_the_same_project() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert all(url.startswith(PROJECT_URL) for url in urls.values())


def test_the_logo_of_the_worker_needs_no_network() -> None:
    assert GpuWorker.get_logo_url() == LOGO
    assert LOGO.startswith("data:image/svg+xml")


@pytest.mark.slow
def test_a_server_returns_what_a_block_declares() -> None:
    with prefect_test_harness(server_startup_timeout=120), get_client(sync_client=True) as client:
        for block in BLOCKS:
            block.register_type_and_schema()
            stored = client.read_block_type_by_slug(block.get_block_type_slug())
            assert stored.documentation_url == block._documentation_url
            assert stored.logo_url == block._logo_url
            assert stored.description == block.get_description()
            assert stored.code_example == block.get_code_example()
            block().save("mine")
            fields = set(block.model_fields)
            assert block.load("mine").model_dump(include=fields) == block().model_dump(include=fields)


FORMS = [GpuScheduler, GpuCluster, Warehouse, GpuJobVariables, TrainConfig, Workload]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_descriptions_are_one_line(form: type[BaseModel]) -> None:
    """Prefect's V1 UI shows a line break in a description as a new paragraph."""
    found = [field.get("description", "") for _, field in properties(form.model_json_schema())]
    assert max(len(text) for text in found) > 40, "there are descriptions to look at"
    assert not [text for text in found if "\n" in text or "  " in text]
