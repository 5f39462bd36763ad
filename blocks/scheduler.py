"""The GPU Scheduler block: which policy decides, with which options, editable while jobs run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Union

from prefect.blocks.core import Block
from pydantic import Field, create_model

from gpu_flows.schedulers.policy import Options, Policy, make_policy, policies
from gpu_flows.schedulers.protection import Protection

DEFAULT_POLICY = "fifo"


def _form_of(policy: type[Policy]) -> type[Options]:
    """The policy's options with its name in front: one tab of the block's form.

    The name is what tells the tabs apart when a saved block is read back: without a distinct
    literal in each, Prefect silently loads the first one.
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
                description="Tells which policy was chosen.",
                json_schema_extra={"enum": [policy.name]},  # drawn as a menu, so nobody mistypes it
            ),
        ),
    )


FORMS = {name: _form_of(policy) for name, policy in policies().items()}

if TYPE_CHECKING:
    PolicyForm = Options
else:
    PolicyForm = Union[tuple(FORMS.values())]  # noqa: UP007


class GpuScheduler(Block):
    """
    Decides which waiting job goes next and on which devices. Saving a change is enough: the pool
    follows within a second, nothing is restarted and nothing that runs is touched.

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

    policy: PolicyForm = Field(
        default_factory=lambda: FORMS[DEFAULT_POLICY](),
        title="Policy",
        description="The policy that decides, with its options.",
    )
    protection: Protection = Field(
        default_factory=Protection,
        title="Protection",
        description="Whom the policy may not stop, even if it preempts.",
    )

    def use(self, name: str, **options: Any) -> GpuScheduler:
        """This block with another policy. Raises PolicyError for a name or option there is not."""
        make_policy(name, options)
        return GpuScheduler(policy=FORMS[name](**options), protection=self.protection)
