"""Brings one container up, exactly once, over a connection that may lose any answer.

Create, check, start. A container's name says which attempt it is, so a second create is told that the
name is taken, which means: it is there already. Nothing runs before the start, and a start that is
repeated changes nothing. So each step can be asked again until its outcome is known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from docker import APIClient
from docker.errors import APIError, ImageNotFound, NotFound

from gpu_flows.blocks.docker import ContainerRules
from gpu_flows.runtimes.base import Launch, LaunchError, Mount, NodeAway, NotWanted
from gpu_flows.runtimes.docker import container as words
from gpu_flows.runtimes.docker.host import Host, HostAway, archive
from gpu_flows.runtimes.docker.images import pull
from gpu_flows.runtimes.docker.rules import check

T = TypeVar("T")
Say = Callable[[str], None]

PAUSES_S = (0.05, 0.2, 0.5, 1.0, 2.0)  # between tries of a step


class Unanswered(Exception):
    """Whether the container was started is not known."""


def bring_up(
    host: Host,
    launch: Launch,
    installation: str,
    rules: ContainerRules,
    still_wanted: Callable[[], bool],
    before_start: Callable[[], None],
    say: Say,
    ours: Sequence[Mount] = (),
) -> None:
    """Until the container runs. Raises LaunchError, NodeAway or NotWanted when nothing of it runs, Unanswered
    when nobody can tell. Once `before_start` has been called, something may run. Blocks."""
    container = launch.container
    assert container is not None
    check_it = partial(
        check, container, launch.env, launch.directory, launch.command, rules, host.settings.is_here
    )
    made = None
    check_it()
    try:
        if container.pull == "always":
            pull(host, container.image, container.login, still_wanted, say)
        made = _create(host, launch, installation, rules, still_wanted, say, ours)
        if made.has_run:
            return
        _fill(host, launch)
        check_it()  # once more: a link could have been bent meanwhile
        if not still_wanted():
            raise NotWanted("it was cancelled before it started")
        before_start()
        _start(host, launch)
    except HostAway as error:
        raise NodeAway(f"host {host.name} does not answer ({error})") from error
    except APIError as error:
        remove_unstarted(host, made)
        raise LaunchError(f"Docker on {host.name} says: {error.explanation}") from error
    except LaunchError:
        remove_unstarted(host, made)
        raise


@dataclass(frozen=True, slots=True)
class Made:
    """A container that is there."""

    id: str
    has_run: bool


def _create(
    host: Host,
    launch: Launch,
    installation: str,
    rules: ContainerRules,
    still_wanted: Callable[[], bool],
    say: Say,
    ours: Sequence[Mount],
) -> Made:
    """The attempt's container, made now or before."""
    container = launch.container
    assert container is not None

    def create(api: APIClient) -> str:
        told = words.arguments(api, launch, installation, host, rules, ours)
        try:
            return str(api.create_container(**told)["Id"])
        except ImageNotFound:
            if container.pull == "never":
                raise LaunchError(
                    f"host {host.name} has no image {container.image!r}, and it is never to be pulled"
                ) from None
        pull(host, container.image, container.login, still_wanted, say)
        return str(api.create_container(**told)["Id"])

    def create_or_find() -> Made:
        try:
            return Made(host.ask(create), has_run=False)
        except APIError as error:
            if error.status_code != 409:
                raise
        # The name is taken: by an earlier try of ours, whose answer was lost, or by a stranger.
        name = words.name_of(launch)
        try:
            found = host.ask(lambda api: api.inspect_container(name))
        except NotFound:
            raise HostAway(f"container {name} is still being made") from None
        if not words.is_of(launch, installation, found["Config"].get("Labels") or {}):
            raise LaunchError(f"host {host.name} has a container {name} that is not ours")
        return Made(found["Id"], has_started(found))

    return insist(create_or_find)


def _fill(host: Host, launch: Launch) -> None:
    """Put our entry and the job's secrets into a container that has not started."""
    files = words.files_for(launch)
    if not files:
        return
    secrets = launch.container.secrets if launch.container else {}
    owner = _user(host, launch) if secrets else (0, 0)
    tar = archive(files, words.FOLDERS, {path: owner for path in files if "/secrets/" in path})
    insist(lambda: host.ask(lambda api: api.put_archive(words.name_of(launch), "/", tar)))


def _user(host: Host, launch: Launch) -> tuple[int, int]:
    """As whom the image runs, as numbers."""
    named = str(inspect(host, launch)["Config"].get("User") or "0")
    user, _, group = named.partition(":")
    if user.isdigit():
        return int(user), int(group) if group.isdigit() else 0
    return words.look_up(user, insist(lambda: host.ask(lambda api: read(api, launch, "/etc/passwd"))))


def read(api: APIClient, launch: Launch, path: str, most: int = 2**20) -> bytes:
    """A small file of the container; nothing of one that is larger, or no file at all."""
    pieces, _ = api.get_archive(words.name_of(launch), path)
    tar = bytearray()
    for piece in pieces:
        tar += piece
        if len(tar) > most + 2**16:
            return b""
    return words.only_file(bytes(tar))


def _start(host: Host, launch: Launch) -> None:
    """A container that has ended could be started again: so after a lost answer it is looked at first."""
    tries = 0

    def start(api: APIClient) -> None:
        nonlocal tries
        tries += 1
        if tries == 1 or not has_started(api.inspect_container(words.name_of(launch))):
            api.start(words.name_of(launch))

    try:
        insist(lambda: host.ask(start))
    except HostAway as error:
        raise Unanswered(str(error)) from error
    except APIError as error:
        raise LaunchError(f"Docker on {host.name} cannot start it: {error.explanation}") from error


def has_started(inspected: Mapping[str, Any]) -> bool:
    """Whether it runs or ever ran."""
    return not str(inspected["State"].get("StartedAt") or "0001").startswith("0001")


def inspect(host: Host, launch: Launch) -> dict[str, Any]:
    return dict(insist(lambda: host.ask(lambda api: api.inspect_container(words.name_of(launch)))))


def remove_unstarted(host: Host, made: Made | None) -> None:
    """Without force: one that runs after all is not removed. What cannot be removed now, the reaper finds."""
    if made is not None and not made.has_run:
        with suppress(HostAway, APIError):
            insist(lambda: host.ask(lambda api: api.remove_container(made.id, v=True)))


def insist(step: Callable[[], T]) -> T:
    """Ask until there is an answer, a few times."""
    for pause in PAUSES_S:
        try:
            return step()
        except HostAway:
            time.sleep(pause)
    return step()
