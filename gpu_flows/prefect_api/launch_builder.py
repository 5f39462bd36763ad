"""Builds the launch of a claimed run: resolves its job variables into a process or a container."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound

from gpu_flows.checkpoints import contract
from gpu_flows.prefect_api.container_request import (
    FLOW_COMMAND,
    build_container,
    container_environment,
    files_are_local,
    find_secret_names,
    split_container_command,
)
from gpu_flows.prefect_api.due_jobs import DueJobs
from gpu_flows.prefect_api.job_builder import is_container_form, merge_overrides, merge_variables
from gpu_flows.prefect_api.job_variables import GpuJobConfiguration
from gpu_flows.prefect_api.peers import add_peers
from gpu_flows.prefect_private import load_directly
from gpu_flows.runtimes.base import Launch, LaunchError, Login, Mount, Refused
from gpu_flows.runtimes.docker.rules import resolve_mount
from gpu_flows.schedulers.model import Start

CREDENTIALS = "docker-registry-credentials"  # the slug of Prefect's own block type
RUN_FLOW = (sys.executable, "-m", "gpu_flows.runtimes.entry")


class LaunchBuilder:
    def __init__(
        self,
        client: PrefectClient,
        due_jobs: DueJobs,
        identity: Callable[[], tuple[str, UUID | None]],
        count_attempts: Callable[[str], int],
        make_checkpoints: Callable[[str, str], Path],
    ) -> None:
        self._client, self._due_jobs = client, due_jobs
        self._identity = identity  # returns the worker's name and its id on the server
        self._count_attempts = count_attempts  # returns how many attempts a job has had
        self._make_checkpoints = make_checkpoints  # makes a job's directory, under a root if one is given

    async def build(self, run: FlowRun, start: Start, policy: str, planned: float) -> Launch:
        """Return the launch of a claimed run. Raises LaunchError, or HTTPError if the server fails."""
        configuration = await self._resolve(run)
        launch = Launch(
            job=start.job,
            attempt=self._count_attempts(start.job.id) + 1,
            pool=self._due_jobs.pool.name,
            policy=policy,
            planned=planned,
            devices=start.devices,
            command=(),
            directory=configuration.working_dir,
            grace_s=configuration.grace_seconds,
        )
        build = self._build_container if configuration.image else self._build_process
        launch = await build(launch, run, configuration)
        return replace(launch, env=add_peers(launch, self._due_jobs.cluster))

    async def _resolve(self, run: FlowRun) -> GpuJobConfiguration:
        """Resolve the job variables of pool, deployment and run, with all references to blocks."""
        deployment = await self._due_jobs.deployments.read(run)
        configuration: GpuJobConfiguration = await GpuJobConfiguration.from_template_and_values(
            base_job_template=self._due_jobs.pool.base_job_template,
            values=merge_overrides(deployment, run),
            client=self._client,
        )
        worker_name, worker_id = self._identity()
        configuration.prepare_for_flow_run(
            run,
            deployment=deployment,
            flow=await self._due_jobs.deployments.read_flow(run),
            work_pool=self._due_jobs.pool,
            worker_name=worker_name,
            worker_id=worker_id,
        )
        return configuration

    async def _build_process(
        self, launch: Launch, run: FlowRun, configuration: GpuJobConfiguration
    ) -> Launch:
        if self._is_form(run):
            raise Refused("it names no container image; set container_image")
        if self._due_jobs.cluster.hosts and launch.devices:
            raise Refused(f"its devices are on Docker host {launch.node!r}, so it needs an image to run in")
        command = shlex.split(_own_command(configuration))
        directory, shortcut = launch.directory, {}
        code_directory, entrypoint = await self._find_code(run)
        if code_directory and Path(code_directory).is_dir() and not directory:
            directory, shortcut = code_directory, {} if command else load_directly(entrypoint)
        env = {name: value for name, value in configuration.env.items() if value is not None}
        checkpoints = self._checkpoint_directory(launch.job.id, configuration.checkpoint_root)
        return replace(
            launch,
            command=tuple(command) or RUN_FLOW,
            env={**shortcut, **env, contract.DIRECTORY: checkpoints},
            directory=directory,
            handles_intents=not command,
            checkpoints=checkpoints,
        )

    async def _build_container(
        self, launch: Launch, run: FlowRun, configuration: GpuJobConfiguration
    ) -> Launch:
        """With a command any image works, and the worker reports for the job. Without a command the run's
        flow runs in the container and reports itself, unless it is the `container` form."""
        cluster = self._due_jobs.cluster
        if cluster.runtime != "docker":
            raise Refused(
                f"it asks for the image {configuration.image!r}, and this pool runs jobs as processes. Leave "
                "the image empty, or choose the runtime 'docker' in the pool's cluster block"
            )
        own = _own_command(configuration)
        reports_itself = not own and not self._is_form(run)
        env = container_environment(configuration.env, reports_itself)
        if reports_itself:
            command: tuple[str, ...] = FLOW_COMMAND
            env |= await self._load_installed_module(run)
        else:
            command = split_container_command(own, configuration.launcher, len(launch.devices))
        container = build_container(
            configuration.model_dump(),
            {name: value for name, value in env.items() if not name.startswith("PREFECT_")},
            command,
            cluster.containers,
            files_are_local(cluster),
            secrets={name: env[name] for name in self._secret_names(run) if name in env},
            login=await self._read_login(configuration.registry_credentials),
        )
        root = configuration.checkpoint_root
        if root:  # a directory that all hosts share, if the pool's rules allow to mount it
            mount = Mount(root, "/checkpoints")
            root = resolve_mount(mount, cluster.containers.mount_roots, files_are_local(cluster)).source
            container = replace(container, shares_checkpoints=True)
        return replace(
            launch,
            command=command,
            env=env,
            handles_intents=reports_itself,
            container=container,
            checkpoints=self._checkpoint_directory(launch.job.id, root),
        )

    def _is_form(self, run: FlowRun) -> bool:
        return is_container_form(self._due_jobs.deployments.get(run))

    def _secret_names(self, run: FlowRun) -> set[str]:
        deployment = self._due_jobs.deployments.get(run)
        return find_secret_names(merge_variables(self._due_jobs.pool, deployment, run).get("env") or {})

    async def _load_installed_module(self, run: FlowRun) -> dict[str, str]:
        """Return the environment that loads a flow of an installed module by its name. The directory in
        which `prefect deploy` was called does not exist in an image."""
        directory, entrypoint = await self._find_code(run)
        return load_directly(entrypoint) if directory and ".py:" not in entrypoint else {}

    async def _find_code(self, run: FlowRun) -> tuple[str, str]:
        """Return directory and entrypoint of the run's code, if the only pull step of its deployment is to
        change to a directory. Otherwise both are empty."""
        deployment = await self._due_jobs.deployments.read(run)
        if deployment is None or not deployment.entrypoint or len(deployment.pull_steps or []) != 1:
            return "", ""
        (step,) = deployment.pull_steps or []
        settings = step.get("prefect.deployments.steps.set_working_directory")
        directory = settings.get("directory") if isinstance(settings, dict) and len(step) == 1 else None
        return (directory, deployment.entrypoint) if isinstance(directory, str) else ("", "")

    async def _read_login(self, block: str) -> Login | None:
        """Read a Docker Registry Credentials block. Raises LaunchError if there is none of that name."""
        if not block:
            return None
        try:
            document = await self._client.read_block_document_by_name(
                block, CREDENTIALS, include_secrets=True
            )
        except ObjectNotFound:
            raise LaunchError(f"there is no Docker Registry Credentials block {block!r}") from None
        fields = ("username", "password", "registry_url")
        return Login(*(str(document.data.get(field, "")) for field in fields))

    def _checkpoint_directory(self, job_id: str, root: str) -> str:
        try:
            return str(self._make_checkpoints(job_id, root))
        except OSError as error:
            raise LaunchError(
                f"its checkpoint directory cannot be made ({error}). "
                "Check that checkpoint_root exists, and that the disk has free space."
            ) from None


def _own_command(configuration: GpuJobConfiguration) -> str:
    """Return the command that the job variables give; empty if Prefect would run the flow."""
    return "" if configuration.is_using_a_runner else configuration.command or ""
