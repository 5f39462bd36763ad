"""The part of a cluster block that is about Docker: the hosts, and what containers may ask of them."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, field_validator, model_validator

from gpu_flows.schedulers.cluster.spec import DEFAULT_RACK
from gpu_flows.schedulers.model import Device, Node

LOCAL = "local"


class DockerHost(BaseModel):
    """A machine with a Docker engine. It is one node of the cluster."""

    name: str = Field(
        default=LOCAL,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$",
        title="Name",
        description="The node's name, as jobs and SQL see it.",
    )
    url: str = Field(
        default="",
        title="Address",
        description=(
            "unix:///path/docker.sock, ssh://user@machine, or tcp://machine:2376 with TLS. "
            "Empty means this machine's own engine."
        ),
    )
    tls_directory: str = Field(
        default="",
        title="TLS directory",
        description="For tcp: the folder on the worker's machine with ca.pem, cert.pem and key.pem.",
    )
    insecure: bool = Field(
        default=False,
        title="Insecure",
        description="Allow tcp without TLS. Whoever reaches that port is root on the machine.",
    )
    gpus: int = Field(
        default=0,
        ge=0,
        le=64,
        title="Declared GPUs",
        description="Devices to simulate there. 0 finds the real ones by a probe container.",
    )
    model: str = Field(
        default="GTX 1080 Ti", title="GPU model", description="What declared devices are called."
    )
    memory_gb: float = Field(
        default=11, gt=0, le=4096, title="GPU memory (GB)", description="Memory of each declared device."
    )
    rack: str = Field(default=DEFAULT_RACK, title="Rack", description="The rack it stands in.")
    gpu_access: Literal["auto", "nvidia", "cdi", "variable"] = Field(
        default="auto",
        title="GPU access",
        description=(
            "How a container is given its devices: 'nvidia' by a device request, 'cdi' by CDI names, "
            "'variable' by NVIDIA_VISIBLE_DEVICES alone; 'auto' by what the host offers."
        ),
    )

    @model_validator(mode="after")
    def _is_safe(self) -> DockerHost:
        scheme = urlsplit(self.url).scheme
        if self.url and scheme not in ("unix", "ssh", "tcp"):
            raise ValueError(f"the address {self.url!r} is none of unix://, ssh:// and tcp://")
        if scheme == "tcp" and not self.tls_directory and not self.insecure:
            raise ValueError(
                f"{self.url} is tcp without TLS: whoever reaches that port is root on the machine. Set the "
                "TLS directory (ca.pem, cert.pem, key.pem), or 'insecure' if you mean it"
            )
        return self

    @classmethod
    def of(cls, text: str) -> DockerHost:
        """From `NAME=ADDRESS`, with settings after commas: `gpu1=tcp://gpu1:2376,tls_directory=/certs,gpus=4`."""
        name, equals, rest = text.partition("=")
        url, *settings = rest.split(",")
        given = {key.strip(): value.strip() for key, _, value in (each.partition("=") for each in settings)}
        if not equals or not set(given) <= set(cls.model_fields) - {"name", "url"}:
            raise ValueError(
                f"{text!r} is not of the form NAME=ADDRESS[,SETTING=VALUE ...]; settings are "
                f"{', '.join(sorted(set(cls.model_fields) - {'name', 'url'}))}"
            )
        return cls(name=name.strip(), url=url.strip(), **given)  # type: ignore[arg-type]

    @property
    def is_here(self) -> bool:
        """Whether its files are the worker's files."""
        return not self.url or self.url.startswith("unix:")

    def declared_node(self) -> Node:
        memory_mb = round(1024 * self.memory_gb)
        devices = (
            Device(f"SIM-{self.name}-{index}", self.name, index, self.model, memory_mb)
            for index in range(self.gpus)
        )
        return Node(self.name, tuple(devices), self.rack)


class ContainerRules(BaseModel):
    """What jobs in containers may ask for. Job variables can ask for less, never for more."""

    images: list[str] = Field(
        default=["*"],
        title="Allowed images",
        description="Patterns such as 'pytorch/*' or 'registry.lab/team/*@sha256:*'. '*' allows any.",
    )
    mount_roots: list[str] = Field(
        default_factory=list,
        title="Mount roots",
        description="Folders of the hosts whose contents jobs may mount. Empty allows no mount at all.",
    )
    most_memory_gb: float = Field(
        default=0,
        ge=0,
        title="Most memory (GB)",
        description="Limit of a container that asks for none, and the most one may ask for. 0: no limit.",
    )
    most_cpus: float = Field(
        default=0,
        ge=0,
        title="Most CPUs",
        description="CPU limit of a container that asks for none, and the most one may ask for. 0: no limit.",
    )
    pids_limit: int = Field(
        default=4096, ge=16, title="Processes", description="Most processes and threads in a container."
    )
    network: str = Field(
        default="bridge",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
        title="Network",
        description="The Docker network of all containers. The host's own is not to be had.",
    )
    api_url: str = Field(
        default="",
        title="Prefect API address",
        description=(
            "Where flows in containers reach the Prefect server. Empty means the worker's own address; a "
            "localhost in it becomes host.docker.internal."
        ),
    )
    probe_image: str = Field(
        default="gpu-flows",
        title="Probe image",
        description="An image with Python 3, for the container that finds and reads a host's GPUs.",
    )
    keep_seconds: float = Field(
        default=300,
        ge=0,
        title="Keep ended containers (seconds)",
        description="How long an ended container can still be looked at before it is removed.",
    )
    lost_after_seconds: float = Field(
        default=300,
        ge=1,
        title="Lost after (seconds)",
        description="How long a host may not answer before its running jobs count as lost.",
    )

    @field_validator("network")
    @classmethod
    def _is_not_the_hosts(cls, network: str) -> str:
        if network == "host":
            raise ValueError("containers do not get the host's network; name a Docker network")
        return network
