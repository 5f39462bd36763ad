"""The Docker part of the GPU Cluster block: the hosts, and what jobs in containers may request."""

from __future__ import annotations

import socket
from typing import Literal
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, field_validator, model_validator

from gpu_flows.common.forms import StrictForm
from gpu_flows.schedulers.cluster.device_links import parse_links
from gpu_flows.schedulers.cluster.spec import NodeGroup
from gpu_flows.schedulers.model import DEFAULT_RACK, Node

LOCAL = "local"


class DockerHost(StrictForm):
    """A machine with a Docker engine. It is one node of the cluster."""

    name: str = Field(default=LOCAL, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")
    """The node's name, as in job variables and SQL."""

    url: str = Field(default="", title="Address")
    """unix:///path/docker.sock, ssh://user@machine, or tcp://machine:2376 with TLS. Empty means this
    machine's own engine."""

    tls_directory: str = Field(default="", title="TLS directory")
    """For tcp: the folder on the worker's machine with ca.pem, cert.pem and key.pem."""

    insecure: bool = False
    """Allow tcp without TLS. Anyone who can reach that port is root on the machine."""

    gpus: int = Field(default=0, ge=0, le=64, title="Declared GPUs")
    """Devices to simulate there. 0 finds the real ones with a probe container."""

    model: str = Field(default="GTX 1080 Ti", title="GPU model")
    """The model name of declared devices."""

    memory_gb: float = Field(default=11, gt=0, le=4096, title="GPU memory (GB)")
    """Memory of each declared device."""

    rack: str = DEFAULT_RACK
    """The rack of the machine."""

    links: str = ""
    """Which declared devices are linked, such as 'nvlink:2, numa:4'. The links of real ones are read from
    the driver."""

    address: str = Field(default="", title="Address for jobs")
    """The name or IP address under which jobs on other machines reach this one. Empty means the machine in
    the address above."""

    gpu_access: Literal["auto", "nvidia", "cdi", "variable"] = "auto"
    """How a container gets its devices: 'nvidia' by a device request, 'cdi' by CDI names, 'variable' by
    NVIDIA_VISIBLE_DEVICES alone; 'auto' by what the host offers."""

    @model_validator(mode="after")
    def _check_address(self) -> DockerHost:
        scheme = urlsplit(self.url).scheme
        if self.url and scheme not in ("unix", "ssh", "tcp"):
            raise ValueError(f"the address {self.url!r} is none of unix://, ssh:// and tcp://")
        if scheme == "tcp" and not self.tls_directory and not self.insecure:
            raise ValueError(
                f"{self.url} is tcp without TLS: anyone who can reach that port is root on the machine. Set "
                "the TLS directory (ca.pem, cert.pem, key.pem), or 'insecure' to allow it"
            )
        if self.gpus:
            parse_links(self.links, self.gpus)
        return self

    @classmethod
    def of(cls, text: str) -> DockerHost:
        """Parse `NAME=ADDRESS[,SETTING=VALUE ...]`, such as `gpu1=tcp://gpu1:2376,tls_directory=/certs`."""
        name, equals, rest = text.partition("=")
        url, *settings = rest.split(",")
        pairs = (setting.partition("=") for setting in settings)
        values = {key.strip(): value.strip() for key, _, value in pairs}
        allowed = set(cls.model_fields) - {"name", "url"}
        if not equals or not set(values) <= allowed:
            raise ValueError(
                f"{text!r} is not of the form NAME=ADDRESS[,SETTING=VALUE ...]; settings are "
                f"{', '.join(sorted(allowed))}"
            )
        return cls(name=name.strip(), url=url.strip(), **values)  # type: ignore[arg-type]

    @property
    def is_here(self) -> bool:
        """Whether the engine is on the worker's machine and sees the same files."""
        return not self.url or self.url.startswith("unix:")

    @property
    def job_address(self) -> str:
        """Where jobs on other machines reach this one."""
        return self.address or urlsplit(self.url).hostname or socket.gethostname()

    def declared_node(self) -> Node:
        """Return the node with its declared devices."""
        memory_mb = round(1024 * self.memory_gb)
        kind = NodeGroup(1, self.gpus, self.model, memory_mb, links=self.links)
        return kind.make_node(self.name, self.rack)


class ContainerRules(StrictForm):
    """What jobs in containers may request. Job variables can request less, never more."""

    model_config = ConfigDict(title="Containers")

    images: list[str] = Field(default=["*"], title="Allowed images")
    """Names of images. An asterisk stands for any characters; an asterisk alone allows every image."""

    mount_roots: list[str] = Field(default_factory=list)
    """Folders of the hosts whose contents jobs may mount. Empty allows no mounts."""

    most_memory_gb: float = Field(default=0, ge=0, title="Most memory (GB)")
    """Limit of a container that requests none, and the most a container may request. 0 means no limit."""

    most_cpus: float = Field(default=0, ge=0, title="Most CPUs")
    """CPU limit of a container that requests none, and the most one may request. 0 means no limit."""

    pids_limit: int = Field(default=4096, ge=16, title="Processes")
    """Most processes and threads in a container."""

    network: str = Field(default="bridge", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """The Docker network of all containers. The host's own network is not allowed."""

    api_url: str = Field(default="", title="Prefect API address")
    """Where flows in containers reach the Prefect server. Empty means the worker's own address; a localhost
    in it becomes host.docker.internal."""

    probe_image: str = "gpu-flows"
    """An image with Python 3, for the container that finds and samples a host's GPUs."""

    keep_seconds: float = Field(default=300, ge=0, title="Keep ended containers (seconds)")
    """How long an ended container can be inspected before it is removed."""

    lost_after_seconds: float = Field(default=300, ge=1, title="Lost after (seconds)")
    """How long a host may not answer before its running jobs count as lost."""

    @field_validator("network")
    @classmethod
    def _check_network(cls, network: str) -> str:
        if network == "host":
            raise ValueError("containers do not get the host's network; name a Docker network")
        return network
