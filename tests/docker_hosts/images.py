"""Images made on the spot from what the machine has, as tests have no registry to pull from.

`bare_image` is a shell and little else, in a moment. `python_image` is the interpreter that runs the tests.
`prefect_image` has Prefect and gpu-flows too, so that a flow can run in it. The big ones are written to a
folder once, which processes may share, and loaded from there.
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
    """busybox, a user who is not root, and nothing else."""
    file = io.BytesIO()
    with Archive(file) as tar:
        _add_bare(tar)
    return _load(client, file.getvalue(), tag)


def python_image(
    client: docker.DockerClient, tag: str = "python:test", cache: Path | None = None, nvml: Path | None = None
) -> str:
    """The bare image and Python; `nvml` is a stand-in for NVIDIA's library, put where the driver would."""

    def write(tar: Archive) -> None:
        _add_bare(tar)
        _add_python(tar)
        if nvml is not None:
            _add_nvml(tar, nvml)

    return _load_cached(client, tag, cache, "python-nvml" if nvml else "python", write)


def prefect_image(
    client: docker.DockerClient,
    tag: str = "prefect:test",
    cache: Path | None = None,
    nvml: Path | None = None,
) -> str:
    """The image of Python with Prefect and gpu-flows: what `pip install gpu-flows` gives, nearly."""

    def write(tar: Archive) -> None:
        _add_bare(tar)
        _add_python(tar)
        _add_packages(tar)
        if nvml is not None:
            _add_nvml(tar, nvml)

    return _load_cached(client, tag, cache, "prefect-nvml" if nvml else "prefect", write)


# -- loading ----------------------------------------------------------------------------------


def _load(client: docker.DockerClient, tar: bytes | Path, tag: str) -> str:
    repository, _, version = tag.rpartition(":") if ":" in tag.rpartition("/")[2] else (tag, "", "latest")
    changes = [f"ENV {PATH}", 'CMD ["/bin/sh"]']
    if isinstance(tar, bytes):
        client.api.import_image_from_data(tar, repository, version, changes)
    else:
        client.api.import_image_from_file(str(tar), repository, version, changes)
    client.images.get(tag)  # import answers with a stream in which an error is a line
    return tag


def _load_cached(
    client: docker.DockerClient,
    tag: str,
    cache: Path | None,
    name: str,
    write: Callable[[Archive], None],
) -> str:
    with TemporaryDirectory() as own:
        folder = cache or Path(own)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{name}.tar"
        with _locked(folder / f"{name}.lock"):
            if not file.exists():
                new = file.with_suffix(".new")
                with new.open("wb") as content, Archive(content) as tar:
                    write(tar)
                os.replace(new, file)
        return _load(client, file, tag)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# -- what is in them --------------------------------------------------------------------------


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
    """The interpreter under this virtual environment, where it lies here; only there it finds its library."""
    binary = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    tar.file(binary)
    for name in ("python3", "python"):
        tar.link(f"usr/local/bin/{name}", str(binary))
    modules = list((library / "lib-dynload").glob("*.so"))
    for file in _files_below(library, NOT_NEEDED):
        if ".opt-" not in file.name and not file.match("config-*/*"):  # compiled for -O; to build Python with
            tar.file(file)
    for shared in _libraries([binary, *modules]):
        tar.file(shared)


def _add_packages(tar: Archive) -> None:
    ask = "import site; print(site.getsitepackages()[0])"
    binary = str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
    target = Path(
        subprocess.run([binary, "-c", ask], check=True, capture_output=True, text=True).stdout.strip()
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
    # This checkout: its rooms are links to folders next to it, which the walk follows.
    for file in _files_below(CHECKOUT / "gpu_flows", {"__pycache__"}):
        tar.file(file.resolve(), str(target / file.relative_to(CHECKOUT)))
    for entry in distribution("gpu-flows").files or ():
        if entry.parent.suffix == ".dist-info":  # Prefect finds our plugin by it
            tar.file(Path(str(entry.locate())), str(target / entry))


def _runs_in_a_job(file: PurePath) -> bool:
    """Whether a package may need this file of it, rather than its developers or Prefect's server."""
    outside = ".." in file.parts  # commands, in the environment's bin, with its Python in the first line
    needless = str(file).startswith(LEFT_OUT_FOLDERS) or "tests" in file.parts[:-1]
    return not (outside or needless or file.suffix in LEFT_OUT_ENDINGS)


def _add_nvml(tar: Archive, library: Path) -> None:
    tar.file(library, NVML_IN_IMAGE)
    for shared in _libraries([library]):
        tar.file(shared)


def _requirements(of: str) -> set[str]:
    """All that a package needs, and what that needs, without the package itself."""
    found: set[str] = set()
    open_ends = [(of, frozenset([""]))]
    while open_ends:
        package, extras = open_ends.pop()
        for line in distribution(package).requires or ():
            needed = Requirement(line)
            applies = needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in extras)
            if applies and (name := canonicalize_name(needed.name)) not in found | LEFT_OUT:
                found.add(name)
                open_ends.append((name, frozenset(["", *needed.extras])))
    return found


def _libraries(binaries: Iterable[Path]) -> list[Path]:
    """The shared libraries that these need and the loader that finds them, by the paths it looks at."""
    found: set[Path] = set()
    names = [str(binary) for binary in binaries]
    answer = subprocess.run(["ldd", *names], capture_output=True, text=True).stdout if names else ""
    for line in answer.splitlines():
        words = line.split()
        path = words[2] if "=>" in words and len(words) > 2 else words[0] if words else ""
        if path.startswith("/") and not path.endswith(":"):
            found.add(Path(path))
    return sorted(found)


def _files_below(folder: Path, without: set[str]) -> Iterator[Path]:
    for place, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if name not in without)
        for name in sorted(files):
            yield Path(place) / name
