"""Jobs that can be stopped and resumed: the contract between worker and job, and help for the job's side.

`contract` holds what both sides agree on. The rest runs inside the job: `resumable_loop` makes a training
loop resumable, `store` keeps the checkpoint files. When to preempt a job and how to stop it belongs to
`dispatch` and `runtimes`.

Importing this package imports no torch, because the worker imports it for the contract.
"""

from gpu_flows.checkpoints.resumable_loop import CheckpointError as CheckpointError
from gpu_flows.checkpoints.resumable_loop import Resumable as Resumable
from gpu_flows.checkpoints.resumable_loop import resumable as resumable
