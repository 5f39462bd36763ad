"""The blocks as the Prefect UI shows them: descriptions, documentation and logos."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from prefect.blocks.core import Block
from prefect.client.orchestration import get_client
from prefect.testing.utilities import prefect_test_harness
from pydantic import BaseModel, ValidationError

from gpu_flows.blocks import DockerHost, GpuCluster, GpuScheduler, Warehouse
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


def as_text(markdown: str) -> str:
    """What a reader of the rendered text sees."""
    inline = MarkdownIt().parseInline(markdown)[0].children or []
    return "".join(token.content for token in inline)


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
def test_every_description_is_one_line_that_markdown_keeps(form: type[BaseModel]) -> None:
    """The UIs render descriptions as Markdown, and V1 shows a line break as a new paragraph."""
    schema = form.model_json_schema()
    definitions = schema.get("definitions") or schema.get("$defs") or {}
    fields = list(properties(schema))
    assert fields
    for name, field in fields:
        section = definitions.get(field.get("$ref", "").rpartition("/")[2], {})
        description = field.get("description") or section.get("description", "")
        assert description.endswith("."), name
        assert as_text(description) == description, name
        assert description == " ".join(description.split()), name


def test_declared_nodes_and_hosts_have_racks_and_links() -> None:
    cluster = GpuCluster.model_validate({"nodes": [{"gpus": 4, "rack": "row-1", "links": "nvlink:2"}]})
    [node] = cluster.declared_nodes()
    host = DockerHost.of("gpu1=ssh://gpu1,gpus=4,rack=row-2,links=nvlink:2").declared_node()
    assert (node.rack, host.rack) == ("row-1", "row-2")
    assert [group.devices for group in node.links] == [(0, 1), (2, 3)]
    assert host.links == node.links
    assert [device.id for device in host.devices][:2] == ["SIM-gpu1-0", "SIM-gpu1-1"]
    for form in ({"nodes": [{"gpus": 4, "links": "nvlink:8"}]}, {"nodes": [{"links": "cable:2"}]}):
        with pytest.raises(ValidationError, match="nvlink:2, numa:4"):
            GpuCluster.model_validate(form)


@pytest.mark.parametrize("block", BLOCKS)
def test_the_description_of_a_block_is_one_line(block: type[Block]) -> None:
    description = block.get_description() or ""
    assert len(description) > 100
    assert description == " ".join(description.split())


def test_the_check_of_descriptions_sees_what_markdown_swallows() -> None:
    assert as_text("'*A100*' or '*1080*'") != "'*A100*' or '*1080*'"
    assert as_text("a `code`, an [a](b) and <b>") != "a `code`, an [a](b) and <b>"
