"""What the blocks have in common."""

from __future__ import annotations

from prefect.blocks.core import Block

from gpu_flows.common.forms import Form


class PoolForm(Form):
    """The base of a block that configures a pool. It is no block itself, or else the UI would offer it."""

    @classmethod
    def get_description(cls) -> str | None:
        """Return the description on one line: the V1 UI shows a line break as a new paragraph."""
        assert issubclass(cls, Block)
        return " ".join((super(Form, cls).get_description() or "").split())
