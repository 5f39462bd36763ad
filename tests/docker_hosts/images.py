"""Builds images from the files of this machine, because tests have no public registry to pull from.

`bare_image` has a shell and little else. `python_image` adds the interpreter that runs the tests, and
`prefect_image` also Prefect and gpu-flows, so that a flow can run in it. The large images are written once
to a folder, which processes may share, and loaded from there.
"""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory

import docker
from docker_hosts.archive import Archive
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

USER, USER_ID = "worker", 1000
PATH = "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
NVML_IN_IMAGE = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
CHECKOUT = Path(__file__).parents[2]
NOT_NEEDED = {"test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages"}
# Policies that solve linear programs run in the worker, not in a job; the server has the UI.
LEFT_OUT = {"scipy", "nvidia-ml-py"}
LEFT_OUT_FOLDERS = ("prefect/server/ui", "sqlalchemy/testing", "numpy/f2py")
LEFT_OUT_ENDINGS = {".pyi", ".pyx", ".pxd", ".c", ".h", ".a"}


def bare_image(client: docker.DockerClient, tag: str = "bare:test") -> str:
    """Load an image with busybox and a user that is not root, and return its tag."""
    file = io.BytesIO()
    with Archive(file) as tar:
        _add_bare(tar)
    return _load(client, file.getvalue(), tag)


def python_image(
    client: docker.DockerClient, tag: str = "python:test", cache: Path | None = None, nvml: Path | None = None
) -> str:
    """Load the bare image with Python. `nvml` is a stand-in for NVIDIA's library, at the driver's path."""
    return _load_cached(client, tag, cache, "python", nvml, (_add_bare, _add_python))


def prefect_image(
    client: docker.DockerClient,
    tag: str = "prefect:test",
    cache: Path | None = None,
    nvml: Path | None = None,
) -> str:
    """Load the image of Python with Prefect and gpu-flows: nearly what `pip install gpu-flows` installs."""
    return _load_cached(client, tag, cache, "prefect", nvml, (_add_bare, _add_python, _add_packages))


# -- loading ----------------------------------------------------------------------------------


def _load(client: docker.DockerClient, tar: bytes | Path, tag: str) -> str:
    repository, _, version = tag.rpartition(":") if ":" in tag.rpartition("/")[2] else (tag, "", "latest")
    changes = [f"ENV {PATH}", 'CMD ["/bin/sh"]']
    if isinstance(tar, bytes):
        client.api.import_image_from_data(tar, repository, version, changes)
    else:
        client.api.import_image_from_file(str(tar), repository, version, changes)
    client.images.get(tag)  # raises if the import failed: its answer is a stream that hides errors
    return tag


def _load_cached(
    client: docker.DockerClient,
    tag: str,
    cache: Path | None,
    name: str,
    nvml: Path | None,
    parts: Iterable[Callable[[Archive], None]],
) -> str:
    with TemporaryDirectory() as own:
        folder = cache or Path(own)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{name}{'-nvml' if nvml else ''}.tar"
        with _locked(file.with_suffix(".lock")):
            if not file.exists():
                new = file.with_suffix(".new")
                with new.open("wb") as content, Archive(content) as tar:
                    for add in parts:
                        add(tar)
                    if nvml is not None:
                        _add_nvml(tar, nvml)
                os.replace(new, file)
        return _load(client, file, tag)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# -- contents ---------------------------------------------------------------------------------


def _add_bare(tar: Archive) -> None:
    for folder, mode in (
        ("tmp", 0o1777),
        ("var/tmp", 0o1777),
        ("root", 0o755),
        ("proc", 0o555),
        ("sys", 0o555),
    ):
        tar.folder(folder, mode)
    tar.folder(f"home/{USER}", 0o755, USER_ID)
    tar.text(
        "etc/passwd", f"root:x:0:0:root:/root:/bin/sh\n{USER}:x:{USER_ID}:{USER_ID}::/home/{USER}:/bin/sh\n"
    )
    tar.text("etc/group", f"root:x:0:\n{USER}:x:{USER_ID}:\n")
    tar.text("etc/nsswitch.conf", "hosts: files dns\n")
    busybox = Path(shutil.which("busybox") or "/bin/busybox").resolve()
    tar.file(busybox, "bin/busybox")
    for library in _libraries([busybox]):  # none, if it is the static one
        tar.file(library)
    listed = subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True).stdout
    for applet in set(listed.split()) - {"busybox"}:
        tar.link(f"bin/{applet}", "busybox")


def _add_python(tar: Archive) -> None:
    """Add the interpreter of this virtual environment under the same path, where it finds its library."""
    binary = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    tar.file(binary)
    for name in ("python3", "python"):
        tar.link(f"usr/local/bin/{name}", str(binary))
    modules = list((library / "lib-dynload").glob("*.so"))
    for file in _files_below(library, NOT_NEEDED):
        if ".opt-" not in file.name and not file.match(
            "config-*/*"
        ):  # neither bytecode for -O nor build files
            tar.file(file)
    for shared in _libraries([binary, *modules]):
        tar.file(shared)


def _add_packages(tar: Archive) -> None:
    code = "import site; print(site.getsitepackages()[0])"
    binary = str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
    target = Path(
        subprocess.run([binary, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    )
    compiled = []
    for name in sorted(_requirements("gpu-flows")):
        for entry in distribution(name).files or ():
            file = Path(str(entry.locate()))
            if file.is_file() and _runs_in_a_job(entry):
                tar.file(file, str(target / entry))
                if ".so" in file.suffixes:
                    compiled.append(file)
    for shared in _libraries(compiled):
        if not shared.is_relative_to(sys.prefix):
            tar.file(shared)
    # This checkout: some packages are links to folders next to gpu_flows, which the walk follows.
    for file in _files_below(CHECKOUT / "gpu_flows", {"__pycache__"}):
        tar.file(file.resolve(), str(target / file.relative_to(CHECKOUT)))
    for entry in distribution("gpu-flows").files or ():
        if entry.parent.suffix == ".dist-info":  # it registers our plugin with Prefect
            tar.file(Path(str(entry.locate())), str(target / entry))


def _runs_in_a_job(file: PurePath) -> bool:
    """Whether a job may need the file. Developers and Prefect's server need further ones."""
    outside = ".." in file.parts  # commands in the environment's bin, whose first line names its Python
    needless = str(file).startswith(LEFT_OUT_FOLDERS) or "tests" in file.parts[:-1]
    return not (outside or needless or file.suffix in LEFT_OUT_ENDINGS)


def _add_nvml(tar: Archive, library: Path) -> None:
    tar.file(library, NVML_IN_IMAGE)
    for shared in _libraries([library]):
        tar.file(shared)


def _requirements(of: str) -> set[str]:
    """Return the names of all direct and indirect requirements of a package."""
    found: set[str] = set()
    unresolved = [(of, frozenset([""]))]
    while unresolved:
        package, extras = unresolved.pop()
        for line in distribution(package).requires or ():
            needed = Requirement(line)
            applies = needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in extras)
            if applies and (name := canonicalize_name(needed.name)) not in found | LEFT_OUT:
                found.add(name)
                unresolved.append((name, frozenset(["", *needed.extras])))
    return found


def _libraries(binaries: Iterable[Path]) -> list[Path]:
    """Return the shared libraries that these binaries need, with the loader, by the paths it searches."""
    found: set[Path] = set()
    names = [str(binary) for binary in binaries]
    answer = subprocess.run(["ldd", *names], capture_output=True, text=True).stdout if names else ""
    for line in answer.splitlines():
        fields = line.split()
        path = fields[2] if "=>" in fields and len(fields) > 2 else fields[0] if fields else ""
        if path.startswith("/") and not path.endswith(":"):
            found.add(Path(path))
    return sorted(found)


def _files_below(folder: Path, without: set[str]) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if name not in without)
        for name in sorted(files):
            yield Path(parent) / name
