"""Makes a job's checkpoints available in its container, also when the job moves to another host.

On a host with the worker's files, and under a shared root, the job's checkpoint directory is mounted: all
attempts see the same one. Otherwise the directory is inside the container. The container of a preempted
attempt is then kept until the next attempt runs, and the checkpoints are copied from the old container to
the new one, in pieces, through the worker's memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from docker import APIClient
from docker.errors import NotFound

from gpu_flows.checkpoints import contract
from gpu_flows.common.files import write_atomically
from gpu_flows.runtimes.attempt_store import AttemptStore
from gpu_flows.runtimes.base import Launch, Mount, NodeUnreachable, Refused, attempt_id
from gpu_flows.runtimes.docker.container_spec import CHECKPOINTS, container_name
from gpu_flows.runtimes.docker.container_start import read_file
from gpu_flows.runtimes.docker.host import Host, HostUnreachable
from gpu_flows.runtimes.docker.host_health import MonitoredHost
from gpu_flows.runtimes.docker.tar import make_tar

_PARENT = CHECKPOINTS.rpartition("/")[0]


def is_mounted(launch: Launch, host: Host) -> bool:
    """Whether the container sees the same checkpoint directory as the worker."""
    shared = launch.container is not None and launch.container.shares_checkpoints
    return bool(launch.checkpoints) and (shared or host.settings.is_here)


def checkpoint_mounts(launch: Launch, host: Host) -> list[Mount]:
    """Return the mount of the checkpoint directory; empty if it is not mounted on this host."""
    if not is_mounted(launch, host):
        return []
    _make_writable(launch)
    return [Mount(launch.checkpoints, CHECKPOINTS)]


def _make_writable(launch: Launch) -> None:
    """Let any user of an image write to the directory. Its parent is open to the worker's user only.

    Raises Refused if the directory is now a symbolic link: a job could have put one there to get at
    other directories.
    """
    try:
        directory = os.open(launch.checkpoints, os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise Refused(f"its checkpoint directory cannot be used ({error.strerror})") from None
    with suppress(OSError):
        os.fchmod(directory, 0o777)
    os.close(directory)


class CheckpointTransfer:
    """Copies checkpoints between containers. `will_resume` states whether a job waits to run again."""

    def __init__(self, attempt_store: AttemptStore, will_resume: Callable[[str], bool]) -> None:
        self._attempt_store, self._will_resume = attempt_store, will_resume

    def needs_container(self, launch: Launch) -> bool:
        """Whether a later attempt will copy the checkpoints out of this attempt's container."""
        later = range(launch.attempt + 1, self._attempt_store.last_attempt(launch.job.id) + 1)
        has_run_since = any(
            self._attempt_store.has_started(attempt_id(launch.job.id, number)) for number in later
        )
        return self._will_resume(launch.job.id) and not has_run_since

    def prepare(
        self,
        launch: Launch,
        host: Host,
        find_host: Callable[[str], MonitoredHost | None],
        lost_after_s: float,
        report: Callable[[str], None],
    ) -> None:
        """Provide a container that has not started with the checkpoints of the previous attempt. Blocks.

        Raises NodeUnreachable if the previous attempt's host does not answer, until it has been down for
        `lost_after_s`: then its checkpoints count as lost.
        """
        mounted = is_mounted(launch, host)
        if mounted:
            _make_writable(launch)  # again, just before it is mounted
        else:
            _create_directory(host, launch)
        previous = self._find_previous(launch)
        source = find_host(previous.node) if previous else None
        if previous is None or (source and mounted and is_mounted(previous, source.host)):
            return
        if source is None:
            return report(
                f"Node {previous.node} was removed together with the job's checkpoints; "
                "the job starts from the beginning."
            )
        name = source.host.name
        try:
            if source.health.down_s() <= lost_after_s and _copy(previous, source.host, launch, host):
                return report(f"The job's checkpoints were copied from host {name}.")
        except HostUnreachable as error:
            raise NodeUnreachable(f"its checkpoints are on host {name}: {error}") from error
        report(f"The job's checkpoints on host {name} are lost; the job starts from the beginning.")

    def _find_previous(self, launch: Launch) -> Launch | None:
        """Return the job's last attempt that ran in a container."""
        for number in range(launch.attempt - 1, 0, -1):
            name = attempt_id(launch.job.id, number)
            earlier = self._attempt_store.load_ended(name) if self._attempt_store.has_started(name) else None
            if earlier and earlier.container:
                return earlier
        return None


def _create_directory(host: Host, launch: Launch) -> None:
    tar = make_tar({}, {_PARENT: 0o755, CHECKPOINTS: 0o777})
    host.retry_blocking(lambda api: api.put_archive(container_name(launch), "/", tar))


def _copy(previous: Launch, source: Host, launch: Launch, target: Host) -> bool:
    """Copy from container to container. Returns False if the previous container does not exist."""

    def copy(source_api: APIClient) -> bool:
        try:
            pieces, _ = source_api.get_archive(container_name(previous), CHECKPOINTS, chunk_size=2**20)
        except NotFound:
            return False
        return bool(
            target.call_blocking(lambda api: api.put_archive(container_name(launch), _PARENT, pieces))
        )

    return source.retry_blocking(copy)


def fetch_journal(host: Host, launch: Launch) -> None:
    """Copy the journal of the job's checkpoints from the container to the worker's directory. Blocks."""
    path = f"{CHECKPOINTS}/{contract.JOURNAL}"
    with suppress(NotFound, OSError):
        content = host.call_blocking(lambda api: read_file(api, launch, path, contract.MAX_JOURNAL_BYTES))
        # An earlier attempt may have left a symbolic link there, which must not be followed.
        write_atomically(Path(launch.checkpoints, contract.JOURNAL), content)
