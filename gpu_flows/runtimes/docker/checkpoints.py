"""How a job's checkpoints get into its container, and from one container to the next.

On a host whose files are the worker's, and under a shared root, the job's directory is mounted: all its
attempts see the same one. Elsewhere it lies in the container. The container of an attempt that left is
kept until the next one runs, and its checkpoints go straight over, host to host, through the worker's
memory a piece at a time.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from docker import APIClient
from docker.errors import NotFound

from gpu_flows.checkpoints import contract
from gpu_flows.runtimes.attempt_store import AttemptStore
from gpu_flows.runtimes.base import Launch, Mount, NodeAway, Refused, attempt_id
from gpu_flows.runtimes.docker import container as words
from gpu_flows.runtimes.docker.host import Host, HostAway
from gpu_flows.runtimes.docker.host_health import Served
from gpu_flows.runtimes.docker.launching import insist, read

_PARENT, _, _FOLDER = words.CHECKPOINTS.rpartition("/")


def is_mounted(launch: Launch, host: Host) -> bool:
    """Whether the container sees the very directory that the worker sees."""
    shared = launch.container is not None and launch.container.shares_checkpoints
    return bool(launch.checkpoints) and (shared or host.settings.is_here)


def mount_of(launch: Launch, host: Host) -> Mount | None:
    if not is_mounted(launch, host):
        return None
    open_up(launch)
    return Mount(launch.checkpoints, words.CHECKPOINTS)


def open_up(launch: Launch) -> None:
    """Let whoever the image runs as write there; the folder above is the worker's alone. Refused if the
    directory has become a link, by which a job could lead us anywhere."""
    try:
        directory = os.open(launch.checkpoints, os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise Refused(f"its checkpoint directory cannot be used ({error.strerror})") from None
    with suppress(OSError):
        os.fchmod(directory, 0o777)
    os.close(directory)


class Checkpoints:
    """Of jobs in containers. Who `comes_back` has left and will go on."""

    def __init__(self, attempt_store: AttemptStore, comes_back: Callable[[str], bool]) -> None:
        self._attempt_store, self._comes_back = attempt_store, comes_back

    def are_needed_of(self, launch: Launch) -> bool:
        """Whether the job will go on from what is in this container: it has left, and has not run since."""
        later = range(launch.attempt + 1, self._attempt_store.attempts_of(launch.job.id) + 1)
        since = any(self._attempt_store.has_started(attempt_id(launch.job.id, number)) for number in later)
        return self._comes_back(launch.job.id) and not since

    def bring(
        self,
        launch: Launch,
        host: Host,
        host_of: Callable[[str], Served | None],
        lost_after_s: float,
        say: Callable[[str], None],
    ) -> None:
        """Put what the attempt before kept into a container that has not started, unless both see the same
        directory. A host that is away is waited for, until what lies there counts as lost. Blocks."""
        mounted = is_mounted(launch, host)
        if not mounted:
            _make_room(host, launch)
        else:
            open_up(launch)  # once more, just before it is mounted
        previous = self._former(launch)
        served = host_of(previous.node) if previous else None
        if previous is None or (served and mounted and is_mounted(previous, served.host)):
            return
        if served is None:
            return say(f"Node {previous.node} is gone, with what it had saved; it starts from the beginning.")
        try:
            if served.pulse.silent_s() <= lost_after_s and _copy(previous, served.host, launch, host):
                return say(f"Its checkpoints were brought over from host {served.host.name}.")
        except HostAway as error:
            raise NodeAway(f"its checkpoints are on host {served.host.name}: {error}") from error
        say(f"What it had saved on host {served.host.name} is gone; it starts from the beginning.")

    def _former(self, launch: Launch) -> Launch | None:
        """The last attempt of the job that ran in a container."""
        for number in range(launch.attempt - 1, 0, -1):
            name = attempt_id(launch.job.id, number)
            before = self._attempt_store.past(name) if self._attempt_store.has_started(name) else None
            if before and before.container:
                return before
        return None


def _make_room(host: Host, launch: Launch) -> None:
    """An empty directory."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for folder, mode in ((_PARENT, 0o755), (words.CHECKPOINTS, 0o777)):
            entry = tarfile.TarInfo(folder.lstrip("/"))
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
    name = words.name_of(launch)
    insist(lambda: host.ask(lambda api: api.put_archive(name, "/", made.getvalue())))


def _copy(previous: Launch, there: Host, launch: Launch, here: Host) -> bool:
    """From container to container. False if nothing is left of the previous."""

    def copy(source: APIClient) -> bool:
        try:
            pieces, _ = source.get_archive(words.name_of(previous), words.CHECKPOINTS, chunk_size=2**20)
        except NotFound:
            return False
        return bool(here.ask(lambda api: api.put_archive(words.name_of(launch), _PARENT, pieces)))

    return insist(lambda: there.ask(copy))


def fetch_journal(host: Host, launch: Launch) -> None:
    """Put what the job told of its checkpoints where the worker looks for it. Blocks."""
    path = f"{words.CHECKPOINTS}/{contract.JOURNAL}"
    with suppress(NotFound, OSError):
        text = host.ask(lambda api: read(api, launch, path, contract.MAX_JOURNAL_BYTES))
        # Made anew and renamed: an earlier attempt may have left a link in its place.
        fresh = Path(launch.checkpoints, f"{contract.JOURNAL}.new")
        fresh.unlink(missing_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "wb") as file:
            file.write(text)
        os.replace(fresh, Path(launch.checkpoints, contract.JOURNAL))
