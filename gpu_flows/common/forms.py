"""Models that people fill in as a form in the Prefect UI: policy options, job variables, blocks.

A field's docstring is its description, so a form reads in the code as it does on the screen:

    class FifoOptions(Options):
        skip: bool = False
        \"\"\"Let later jobs pass the head of the queue while it does not fit.\"\"\"
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from gpu_flows.common.suggestions import did_you_mean


def label(name: str, _: Any = None) -> str:
    """Return the label of a field that has no title: `may_span_nodes` becomes `May span nodes`."""
    text = name.replace("_", " ").replace("gpus", "GPUs").replace("gpu", "GPU")
    return text[:1].upper() + text[1:]


class Form(BaseModel):
    """The base of such a model."""

    model_config = ConfigDict(use_attribute_docstrings=True, field_title_generator=label)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Put each description on one line: Prefect's V1 UI shows a line break as a new paragraph."""
        schema = handler(core_schema)
        for field in handler.resolve_ref_schema(schema).get("properties", {}).values():
            if "description" in field:
                field["description"] = " ".join(field["description"].split())
        return schema


class StrictForm(Form):
    """A form that refuses fields it does not have. The others ignore them."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_fields(cls, values: Any) -> Any:
        for name in values if isinstance(values, dict) else ():
            if name not in cls.model_fields:
                hint = did_you_mean(name, cls.model_fields)
                raise ValueError(f"There is no field {name!r}. {hint}".rstrip())
        return values
