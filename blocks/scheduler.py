"""The GPU Scheduler block: which policy decides, with which options, editable while jobs run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Union

from prefect.blocks.core import Block
from pydantic import Field, HttpUrl, create_model

from gpu_flows.common.forms import Form
from gpu_flows.common.urls import BLOCK_LOGO_URL, documentation_url
from gpu_flows.schedulers.policy import Options, Policy, make_policy, policies
from gpu_flows.schedulers.protection import Protection

DEFAULT_POLICY = "fifo"


def _make_form(policy: type[Policy]) -> type[Options]:
    """Return the policy's options, preceded by its name: one tab of the block's form.

    The name selects the tab when a saved block is read. Without a distinct literal in each tab, Prefect
    silently loads the first one.
    """
    name: Any = Literal[policy.name]
    return create_model(
        policy.name,
        __base__=policy.Options,
        __doc__=policy.rule(),
        name=(
            name,
            Field(
                default=policy.name,
                title="Name",
                description="The policy of this tab.",
                json_schema_extra={"enum": [policy.name]},  # the UI shows a menu, so it cannot be mistyped
            ),
        ),
    )


FORMS = {name: _make_form(policy) for name, policy in policies().items()}

if TYPE_CHECKING:
    PolicyForm = Options
else:
    PolicyForm = Union[tuple(FORMS.values())]  # noqa: UP007


class GpuScheduler(Form, Block):
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
    _logo_url = HttpUrl(BLOCK_LOGO_URL)

    policy: PolicyForm = Field(default_factory=lambda: FORMS[DEFAULT_POLICY]())
    """The policy that decides, with its options."""

    protection: Protection = Field(default_factory=Protection)
    """Which jobs the policy may not stop, even if it preempts."""

    def use(self, name: str, **options: Any) -> GpuScheduler:
        """Return this block with another policy. Raises PolicyError for an unknown name or option."""
        make_policy(name, options)
        return GpuScheduler(policy=FORMS[name](**options), protection=self.protection)
