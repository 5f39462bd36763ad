"""Small but real torch training on data it makes itself.

Importing this package fills the registry and costs nothing: torch is only imported when something
is really trained (`gpu_flows.training.loop`).
"""

from gpu_flows.training import datasets as datasets  # registers them
from gpu_flows.training import models as models
from gpu_flows.training import registry as registry
from gpu_flows.training.registry import Recipe as Recipe
from gpu_flows.training.registry import register as register
from gpu_flows.training.registry import register_dataset as register_dataset

registry.load_plugins()
