"""Small but real torch training on generated data.

What belongs here: the models and datasets that ship with gpu-flows (`models`, `datasets`, `networks`), the
registry that users extend (`registry`), and the loop that trains them in one process (`loop`) or several
(`launch`). The Prefect flow around it belongs to `flows`, saving and restoring to `checkpoints`.

Importing this package fills the registry and imports no torch; `loop`, `launch` and `hardware` do.
"""

from gpu_flows.training import datasets as datasets  # registers the datasets
from gpu_flows.training import models as models  # registers the models
from gpu_flows.training import registry as registry
from gpu_flows.training.registry import Recipe as Recipe
from gpu_flows.training.registry import register as register
from gpu_flows.training.registry import register_dataset as register_dataset

registry.load_plugins()
