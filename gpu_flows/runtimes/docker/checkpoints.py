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
from contextlib import suppress
from pathlib import Path

from docker import APIClient
from docker.errors import NotFound

from gpu_flows.checkpoints import contract
from gpu_flows.docker_host import Host
from gpu_flows.runtimes.base import Launch, Mount
from gpu_flows.runtimes.docker import container as words
from gpu_flows.runtimes.docker.launching import insist

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


def make_room(host: Host, launch: Launch) -> None:
    """An empty directory in a container that has not started. Blocks."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for folder, mode in ((_PARENT, 0o755), (words.CHECKPOINTS, 0o777)):
            entry = tarfile.TarInfo(folder.lstrip("/"))
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
    name = words.name_of(launch)
    insist(lambda: host.ask(lambda api: api.put_archive(name, "/", made.getvalue())))


def bring(former: Launch, there: Host, launch: Launch, here: Host) -> bool:
    """Copy what the former attempt kept into a container that has not started. False if nothing is left of
    it. Blocks."""

    def copy(source: APIClient) -> bool:
        try:
            pieces, _ = source.get_archive(words.name_of(former), words.CHECKPOINTS, chunk_size=2**20)
        except NotFound:
            return False
        return bool(here.ask(lambda api: api.put_archive(words.name_of(launch), _PARENT, pieces)))

    return insist(lambda: there.ask(copy))


def fetch_journal(host: Host, launch: Launch) -> None:
    """Put what the job told of its checkpoints where the worker looks for it. Blocks."""
    path = f"{words.CHECKPOINTS}/{contract.JOURNAL}"

    def fetch(api: APIClient) -> bytes:
        pieces, told = api.get_archive(words.name_of(launch), path)
        return words.only_file(b"".join(pieces)) if told["size"] <= contract.MOST_READ else b""

    with suppress(NotFound):
        text = host.ask(fetch)
        with suppress(OSError):
            (Path(launch.checkpoints) / contract.JOURNAL).write_bytes(text)
