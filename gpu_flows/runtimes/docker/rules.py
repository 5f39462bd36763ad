"""Checks what a job asks of its container against the pool's rules, before any call to Docker.

Jobs can ask for an image, mounts, memory, processors and variables. Privileges, host namespaces,
capabilities and devices need no rule, because no job variable asks for them.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from gpu_flows.blocks.docker import ContainerRules
from gpu_flows.runtimes.base import Container, Mount, Refused
from gpu_flows.runtimes.docker.mounts import outermost_roots

CONTAINER_FOLDER = "/run/gpu-flows"  # holds the files that we copy into a container
MOST_SHM_MB = 256 * 1024

_NAME = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?/)?{_NAME}(?:/{_NAME})*"
    r"(?::[\w][\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_IMAGE_ID = re.compile(r"sha256:.*|[0-9a-f]{64}")  # selects an image whatever its name, past the allow-list
_DOCKER_HUB = ("", "docker.io", "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com")
_RESERVED_TARGETS = ("/proc", "/sys", "/dev", CONTAINER_FOLDER)
_RESERVED_VARIABLES = re.compile(  # decide which devices and drivers a container gets
    r"(NVIDIA|CUDA)_VISIBLE_DEVICES|NVIDIA_(REQUIRE|MIG|IMEX)_\w+"
    r"|NVIDIA_(DISABLE_REQUIRE|GDS|MOFED|NVSWITCH|GDRCOPY)|GPU_FLOWS_\w+"
)
_SECRET_NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)  # a secret becomes a file of that name


def check_request(
    container: Container,
    env: Mapping[str, str | None],
    directory: str,
    command: Iterable[str],
    rules: ContainerRules,
    files_are_here: bool,
) -> None:
    """Raise Refused, with the reason, if the rules do not allow the request.

    `files_are_here` states that the host has the worker's files, so that symbolic links can be followed.
    On other hosts only the mount roots themselves can be mounted.
    """
    _check_image(container.image, rules.images)
    for mount in container.mounts:
        resolve_mount(mount, rules.mount_roots, files_are_here)
    _check_size("memory", container.memory_mb, 1024 * rules.most_memory_gb, " MB")
    _check_size("CPUs", container.cpus, rules.most_cpus)
    _check_size("shared memory", container.shm_mb, MOST_SHM_MB, " MB")
    for name in (*env, *container.secrets):
        if _RESERVED_VARIABLES.fullmatch(name):
            raise Refused(f"the variable {name} states the job's devices, so a job cannot set it")
        if not name or "=" in name:
            raise Refused(f"{name!r} is not a valid name of an environment variable")
    for name in container.secrets:
        if not _SECRET_NAME.fullmatch(name):
            raise Refused(f"{name!r} is not a valid name of a secret")
    for text in (*command, *env, *(value or "" for value in env.values())):
        if "\0" in text:
            raise Refused(f"the command or a variable contains a zero byte: {text!r}")
    if directory and (not directory.startswith("/") or _has_odd_parts(directory)):
        raise Refused(f"the working directory {directory!r} is not an absolute path in the container")


def resolve_mount(mount: Mount, roots: Iterable[str], files_are_here: bool) -> Mount:
    """Return the mount with all symbolic links in its source resolved. Raises Refused unless the result is
    under one of the roots."""
    source, target = mount.source, mount.target
    for path in (source, target):
        if not path.startswith("/") or _has_odd_parts(path):
            raise Refused(f"the mount of {source!r} to {target!r} needs two absolute paths without '..'")
    clean_target = _clean(target)
    if any(
        _is_under(clean_target, reserved) or _is_under(reserved, clean_target)
        for reserved in _RESERVED_TARGETS
    ):
        raise Refused(f"the container path {clean_target!r} is reserved and cannot be a mount target")
    allowed = [_clean(root) for root in roots if root.startswith("/")]
    if not files_are_here:
        if _clean(source) in allowed and not any(_is_below(_clean(source), root) for root in allowed):
            return Mount(_clean(source), clean_target, mount.read_only)
        raise Refused(
            f"{source!r} is on another machine, where symbolic links cannot be followed: only the pool's "
            f"mount roots themselves can be mounted there ({', '.join(allowed) or 'none'})"
        )
    try:
        real = os.path.realpath(_clean(source))
    except OSError as error:  # it is being replaced while it is read
        raise Refused(f"{source!r} cannot be mounted: {error.strerror}") from None
    safe_roots = outermost_roots(allowed)
    if not any(_is_under(real, root) for root in safe_roots):
        link = f" leads to {real!r}, which" if real != source else ""
        raise Refused(
            f"{source!r}{link} is not under one of the pool's mount roots ({', '.join(allowed) or 'none'})"
        )
    try:
        kind = os.lstat(real).st_mode
    except OSError as error:
        raise Refused(f"{source!r} cannot be mounted: {error.strerror}") from None
    if not stat.S_ISDIR(kind) and not (stat.S_ISREG(kind) and real in safe_roots):
        raise Refused(f"{source!r} is no directory; a file can be mounted only if it is a mount root itself")
    return Mount(real, clean_target, mount.read_only)


def parse_mount(text: str) -> Mount:
    """Parse `SOURCE:TARGET[:ro|rw]`."""
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not source or not target or mode not in ("", "ro", "rw"):
        raise Refused(f"the mount {text!r} is not of the form SOURCE:TARGET or SOURCE:TARGET:ro")
    return Mount(source, target, mode == "ro")


def with_tag(image: str) -> str:
    """Return the image's name with a tag, `latest` by default.

    Without a tag, Docker would pull all tags, and would take a name such as `cafe` for the start of an
    image's id.
    """
    has_tag = "@" in image or ":" in image.rpartition("/")[2]
    return image if has_tag else f"{image}:latest"


def registry_of(image: str) -> str:
    """Return the registry that the image comes from."""
    return normal_registry(_named_registry(image))


def normal_registry(address: str) -> str:
    """Return a registry's address in its normal form: host and port. Docker Hub has several names."""
    host = address.rpartition("://")[2].partition("/")[0].lower().removesuffix(":443")
    return "docker.io" if host in _DOCKER_HUB else host


def _named_registry(image: str) -> str:
    """Return the part of an image's name that Docker takes for a registry; empty if there is none."""
    first, slash, _ = image.partition("/")
    is_registry = "." in first or ":" in first or first == "localhost" or first != first.lower()
    return first if slash and is_registry else ""


def _check_image(image: str, allowed: Iterable[str]) -> None:
    if len(image) > 512 or not _IMAGE.fullmatch(image) or _IMAGE_ID.fullmatch(image):
        raise Refused(f"{image!r} is not a valid image name")
    patterns = list(allowed)
    if not any(fnmatchcase(name, pattern) for name in _spellings(image) for pattern in patterns):
        raise Refused(
            f"the image {image!r} is not on the pool's list of images ({', '.join(patterns) or 'empty'})"
        )


def _spellings(image: str) -> set[str]:
    """Return the name as it is written and as Docker expands it: `ubuntu` is
    `docker.io/library/ubuntu:latest`. A tag next to a digest is dropped, as Docker ignores it."""
    name, at, digest = image.partition("@")
    if at:
        folder, slash, last = name.rpartition("/")
        image = f"{folder}{slash}{last.partition(':')[0]}@{digest}"
    full_name = image if _named_registry(image) else f"docker.io/{'' if '/' in image else 'library/'}{image}"
    return {image, with_tag(image), with_tag(full_name)}


def _check_size(what: str, requested: float, most: float, unit: str = "") -> None:
    if not 0 <= requested < math.inf:
        raise Refused(f"it asks for {requested:g}{unit} {what}, which is not an amount")
    if most and requested > most:
        raise Refused(f"it asks for {requested:g}{unit} {what}; the pool allows {most:g}")


def _clean(path: str) -> str:
    """Return an absolute path in its normal form, so that paths can be compared."""
    return str(PurePosixPath("/" + path.lstrip("/")))


def _has_odd_parts(path: str) -> bool:
    return ".." in Path(path).parts or any(ord(character) < 32 or character in ":\x7f" for character in path)


def _is_under(path: str, root: str) -> bool:
    return PurePosixPath(path).is_relative_to(root)


def _is_below(path: str, root: str) -> bool:
    return path != root and _is_under(path, root)
