"""What a job may ask of its container: a request against the rules is refused, with the reason."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from gpu_flows.blocks import ContainerRules
from gpu_flows.prefect_api.container_request import build_container, split_container_command
from gpu_flows.prefect_api.job_variables import BadJobVariables, check_variable_names
from gpu_flows.runtimes.base import Container, Login, Mount, Refused
from gpu_flows.runtimes.docker.images import pull
from gpu_flows.runtimes.docker.mounts import OpenMounts, open_below, outermost_roots
from gpu_flows.runtimes.docker.rules import check_request, resolve_mount

RULES = ContainerRules(most_memory_gb=8, most_cpus=4)
NO_DEFAULTS: tuple[str, ...] = ()


def request(rules: ContainerRules = RULES, env: dict[str, str] | None = None, **variables: Any) -> Container:
    """Return the container that these job variables ask for."""
    return build_container(
        {"image": "busybox", **variables}, env or {}, ("true",), rules, files_are_here=True
    )


# -- settings without a job variable ----------------------------------------------------------

NO_JOB_VARIABLES = [
    "privileged",
    "cap_add",
    "devices",
    "device_requests",
    "pid_mode",
    "ipc_mode",
    "uts_mode",
    "userns_mode",
    "network_mode",
    "networks",
    "volumes",
    "volumes_from",
    "security_opt",
    "group_add",
    "sysctls",
    "runtime",
    "cgroup_parent",
    "container_create_kwargs",
    "extra_hosts",
    "entrypoint",
    "restart_policy",
]


@pytest.mark.parametrize("name", NO_JOB_VARIABLES)
def test_docker_settings_are_not_job_variables(name: str) -> None:
    with pytest.raises(BadJobVariables, match=name):
        check_variable_names([name], NO_DEFAULTS)


def test_a_misspelled_job_variable_gets_a_suggestion() -> None:
    with pytest.raises(BadJobVariables, match="Did you mean 'image'"):
        check_variable_names(["imege"], NO_DEFAULTS)
    check_variable_names(["image", "mounts", "env.LR", "gpus"], NO_DEFAULTS)


# -- images -----------------------------------------------------------------------------------

DIGEST = "@sha256:" + "0" * 64


@pytest.mark.parametrize(
    "image",
    [
        "",
        " ",
        "busybox ",
        "busybox latest",
        "busybox\n--privileged",
        "--privileged",
        "-v/:/host",
        "Busybox",
        "team/Image",
        "a//b",
        "/busybox",
        "busybox:",
        "busybox@sha256:short",
        "busybox@md5:" + "0" * 64,
        "../busybox",
        "busybox;reboot",
        "$(reboot)",
        "bus\0ybox",
        "x" * 600,
        "sha256:" + "0" * 64,  # an image id
        "0" * 64,
    ],
)
def test_an_invalid_image_name_is_refused(image: str) -> None:
    with pytest.raises(Refused, match="not a valid image name"):
        request(image=image)


@pytest.mark.parametrize(
    ("image", "allowed"),
    [
        ("evil", "pytorch/*"),
        ("evil/pytorch/x", "pytorch/*"),
        ("pytorch-evil/x", "pytorch/*"),
        ("evil.io/pytorch/x", "pytorch/*"),
        ("evil.io/lab/x", "registry.lab/*"),
        ("registry.lab.evil.io/x", "registry.lab/*"),
        ("registry.lab:5000/x", "registry.lab/*"),
        ("docker.io/evil/x", "docker.io/library/*"),
        ("evil/x", "docker.io/library/*"),
        ("EVIL/x", "docker.io/*"),  # Docker takes a first part in capitals for a registry
        ("localhost/x", "docker.io/*"),
        ("registry.lab/x:1", f"registry.lab/*{DIGEST}"),
        ("registry.lab/x:latest", "registry.lab/x@sha256:*"),
        (f"registry.lab/x:2.1{DIGEST}", "registry.lab/x:2.*"),  # Docker ignores a tag next to a digest
        ("registry.lab/x", "registry.lab/x:2.*"),
    ],
)
def test_an_image_that_is_not_on_the_list_is_refused(image: str, allowed: str) -> None:
    with pytest.raises(Refused, match="not on the pool's list") as refusal:
        request(ContainerRules(images=[allowed]), image=image)
    assert repr(image) in str(refusal.value)


@pytest.mark.parametrize(
    ("image", "allowed"),
    [
        ("anything/at:all", "*"),
        ("pytorch/pytorch:2.1", "pytorch/*"),
        ("pytorch/pytorch", "docker.io/pytorch/*"),
        ("ubuntu", "docker.io/library/ubuntu:latest"),
        ("ubuntu", "ubuntu:latest"),
        ("ubuntu", "ubuntu"),
        (f"registry.lab:5000/team/x{DIGEST}", "registry.lab:5000/*@sha256:*"),
        (f"registry.lab/x:2.1{DIGEST}", "registry.lab/x@sha256:*"),
        ("[::1]:5000/x", "[[]::1]:5000/*"),
        ("registry.lab/x:2.1", "registry.lab/x:2.*"),
    ],
)
def test_an_image_on_the_list_is_allowed(image: str, allowed: str) -> None:
    assert request(ContainerRules(images=[allowed]), image=image).image == image


def test_an_empty_list_allows_nothing() -> None:
    with pytest.raises(Refused, match="empty"):
        request(ContainerRules(images=[]))


# -- mounts -----------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An allowed root with a folder in it, next to folders that are not allowed."""
    (tmp_path / "data" / "set").mkdir(parents=True)
    (tmp_path / "data-evil").mkdir()
    (tmp_path / "secret").mkdir()
    return tmp_path / "data"


def request_mount(root: Path, text: str) -> Container:
    return request(
        ContainerRules(mount_roots=[str(root)]), mounts=[text.format(root=root, beside=root.parent)]
    )


RESERVED_TARGETS = (
    "/ // /proc /proc/1/root //proc /sys/fs/cgroup /dev /dev/shm "
    "/run/gpu-flows /run/gpu-flows/secrets //run/gpu-flows /run /run/"
)
REFUSED_MOUNTS = {  # by the reason
    "not under one of the pool's mount roots": [
        *("/:/host", "/etc:/mnt", "/etc/shadow:/mnt/shadow:ro", "/run:/mnt", "/proc:/mnt"),
        "/var/run/docker.sock:/var/run/docker.sock",
        *("{beside}:/mnt", "{beside}/data-evil:/mnt", "{beside}/secret:/mnt"),
    ],
    "absolute paths": [
        *("{root}/../secret:/mnt", "{root}/set/../../secret:/mnt", "data/set:/mnt", "~/set:/mnt", ".:/mnt"),
        *("{root}/set:mnt", "{root}/set:/mnt/../proc", "{root}/se\nt:/mnt"),
    ],
    "SOURCE:TARGET": ["{root}/set", ":/mnt", "{root}/set:", "{root}:/mnt:exec", "{root}:/mnt:ro:z"],
    "is reserved": [f"{{root}}/set:{target}" for target in RESERVED_TARGETS.split()],
}


@pytest.mark.parametrize(
    ("reason", "text"), [(reason, text) for reason, texts in REFUSED_MOUNTS.items() for text in texts]
)
def test_a_mount_against_the_rules_is_refused(root: Path, reason: str, text: str) -> None:
    with pytest.raises(Refused, match=reason):
        request_mount(root, text)


def test_a_refused_mount_names_the_roots(root: Path) -> None:
    with pytest.raises(Refused, match=str(root)):
        request_mount(root, "/etc:/mnt")


def test_a_link_out_of_the_root_is_refused(root: Path) -> None:
    (root / "shortcut").symlink_to("../secret")
    (root / "far").symlink_to(root / "shortcut")
    for name in ("shortcut", "far"):
        with pytest.raises(Refused, match=rf"{name}' leads to '.*secret'"):
            request_mount(root, f"{{root}}/{name}:/mnt")


def test_a_link_that_changes_after_a_check_is_refused_by_the_next(root: Path) -> None:
    mount = Mount(str(root / "now"), "/mnt")
    (root / "now").symlink_to("set")
    assert resolve_mount(mount, [str(root)], files_are_here=True).source == str(root / "set")
    (root / "now").unlink()
    (root / "now").symlink_to("/etc")
    with pytest.raises(Refused, match="leads to '/etc'"):
        resolve_mount(mount, [str(root)], files_are_here=True)


def test_pipes_sockets_and_missing_files_are_refused(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "sock"))
        for name in ("pipe", "sock"):
            with pytest.raises(Refused, match="is no directory"):
                request_mount(root, f"{{root}}/{name}:/mnt")
    with pytest.raises(Refused, match="No such file"):
        request_mount(root, "{root}/nowhere:/mnt")


def test_a_file_is_mounted_only_if_it_is_a_root(root: Path) -> None:
    (root / "file").touch()
    with pytest.raises(Refused, match="a file can be mounted only if it is a mount root"):
        request_mount(root, "{root}/file:/mnt")
    assert request_mount(root / "file", "{root}:/mnt").mounts


def test_a_directory_is_opened_without_following_links(root: Path) -> None:
    (root / "set" / "inner").mkdir(parents=True)
    opened = open_below(str(root), str(root / "set" / "inner"))
    assert os.readlink(f"/proc/self/fd/{opened}") == str(root / "set" / "inner")
    os.close(opened)
    (root / "link").symlink_to("set")
    (root / "set" / "out").symlink_to("/etc")
    for path in ("link", "link/inner", "set/out", "set/missing"):
        with pytest.raises(Refused, match="cannot be mounted"):
            open_below(str(root), str(root / path))


def test_a_root_within_another_is_not_mounted_by_its_path(root: Path) -> None:
    (root / "set").mkdir(exist_ok=True)
    assert outermost_roots([str(root / "set"), str(root), "/other/"]) == sorted([str(root), "/other"])
    opened = OpenMounts([str(root), str(root / "set")], "/nowhere.sock")
    with pytest.raises(Refused, match="does not see the worker's processes"):
        opened.to_docker(Mount(str(root / "set"), "/mnt"))
    assert opened.to_docker(Mount(str(root), "/mnt"))["Type"] == "bind"


def test_a_link_in_place_of_a_nested_root_does_not_become_a_root(root: Path, tmp_path: Path) -> None:
    """A job that has the outer root mounted puts it there."""
    (root / "shared").symlink_to("/etc")
    beside = tmp_path / "beside"  # a root that leads into another root
    beside.symlink_to(root / "shared")
    for inner in (root / "shared", beside):
        roots = [str(root), str(inner)]
        assert outermost_roots(roots) == [str(root)]
        for source in (inner, inner / "ssl"):
            with pytest.raises(Refused, match="leads to '/etc"):
                resolve_mount(Mount(str(source), "/mnt"), roots, files_are_here=True)
    (root / "shared").unlink()
    (root / "shared").symlink_to("/")
    assert outermost_roots([str(root), str(root / "shared")]) == [str(root)], "it stays a root"


def test_on_another_machine_only_the_roots_themselves_are_mounted() -> None:
    def resolve_remote(source: str) -> Mount:
        return resolve_mount(Mount(source, "/mnt"), ["/data/"], files_are_here=False)

    with pytest.raises(Refused, match="only the pool's mount roots"):  # a job could replace it
        resolve_mount(Mount("/data/in", "/mnt"), ["/data", "/data/in"], files_are_here=False)
    assert resolve_remote("/data").source == resolve_remote("//data/").source == "/data"
    for source in ("/data/set", "/data-evil", "/"):
        with pytest.raises(Refused, match="another machine"):
            resolve_remote(source)


def test_without_roots_nothing_is_mounted(root: Path) -> None:
    with pytest.raises(Refused, match="none"):
        request(mounts=[f"{root}:/mnt"])


def test_folders_under_a_root_are_allowed(root: Path) -> None:
    (root / "inside").symlink_to("set")
    for text in (
        "{root}:/data",
        "{root}/set:/data:ro",
        "{root}/inside:/run2",
    ):
        assert request_mount(root, text).mounts
    assert request_mount(root, "{root}/set:/data:ro").mounts[0].read_only
    assert not request_mount(root, "{root}/set:/data").mounts[0].read_only


# -- variables, secrets, sizes and commands ---------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_REQUIRE_CUDA",
        "NVIDIA_DISABLE_REQUIRE",
        "NVIDIA_MOFED",
        "NVIDIA_GDS",
        "NVIDIA_MIG_CONFIG_DEVICES",
        "NVIDIA_IMEX_CHANNELS",
        "GPU_FLOWS_DEVICES",
        "GPU_FLOWS_ATTEMPT_FOLDER",
    ],
)
def test_variables_that_choose_devices_are_refused(name: str) -> None:
    with pytest.raises(Refused, match=name):
        request(env={name: "all"})
    with pytest.raises(Refused, match=name):  # also as a secret
        build_container({"image": "busybox"}, {}, (), RULES, True, secrets={name: "all"})


@pytest.mark.parametrize("env", [{"": "x"}, {"A=B": "x"}, {"A": "x\0y"}, {"A\0B": "x"}])
def test_an_invalid_variable_is_refused(env: dict[str, str]) -> None:
    with pytest.raises(Refused, match="variable"):
        request(env=env)


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "a/b", "..", ".", "a b", "a\n", "-x", "é"]
)
def test_an_invalid_secret_name_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="not a valid name of a secret"):
        check_request(Container("busybox", secrets={name: "x"}), {}, "", (), RULES, True)


@pytest.mark.parametrize("field", ["memory_gb", "cpus", "shm_gb"])
@pytest.mark.parametrize("value", [-1, "-1", "nan", "inf", float("nan"), 1e12, "lots", "1; reboot", [], {}])
def test_an_invalid_amount_is_refused(field: str, value: object) -> None:
    with pytest.raises(Refused, match=field):
        request(**{field: value})


@pytest.mark.parametrize(("field", "value"), [("memory_gb", 8.1), ("cpus", 4.5), ("shm_gb", 257)])
def test_more_than_the_pool_allows_is_refused(field: str, value: float) -> None:
    with pytest.raises(Refused, match="the pool allows"):
        request(**{field: value})


@pytest.mark.parametrize("size", [float("nan"), float("inf"), -1])
def test_the_last_check_does_not_rely_on_earlier_ones(size: float) -> None:
    for container in (Container("busybox", cpus=size), Container("busybox", memory_mb=size)):  # type: ignore[arg-type]
        with pytest.raises(Refused, match="not an amount"):
            check_request(container, {}, "", (), ContainerRules(), True)


@pytest.mark.parametrize("directory", ["data", "../data", "/data/../..", "/da\0ta", "C:\\data"])
def test_a_working_directory_must_be_an_absolute_path(directory: str) -> None:
    with pytest.raises(Refused, match="working directory"):
        request(working_dir=directory)


def test_a_pull_policy_is_one_of_three() -> None:
    with pytest.raises(Refused, match="sometimes"):
        request(pull="sometimes")


def test_a_command_with_an_open_quote_is_refused() -> None:
    with pytest.raises(Refused, match="quotes"):
        split_container_command("python -c 'print(1)", "auto", 1)
    with pytest.raises(Refused, match="zero byte"):
        build_container({"image": "busybox"}, {}, ("echo", "a\0b"), RULES, True)


def test_a_request_within_the_rules_is_allowed() -> None:
    container = request(
        env={"LR": "0.1", "NVIDIA_DRIVER_CAPABILITIES": "all", "CUDA_LAUNCH_BLOCKING": "1", "EMPTY": ""},
        memory_gb="7.5",
        cpus=4,
        shm_gb=0.5,
        working_dir="/workspace",
        pull="always",
    )
    assert (container.memory_mb, container.cpus, container.shm_mb, container.pull) == (
        7680,
        4.0,
        512,
        "always",
    )
    assert request().shm_mb == 1024


@pytest.mark.parametrize(
    ("image", "registry", "is_sent"),
    [
        ("ghcr.io/team/image:1", "ghcr.io", True),
        ("ghcr.io/team/image:1", "https://GHCR.io/v2/", True),
        ("ghcr.io:443/team/image", "https://ghcr.io", True),
        ("localhost:5000/image", "http://localhost:5000", True),
        ("ubuntu", "https://index.docker.io/v1/", True),
        ("team/image", "docker.io", True),
        ("docker.io/team/image", "https://registry-1.docker.io", True),
        ("evil.example/team/image", "ghcr.io", False),
        ("evil.example/ghcr.io/image", "ghcr.io", False),
        ("ghcr.io.evil.example/image", "ghcr.io", False),
        ("ghcr.io:5000/image", "ghcr.io", False),
        ("localhost/image", "docker.io", False),
        ("EVIL/image", "docker.io", False),
    ],
)
def test_credentials_are_for_the_registry_that_their_block_names(
    image: str, registry: str, is_sent: bool
) -> None:
    sent: list[object] = []
    notes: list[str] = []

    class Api:
        def pull(self, name: str, auth_config: object, **options: object) -> list[object]:
            sent.append(auth_config)
            return []

    class Host:
        name = "host"

        def call_blocking(self, call: Callable[[Any], object], timeout_s: float) -> None:
            call(Api())

    pull(cast(Any, Host()), image, Login("user", "password", registry), lambda: True, notes.append)
    expected = {"username": "user", "password": "password", "serveraddress": registry}
    assert sent == [expected if is_sent else None]
    assert any("are not sent to" in note for note in notes) != is_sent
