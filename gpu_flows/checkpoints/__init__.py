"""Jobs that can leave a device and come back: what worker and job agree on, and help for the job's side.

Importing this imports no torch: the worker reads the contract too.
"""

from gpu_flows.checkpoints.resuming import CheckpointError as CheckpointError
from gpu_flows.checkpoints.resuming import Resumable as Resumable
from gpu_flows.checkpoints.resuming import resumable as resumable
