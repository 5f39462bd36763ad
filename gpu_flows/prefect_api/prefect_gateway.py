"""The Prefect side of the dispatcher: claims runs, says how to launch them, reports their ends."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import httpx
from prefect.client.schemas.objects import FlowRun

from gpu_flows.blocks import GpuCluster
from gpu_flows.checkpoints import contract
from gpu_flows.dispatch.gateway import Unreachable
from gpu_flows.prefect_api.container_request import ENTRY, command_line, container_of, environment
from gpu_flows.prefect_api.due_runs import Intake
from gpu_flows.prefect_api.job_variables import GpuJobConfiguration
from gpu_flows.prefect_api.run_states import RunStates, could_not_launch, refused
from gpu_flows.prefect_private import load_directly
from gpu_flows.runtimes.base import Attempt, End, Intent, Launch, LaunchError, Mount, Refused
from gpu_flows.runtimes.docker.rules import resolve_mount
from gpu_flows.schedulers.model import Job, Reason, Start

ENGINE = (sys.executable, "-m", "gpu_flows.runtimes.entry")


class PrefectGateway:
    def __init__(
        self,
        pool: str,
        intake: Intake,
        states: RunStates,
        identity: Callable[[], tuple[str, UUID | None]],
        attempts_of: Callable[[str], int],
        checkpoints: Callable[[str, str], Path],
    ) -> None:
        self._pool, self._intake, self._states = pool, intake, states
        self._identity = identity  # the worker's name and its id on the server
        self._attempts_of = attempts_of
        self._checkpoints = checkpoints  # makes a job's directory, under a root if one is given
        self._claims: dict[str, UUID] = {}  # of runs that are being launched
        self.cluster = GpuCluster()  # as the pool's block says

    async def claim(self, start: Start, policy: str, planned: float) -> Launch | None:
        run = self._intake.runs.get(start.job.id)
        claim_id = await self._states.claim(run.id) if run else None
        if run is None or claim_id is None:
            return None
        run_id = run.id
        self._claims[start.job.id] = claim_id
        launch = Launch(
            job=start.job,
            attempt=self._attempts_of(start.job.id) + 1,
            pool=self._pool,
            policy=policy,
            planned=planned,
            devices=start.devices,
            command=(),
        )
        try:
            configuration = await self._intake.configuration(run, *self._identity())
            launch = replace(launch, directory=configuration.working_dir, grace_s=configuration.grace_seconds)
            make = self._in_a_container if configuration.image else self._as_a_process
            return await make(launch, run, configuration)
        except httpx.HTTPError as error:
            if isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500:
                raise LaunchError(f"its job variables cannot be resolved ({error})") from error
            await self._states.unclaim(run_id, "the server was away while it was being launched")
            raise Unreachable(str(error)) from error  # claimed, but not to be launched now: back in line
        except LaunchError:
            raise
        except Exception as error:
            raise LaunchError(f"its job variables cannot be used ({error})") from error

    async def _as_a_process(self, launch: Launch, run: FlowRun, configuration: GpuJobConfiguration) -> Launch:
        if self._intake.is_form(run):
            raise Refused("it names no image; say which container to run")
        if self.cluster.hosts and launch.devices:
            raise Refused(f"its devices are on Docker host {launch.node!r}, so it needs an image to run in")
        own = [] if configuration.is_using_a_runner else shlex.split(configuration.command or "")
        at_hand = await self._intake.code_at_hand(run)
        directory, shortcut = launch.directory, {}
        if at_hand and not own and not directory:
            directory, shortcut = at_hand[0], load_directly(at_hand[1])
        env = {key: value for key, value in configuration.env.items() if value is not None}
        checkpoints = self._directory(launch.job.id, configuration.checkpoint_root)
        return replace(
            launch,
            command=tuple(own) or ENGINE,
            env={**shortcut, **env, contract.DIRECTORY: checkpoints},
            directory=directory,
            handles_intents=not own,
            checkpoints=checkpoints,
        )

    async def _in_a_container(
        self, launch: Launch, run: FlowRun, configuration: GpuJobConfiguration
    ) -> Launch:
        """With a command any image will do, and the worker speaks for the job. Without one it is the run's
        flow that runs, unless the flow was only a form."""
        if self.cluster.runtime != "docker":
            raise Refused(
                f"it asks for the image {configuration.image!r}, and this pool runs jobs as processes. Leave "
                "the image empty, or choose the runtime 'docker' in the pool's cluster block"
            )
        own = "" if configuration.is_using_a_runner else configuration.command or ""
        speaks = not own and not self._intake.is_form(run)
        command = ENTRY if speaks else command_line(own, configuration.launcher, len(launch.devices))
        env = environment(configuration.env, speaks)
        if speaks and (module := await self._intake.module_at_hand(run)):
            env |= load_directly(module)
        secrets = {name: env[name] for name in self._intake.secret_names(run) if name in env}
        container = container_of(
            configuration.model_dump(),
            {name: value for name, value in env.items() if not name.startswith("PREFECT_")},
            command,
            *self._intake.container_rules,
            secrets=secrets,
            login=await self._intake.login(configuration.registry_credentials),
        )
        root = configuration.checkpoint_root
        if root:  # one that all hosts see, as the pool's rules have it
            rules, files_are_here = self._intake.container_rules
            root = resolve_mount(Mount(root, "/checkpoints"), rules.mount_roots, files_are_here).source
            container = replace(container, shares_checkpoints=True)
        return replace(
            launch,
            command=command,
            env=env,
            handles_intents=speaks,
            container=container,
            checkpoints=self._directory(launch.job.id, root),
        )

    def _directory(self, job_id: str, root: str) -> str:
        try:
            return str(self._checkpoints(job_id, root))
        except OSError as error:
            raise LaunchError(
                f"its checkpoint directory cannot be made ({error}). "
                "Check that checkpoint_root is there, and that there is room on the disk."
            ) from None

    async def launched(self, attempt: Attempt) -> bool:
        run_id = UUID(attempt.launch.job.id)
        await self._states.set_infrastructure(run_id, attempt.identifier)
        claim_id = self._claims.pop(attempt.launch.job.id, None)
        if claim_id is not None and not await self._states.covered_nothing(run_id, claim_id):
            return False
        if not attempt.launch.handles_intents:
            await self._states.show_running(run_id)
        return True

    async def ended(self, launch: Launch, end: End, intent: Intent | None, why: str = "") -> tuple[str, str]:
        run_id, claim_id = UUID(launch.job.id), self._claims.pop(launch.job.id, None)
        if claim_id is not None:
            await self._states.covered_nothing(run_id, claim_id)
        return await self._states.finish(run_id, end, intent, launch.handles_intents, why)

    async def cancelled(self, job: Job) -> None:
        await self._states.close_abandoned(UUID(job.id))

    async def never_launched(self, job: Job, why: str) -> None:
        claim_id = self._claims.pop(job.id, None)
        if claim_id is None or await self._states.covered_nothing(UUID(job.id), claim_id):
            await self._states.unclaim(UUID(job.id), why)

    async def failed_to_launch(self, job: Job, why: str) -> None:
        await self._states.fail(UUID(job.id), could_not_launch(why))

    async def refuse(self, job: Job, reason: Reason) -> None:
        await self._states.fail(UUID(job.id), refused(reason))

    async def refuse_run(self, run: FlowRun, reason: Reason) -> None:
        """A run that could not even be made a job of."""
        await self._states.fail(run.id, refused(reason))
