"""The GPU Scheduler block: which policy decides, with which options, editable while jobs run.

The form is a menu of policies and one section of options per policy, not a choice between forms (a union).
Prefect's V1 UI leaves out values that equal their defaults, and a whole union if the chosen form is as it was
offered: nothing tells which one was chosen. The menu has no default in the schema, so every UI sends it. A
section or an option that is left out has its defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from prefect.blocks.core import Block
from pydantic import ConfigDict, Field, GetJsonSchemaHandler, HttpUrl, create_model, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from gpu_flows.blocks.base import PoolForm
from gpu_flows.common.forms import Form
from gpu_flows.common.urls import documentation_url
from gpu_flows.schedulers.policy import Policy, make_policy, policies
from gpu_flows.schedulers.policy_choice import read_choice, write_choice
from gpu_flows.schedulers.prediction.options import PredictionOptions
from gpu_flows.schedulers.protection import Protection

DEFAULT_POLICY = "fifo"


def _make_section(policy: type[Policy]) -> Any:
    """Return the field with the policy's options: a section of the form, which the policy's rule heads."""
    section = create_model(policy.name, __base__=policy.Options, __doc__=policy.rule())
    return (section, Field(default_factory=section, title=policy.name, description=policy.rule()))


class _Sections(Form):
    model_config = ConfigDict(title="Options of each policy")


SECTIONS = {name: _make_section(policy) for name, policy in policies().items()}

if TYPE_CHECKING:
    PolicyName = str
    PolicyOptions = Form
else:
    PolicyName = Literal[tuple(SECTIONS)]
    PolicyOptions = create_model("PolicyOptions", __base__=_Sections, **SECTIONS)


class GpuScheduler(PoolForm, Block):
    """
    The policy that decides which waiting job starts next, and on which devices. A saved change takes effect
    within a second. Nothing is restarted, and running jobs are not affected.

    Example:
        Switch a pool to Round Robin while its jobs run:
        ```python
        from gpu_flows.blocks import GpuScheduler

        scheduler = GpuScheduler.load("BLOCK_NAME")
        scheduler.use("round_robin", wait_for_turn=True).save("BLOCK_NAME", overwrite=True)
        ```
    """

    _block_type_name = "GPU Scheduler"
    _block_type_slug = "gpu-scheduler"
    _block_schema_capabilities = ["gpu-schedule"]
    _documentation_url = HttpUrl(documentation_url("blocks"))

    policy: PolicyName = Field(default=DEFAULT_POLICY)
    """The policy that decides. Its rule and its options are in the section of its name below."""

    protection: Protection = Field(default_factory=Protection)
    """Which jobs the policy may not stop, even if it preempts."""

    prediction: PredictionOptions = Field(default_factory=PredictionOptions)
    """What is predicted of jobs whose owners do not state it."""

    shadows: list[PolicyName] = Field(default_factory=list)
    """Policies that plan beside the chosen one without any effect, to be compared with it. Their options are
    in the sections of their names below."""

    options: PolicyOptions = Field(default_factory=PolicyOptions)
    """Only the sections of the chosen policy and of the shadows count. The others are kept for when their
    policy is chosen."""

    @model_validator(mode="before")
    @classmethod
    def _read_older_shape(cls, saved: Any) -> Any:
        if isinstance(saved, Mapping) and isinstance(saved.get("policy"), Mapping):
            return write_choice(saved, *read_choice(saved))
        return saved

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = super().__get_pydantic_json_schema__(core_schema, handler)
        fields = handler.resolve_ref_schema(schema)
        del fields["properties"]["policy"]["default"]  # so that the V1 UI always sends it
        fields["required"] = ["policy"]
        return schema

    def use(self, name: str, **options: Any) -> GpuScheduler:
        """Return this block with another policy. Raises PolicyError for an unknown name or option."""
        make_policy(name, options)
        saved = self.model_dump(include={"policy", "protection", "prediction", "shadows", "options"})
        return GpuScheduler(**write_choice(saved, name, options))
