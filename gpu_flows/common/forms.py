"""Models that people fill in as a form in the Prefect UI: policy options, job variables, blocks.

A field's docstring is its description, so a form reads in the code as it does on the screen:

    class FifoOptions(Options):
        skip: bool = False
        \"\"\"Let later jobs pass the head of the queue while it does not fit.\"\"\"
"""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict


def label(name: str, _: Any = None) -> str:
    """Return the label of a field that has no title: `may_span_nodes` becomes `May span nodes`."""
    text = name.replace("_", " ").replace("gpus", "GPUs").replace("gpu", "GPU")
    return text[:1].upper() + text[1:]


FORM = ConfigDict(use_attribute_docstrings=True, field_title_generator=label)
"""The configuration of such a model. Combine it with others as `ConfigDict(**FORM, ...)`."""
