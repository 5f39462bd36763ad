"""Small but real torch training on data it makes itself.

Importing this package fills the registry and costs nothing: torch is only imported when something
is really trained (`gpu_flows.training.loop`).
"""

from gpu_flows.training import models as models  # registers them
