"""Starts one container exactly once, over a connection that may lose any answer.

The steps are create, copy files, check, start. The container's name identifies the attempt, so a repeated
create fails because the name is taken, and the existing container is used. Nothing runs before the start,
and a repeated start has no effect. So each step can be repeated until its outcome is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from docker import APIClient
from docker.errors import APIError, ImageNotFound, NotFound

from gpu_flows.blocks.docker import ContainerRules
from gpu_flows.runtimes.base import Container, Launch, LaunchCancelled, LaunchError, Mount, NodeUnreachable
from gpu_flows.runtimes.docker import container_spec
from gpu_flows.runtimes.docker.container_spec import container_name
from gpu_flows.runtimes.docker.host import Host, HostUnreachable, retry_unreachable
from gpu_flows.runtimes.docker.images import pull
from gpu_flows.runtimes.docker.mounts import OpenMounts
from gpu_flows.runtimes.docker.rules import check_request
from gpu_flows.runtimes.docker.tar import make_tar, read_single_file


class StartUnconfirmed(Exception):
    """The host stopped answering during the start, so it is unknown whether the container runs."""


@dataclass(frozen=True, slots=True)
class ContainerStart:
    """What is needed to start the container of one launch.

    `prepare` does what takes long, such as copying checkpoints. `mark_started` is called when all is ready:
    from then on the container may run. `report` gets messages for the job's log.
    """

    host: Host
    launch: Launch
    installation: str
    rules: ContainerRules
    still_wanted: Callable[[], bool]
    prepare: Callable[[], None]
    mark_started: Callable[[], None]
    report: Callable[[str], None]
    opened: OpenMounts
    extra_mounts: Sequence[Mount] = ()

    def run(self) -> None:
        """Start the container, or find that it was started before. Blocks.

        Raises LaunchError, NodeUnreachable or LaunchCancelled if the container does not run, and
        StartUnconfirmed if that is unknown.
        """
        created = None
        self._check_rules()
        try:
            if self._container.pull == "always":
                self._pull()
            created = retry_unreachable(self._create_or_find)
            if created.has_run:
                return
            _copy_files(self.host, self.launch)
            self._check_wanted()
            self.prepare()
            self._check_wanted()  # the lease may have been lost meanwhile
            self.mark_started()
            _start(self.host, self.launch)
        except HostUnreachable as error:
            raise NodeUnreachable(f"host {self.host.name} does not answer ({error})") from error
        except APIError as error:
            _remove_unstarted(self.host, created)
            raise LaunchError(f"Docker on {self.host.name} reports: {error.explanation}") from error
        except LaunchError:
            _remove_unstarted(self.host, created)
            raise

    @property
    def _container(self) -> Container:
        assert self.launch.container is not None
        return self.launch.container

    def _check_wanted(self) -> None:
        if not self.still_wanted():
            raise LaunchCancelled("the job was cancelled, or the lease was lost, before it started")

    def _check_rules(self) -> None:
        launch, files_are_here = self.launch, self.host.settings.is_here
        check_request(
            self._container, launch.env, launch.directory, launch.command, self.rules, files_are_here
        )

    def _pull(self) -> None:
        pull(self.host, self._container.image, self._container.login, self.still_wanted, self.report)

    def _create_or_find(self) -> _Created:
        try:
            return _Created(self.host.call_blocking(self._create), has_run=False)
        except APIError as error:
            if error.status_code != 409:
                raise
        # The name is taken: by an earlier try, whose answer was lost, or by a container that is not ours.
        name = container_name(self.launch)
        try:
            found = self.host.call_blocking(lambda api: api.inspect_container(name))
        except NotFound:
            raise HostUnreachable(f"container {name} is still being created") from None
        labels = found["Config"].get("Labels") or {}
        if not container_spec.is_same_attempt(self.launch, self.installation, labels):
            raise LaunchError(f"host {self.host.name} has a container {name} that is not ours; remove it")
        created = _Created(found["Id"], has_started(found))
        if not created.has_run:
            self.opened.check_created(found)
        return created

    def _create(self, api: APIClient) -> str:
        arguments = container_spec.create_arguments(
            api, self.launch, self.installation, self.host, self.rules, self.opened, self.extra_mounts
        )
        try:
            return str(api.create_container(**arguments)["Id"])
        except ImageNotFound:
            if self._container.pull == "never":
                raise LaunchError(
                    f"host {self.host.name} has no image {self._container.image!r}, and pull is 'never'"
                ) from None
        self._pull()
        return str(api.create_container(**arguments)["Id"])


@dataclass(frozen=True, slots=True)
class _Created:
    """A container that exists."""

    id: str
    has_run: bool


def _copy_files(host: Host, launch: Launch) -> None:
    """Copy a flow's entry and the job's secrets into a container that has not started."""
    files = container_spec.container_files(launch)
    if not files:
        return
    secrets = launch.container.secrets if launch.container else {}
    owner = _find_owner(host, launch) if secrets else (0, 0)
    tar = make_tar(files, container_spec.FOLDERS, {path: owner for path in files if "/secrets/" in path})
    host.retry_blocking(lambda api: api.put_archive(container_name(launch), "/", tar))


def _find_owner(host: Host, launch: Launch) -> tuple[int, int]:
    """Return the user and group id that the image runs as."""
    inspected = host.retry_blocking(lambda api: api.inspect_container(container_name(launch)))
    user, _, group = str(inspected["Config"].get("User") or "0").partition(":")
    if user.isdigit():
        return int(user), int(group) if group.isdigit() else 0
    return container_spec.find_user(
        user, host.retry_blocking(lambda api: read_file(api, launch, "/etc/passwd"))
    )


def _start(host: Host, launch: Launch) -> None:
    name, tries = container_name(launch), 0

    def start(api: APIClient) -> None:
        # After a lost answer the container may have run and ended, and a start would run it a second time.
        nonlocal tries
        tries += 1
        if tries == 1 or not has_started(api.inspect_container(name)):
            api.start(name)

    try:
        host.retry_blocking(start)
    except HostUnreachable as error:
        raise StartUnconfirmed(str(error)) from error
    except APIError as error:
        why = str(error.explanation)
        if "/proc/" in why and "mount local volume" in why:
            why += ". The engine and the worker have different mounts; mount one of the mount roots itself"
        raise LaunchError(f"Docker on {host.name} cannot start it: {why}") from error


def _remove_unstarted(host: Host, created: _Created | None) -> None:
    """Remove the container unless it runs. If that fails, adoption removes the container later."""
    if created is not None and not created.has_run:
        with suppress(HostUnreachable, APIError):
            host.retry_blocking(lambda api: api.remove_container(created.id, v=True))


def has_started(inspected: Mapping[str, Any]) -> bool:
    """Whether the container runs or ever ran."""
    return not str(inspected["State"].get("StartedAt") or "0001").startswith("0001")


def read_file(api: APIClient, launch: Launch, path: str, most: int = 2**20) -> bytes:
    """Return the content of a small file in the container; nothing if it is larger or not a plain file."""
    pieces, _ = api.get_archive(container_name(launch), path)
    tar = bytearray()
    for piece in pieces:
        tar += piece
        if len(tar) > most + 2**16:
            return b""
    return read_single_file(bytes(tar))
