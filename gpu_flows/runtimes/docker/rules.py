"""What a job may ask of a container. Pure: decided before Docker hears a word.

Privileges, host namespaces, capabilities and devices are not here because there is no way to ask for
them. What can be asked for, an image, mounts, memory, variables, is held against the pool's rules.
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

OURS = "/run/gpu-flows"  # in every container that needs something from us
MOST_SHM_MB = 256 * 1024

_NAME = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?/)?{_NAME}(?:/{_NAME})*"
    r"(?::[\w][\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_NUMBER = re.compile(r"sha256:.*|[0-9a-f]{64}")  # by which Docker takes an image that has another name
_KEPT_TARGETS = ("/proc", "/sys", "/dev", OURS)
_KEPT_VARIABLES = re.compile(  # by which NVIDIA's runtime and we ourselves decide what a container gets
    r"(NVIDIA|CUDA)_VISIBLE_DEVICES|NVIDIA_(REQUIRE|MIG|IMEX)_\w+"
    r"|NVIDIA_(DISABLE_REQUIRE|GDS|MOFED|NVSWITCH|GDRCOPY)|GPU_FLOWS_\w+"
)
_SECRET = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)  # becomes the name of a file


def check(
    container: Container,
    env: Mapping[str, str | None],
    directory: str,
    command: Iterable[str],
    rules: ContainerRules,
    files_are_here: bool,
) -> None:
    """Raises Refused with the reason. `files_are_here`: the host's files are the worker's, so that links
    can be followed; elsewhere only the allowed roots themselves can be mounted."""
    _check_image(container.image, rules.images)
    for mount in container.mounts:
        resolve(mount, rules.mount_roots, files_are_here)
    _check_size("memory", container.memory_mb, 1024 * rules.most_memory_gb, " MB")
    _check_size("CPUs", container.cpus, rules.most_cpus)
    _check_size("shared memory", container.shm_mb, MOST_SHM_MB, " MB")
    for name in (*env, *container.secrets):
        if _KEPT_VARIABLES.fullmatch(name):
            raise Refused(f"the variable {name} tells a job its devices and cannot be set by it")
        if not name or "=" in name:
            raise Refused(f"{name!r} is no name for an environment variable")
    for name in container.secrets:
        if not _SECRET.fullmatch(name):
            raise Refused(f"{name!r} is no name for a secret")
    for text in (*command, *env, *(value or "" for value in env.values())):
        if "\0" in text:
            raise Refused(f"the command or a variable has a zero byte in it: {text!r}")
    if directory and (not directory.startswith("/") or _has_odd_parts(directory)):
        raise Refused(f"the working directory {directory!r} is not an absolute path in the container")


def resolve(mount: Mount, roots: Iterable[str], files_are_here: bool) -> Mount:
    """The mount with every link in its source followed. Refused unless that is under an allowed root."""
    source, target = mount.source, mount.target
    for path in (source, target):
        if not path.startswith("/") or _has_odd_parts(path):
            raise Refused(f"the mount of {source!r} to {target!r} needs two absolute paths without '..'")
    clean_target = _clean(target)
    if any(_is_under(clean_target, kept) or _is_under(kept, clean_target) for kept in _KEPT_TARGETS):
        raise Refused(f"nothing can be mounted over {clean_target!r} of a container")
    allowed = [_clean(root) for root in roots if root.startswith("/")]
    if not files_are_here:
        if _clean(source) in allowed:
            return Mount(_clean(source), clean_target, mount.read_only)
        raise Refused(
            f"{source!r} is on another machine, where links cannot be followed: only the pool's mount roots "
            f"themselves can be mounted there ({', '.join(allowed) or 'none'})"
        )
    real = os.path.realpath(_clean(source))
    if not any(_is_under(real, os.path.realpath(root)) for root in allowed):
        led = f" leads to {real!r}, which" if real != source else ""
        raise Refused(
            f"{source!r}{led} is not under one of the pool's mount roots ({', '.join(allowed) or 'none'})"
        )
    try:
        kind = os.lstat(real).st_mode
    except OSError as error:
        raise Refused(f"{source!r} cannot be mounted: {error.strerror}") from None
    if not (stat.S_ISDIR(kind) or stat.S_ISREG(kind)):
        raise Refused(f"{source!r} is neither a directory nor a plain file")
    return Mount(real, clean_target, mount.read_only)


def parse_mount(text: str) -> Mount:
    """`SOURCE:TARGET[:ro|rw]`."""
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not source or not target or mode not in ("", "ro", "rw"):
        raise Refused(f"the mount {text!r} is not of the form SOURCE:TARGET or SOURCE:TARGET:ro")
    return Mount(source, target, mode == "ro")


def tagged(image: str) -> str:
    """With the tag that Docker takes where none is named. Said aloud, or Docker would pull all tags, and
    take a name that happens to begin the number of some image for that image."""
    has_tag = "@" in image or ":" in image.rpartition("/")[2]
    return image if has_tag else f"{image}:latest"


def _check_image(image: str, allowed: Iterable[str]) -> None:
    if len(image) > 512 or not _IMAGE.fullmatch(image) or _NUMBER.fullmatch(image):
        raise Refused(f"{image!r} is no name of an image")
    patterns = list(allowed)
    if not any(fnmatchcase(name, pattern) for name in _spellings(image) for pattern in patterns):
        raise Refused(
            f"the image {image!r} is not on the pool's list ({', '.join(patterns) or 'which is empty'})"
        )


def _spellings(image: str) -> set[str]:
    """As it is written, and as Docker understands it: `ubuntu` is `docker.io/library/ubuntu:latest`. Beside
    a digest Docker does not look at a tag, and nor do the patterns."""
    name, at, digest = image.partition("@")
    if at:
        folder, slash, last = name.rpartition("/")
        image = f"{folder}{slash}{last.partition(':')[0]}@{digest}"
    first, slash, _ = image.partition("/")
    elsewhere = "." in first or ":" in first or first == "localhost" or first != first.lower()
    whole = image if slash and elsewhere else f"docker.io/{'' if slash else 'library/'}{image}"
    return {image, tagged(image), tagged(whole)}


def _check_size(what: str, asked: float, most: float, unit: str = "") -> None:
    if not 0 <= asked < math.inf:
        raise Refused(f"it asks for {asked:g}{unit} {what}, which is no amount")
    if most and asked > most:
        raise Refused(f"it asks for {asked:g}{unit} {what}; the pool allows {most:g}")


def _clean(path: str) -> str:
    """An absolute path, spelled in the only way that compares."""
    return str(PurePosixPath("/" + path.lstrip("/")))


def _has_odd_parts(path: str) -> bool:
    return ".." in Path(path).parts or any(ord(letter) < 32 or letter in ":\x7f" for letter in path)


def _is_under(path: str, root: str) -> bool:
    return PurePosixPath(path).is_relative_to(root)
