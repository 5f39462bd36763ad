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
from gpu_flows.docker_host import Host, HostAway
from gpu_flows.runtimes.base import Launch, Mount, NodeAway, attempt_id
from gpu_flows.runtimes.book import Book
from gpu_flows.runtimes.docker import container as words
from gpu_flows.runtimes.docker.launching import insist
from gpu_flows.runtimes.docker.pulse import Served

_PARENT, _, _FOLDER = words.CHECKPOINTS.rpartition("/")


def is_mounted(launch: Launch, host: Host) -> bool:
    """Whether the container sees the very directory that the worker sees."""
    shared = launch.container is not None and launch.container.shares_checkpoints
    return bool(launch.checkpoints) and (shared or host.settings.is_here)


def mount_of(launch: Launch, host: Host) -> Mount | None:
    if not is_mounted(launch, host):
        return None
    with suppress(
        OSError
    ):  # whoever the image runs as may write there; the folder above is the worker's alone
        os.chmod(launch.checkpoints, 0o777)
    return Mount(launch.checkpoints, words.CHECKPOINTS)


class Checkpoints:
    """Of jobs in containers. Who `comes_back` has left and will go on."""

    def __init__(self, book: Book, comes_back: Callable[[str], bool]) -> None:
        self._book, self._comes_back = book, comes_back

    def are_needed_of(self, launch: Launch) -> bool:
        """Whether the job will go on from what is in this container: it has left, and has not run since."""
        later = range(launch.attempt + 1, self._book.attempts_of(launch.job.id) + 1)
        since = any(self._book.has_started(attempt_id(launch.job.id, number)) for number in later)
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
        former = self._former(launch)
        served = host_of(former.node) if former else None
        if former is None or served is None or (mounted and is_mounted(former, served.host)):
            return
        try:
            if served.pulse.silent_s() <= lost_after_s and _copy(former, served.host, launch, host):
                return say(f"Its checkpoints were brought over from host {served.host.name}.")
        except HostAway as error:
            raise NodeAway(f"its checkpoints are on host {served.host.name}: {error}") from error
        say(f"What it had saved on host {served.host.name} is gone; it starts from the beginning.")

    def _former(self, launch: Launch) -> Launch | None:
        """The last attempt of the job that ran in a container."""
        for number in range(launch.attempt - 1, 0, -1):
            name = attempt_id(launch.job.id, number)
            before = self._book.past(name) if self._book.has_started(name) else None
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


def _copy(former: Launch, there: Host, launch: Launch, here: Host) -> bool:
    """From container to container. False if nothing is left of the former."""

    def copy(source: APIClient) -> bool:
        try:
            pieces, _ = source.get_archive(words.name_of(former), words.CHECKPOINTS, chunk_size=2**20)
        except NotFound:
            return False
        return bool(here.ask(lambda api: api.put_archive(words.name_of(launch), _PARENT, pieces)))

    return insist(lambda: there.ask(copy))


def fetch_journal(host: Host, launch: Launch) -> None:
    """Put what the job told of its checkpoints where the worker looks for it. Blocks."""
    if is_mounted(launch, host):
        return
    path = f"{words.CHECKPOINTS}/{contract.JOURNAL}"

    def fetch(api: APIClient) -> bytes:
        pieces, told = api.get_archive(words.name_of(launch), path)
        return words.only_file(b"".join(pieces)) if told["size"] <= contract.MOST_READ else b""

    with suppress(NotFound):
        text = host.ask(fetch)
        with suppress(OSError):
            (Path(launch.checkpoints) / contract.JOURNAL).write_bytes(text)
