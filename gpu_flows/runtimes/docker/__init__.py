"""The Docker runtime: jobs in containers on one or many Docker hosts, from any image.

`runtime.DockerRuntime` is the runtime. In the order of a launch: `hosts` knows the configured hosts, and
`host` calls one of them (over `ssh` if need be) while `host_health` checks that it answers; `rules` decides
what a job may ask for; `container_spec` translates a launch into Docker's arguments, with the command line
from `command_launchers`; `container_start` pulls the image (`images`), creates and starts the container;
`checkpoints` moves a job's checkpoints to it; `container_follower` reads what it prints until it ends, and
`output` sends that to the run's logs. `adoption` finds the containers of an earlier worker and removes
those that are no longer needed.

Not here: what users configure (`blocks/docker.py`) and how a run's job variables become a request
(`prefect_api/container_request.py`).
"""
