"""A private registry on this machine that requires a password: Debian's docker-registry.

Docker uses plain HTTP for registries on 127.0.0.0/8, so it needs no certificate.
"""

from __future__ import annotations

import base64
import ctypes
import ctypes.util
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import docker

from gpu_flows.bootstrap.local_stack import free_port
from gpu_flows.common.retry import wait_until

START_TIMEOUT_S = 30.0


def can_serve() -> str:
    """Return why no registry can run here; empty if one can."""
    if shutil.which("docker-registry") is None:
        return "Not installed: docker-registry (apt-get install docker-registry)."
    if ctypes.util.find_library("crypt") is None:
        return "No libcrypt to hash the registry's password with."
    return ""


class Registry:
    """A context manager that starts and stops a registry. Its images stay in `folder` for the next start."""

    def __init__(self, folder: Path, username: str = "reader", password: str = "open sesame") -> None:
        self.folder, self.username, self.password = folder, username, password
        self.port = free_port()
        self.log = folder / "registry.log"
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "htpasswd").write_text(f"{username}:{bcrypt(password)}\n")
        (folder / "config.yml").write_text(self._configuration())

    @property
    def address(self) -> str:
        """The prefix of its images' names."""
        return f"127.0.0.1:{self.port}"

    @property
    def login(self) -> dict[str, str]:
        """The auth_config of the SDK's push and pull."""
        return {"username": self.username, "password": self.password}

    def start(self) -> None:
        with self.log.open("ab") as log:
            command = ["docker-registry", "serve", str(self.folder / "config.yml")]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        process = self._process
        wait_until(lambda: self._answers() or process.poll() is not None, START_TIMEOUT_S, every_s=0.02)
        if not self._answers():
            log_end = self.log.read_text(errors="replace")[-2000:]
            self.stop()
            raise RuntimeError(f"The registry does not answer. The end of {self.log}:\n{log_end}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()  # it has no unsaved state
            self._process.wait()
            self._process = None

    def __enter__(self) -> Registry:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def push(self, client: docker.DockerClient, image: str, name: str = "") -> str:
        """Push an image of this engine, and return the full name to pull it by. The engine does not keep that
        name."""
        reference = f"{self.address}/{name or image}"
        repository, _, tag = reference.rpartition(":")
        client.images.get(image).tag(repository, tag)
        for line in client.images.push(repository, tag, auth_config=self.login, stream=True, decode=True):
            if "error" in line:
                raise RuntimeError(f"{reference} cannot be pushed: {line['error']}")
        client.images.remove(reference)
        return reference

    def _answers(self) -> bool:
        basic = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
        request = urllib.request.Request(
            f"http://{self.address}/v2/", headers={"Authorization": f"Basic {basic}"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _configuration(self) -> str:
        return "\n".join(
            [
                "version: 0.1",
                "log: {level: warn}",
                f"storage: {{filesystem: {{rootdirectory: '{self.folder}/data'}}}}",
                f"http: {{addr: '{self.address}', secret: tests}}",
                f"auth: {{htpasswd: {{realm: tests, path: '{self.folder}/htpasswd'}}}}",
                "",
            ]
        )


def bcrypt(password: str) -> str:
    """Return the hash of a password, in the only form that the registry accepts. Python has no crypt since
    3.13, so this calls the system's."""
    library = ctypes.CDLL(ctypes.util.find_library("crypt"))
    library.crypt.restype = ctypes.c_char_p
    salt = base64.b64encode(os.urandom(16), b"./").decode()[:21] + "."
    hashed: bytes | None = library.crypt(password.encode(), f"$2b$05${salt}".encode())
    if hashed is None or not hashed.startswith(b"$2b$"):
        raise RuntimeError("This machine's libcrypt has no bcrypt.")
    return hashed.decode()
