"""What a job may ask of a container: a hostile wish is refused, with the reason, before Docker hears it."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from gpu_flows.blocks import ContainerRules
from gpu_flows.prefect_api.container_request import command_line, container_of
from gpu_flows.prefect_api.job_variables import BadAsk, check_names
from gpu_flows.runtimes.base import Container, Mount, Refused
from gpu_flows.runtimes.docker.rules import check_request, resolve_mount

RULES = ContainerRules(most_memory_gb=8, most_cpus=4)
NO_OFFERS: tuple[str, ...] = ()


def ask(rules: ContainerRules = RULES, env: dict[str, str] | None = None, **variables: Any) -> Container:
    """The container that these job variables ask for."""
    asked = {"image": "busybox", **variables}
    return container_of(asked, env or {}, ("true",), rules, files_are_here=True)


# -- wishes that have no name -----------------------------------------------------------------

UNHEARD_OF = [
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
    "user",
    "group_add",
    "sysctls",
    "runtime",
    "cgroup_parent",
    "container_create_kwargs",
    "extra_hosts",
    "entrypoint",
    "restart_policy",
]


@pytest.mark.parametrize("name", UNHEARD_OF)
def test_what_no_job_may_have_has_no_job_variable(name: str) -> None:
    with pytest.raises(BadAsk, match=name):
        check_names([name], NO_OFFERS)


def test_a_slip_is_told_from_a_wish() -> None:
    with pytest.raises(BadAsk, match="Did you mean 'image'"):
        check_names(["imege"], NO_OFFERS)
    check_names(["image", "mounts", "env.LR", "gpus"], NO_OFFERS)


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
        "sha256:" + "0" * 64,  # an image by its number, whatever it is called
        "0" * 64,
    ],
)
def test_what_is_no_name_of_an_image_is_refused(image: str) -> None:
    with pytest.raises(Refused, match="not a valid image name"):
        ask(image=image)


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
        (f"registry.lab/x:2.1{DIGEST}", "registry.lab/x:2.*"),  # beside a digest the tag means nothing
        ("registry.lab/x", "registry.lab/x:2.*"),
    ],
)
def test_an_image_off_the_list_is_refused(image: str, allowed: str) -> None:
    with pytest.raises(Refused, match="not on the pool's list") as refusal:
        ask(ContainerRules(images=[allowed]), image=image)
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
def test_an_image_on_the_list_passes(image: str, allowed: str) -> None:
    assert ask(ContainerRules(images=[allowed]), image=image).image == image


def test_an_empty_list_allows_nothing() -> None:
    with pytest.raises(Refused, match="empty"):
        ask(ContainerRules(images=[]))


# -- mounts -----------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An allowed root with a folder in it, and much beside it that is not allowed."""
    (tmp_path / "data" / "set").mkdir(parents=True)
    (tmp_path / "data-evil").mkdir()
    (tmp_path / "secret").mkdir()
    return tmp_path / "data"


def mount(root: Path, text: str) -> Container:
    return ask(ContainerRules(mount_roots=[str(root)]), mounts=[text.format(root=root, beside=root.parent)])


@pytest.mark.parametrize(
    "text",
    [
        "/:/host",
        "/etc:/mnt",
        "/etc/shadow:/mnt/shadow:ro",
        "/var/run/docker.sock:/var/run/docker.sock",
        "/run:/mnt",
        "/proc:/mnt",
        "{beside}:/mnt",  # the folder that the root is in
        "{beside}/data-evil:/mnt",  # begins like the root
        "{beside}/secret:/mnt",
    ],
)
def test_what_is_not_under_a_root_is_not_mounted(root: Path, text: str) -> None:
    with pytest.raises(Refused, match="not under one of the pool's mount roots") as refusal:
        mount(root, text)
    assert str(root) in str(refusal.value)


@pytest.mark.parametrize(
    "text",
    [
        "{root}/../secret:/mnt",
        "{root}/set/../../secret:/mnt",
        "data/set:/mnt",
        "~/set:/mnt",
        ".:/mnt",
        "{root}/set:mnt",
        "{root}/set:/mnt/../proc",
        "{root}/se\nt:/mnt",
    ],
)
def test_paths_that_are_not_plain_are_refused(root: Path, text: str) -> None:
    with pytest.raises(Refused, match="absolute paths"):
        mount(root, text)


@pytest.mark.parametrize(
    "text", ["{root}/set", ":/mnt", "{root}/set:", "{root}:/mnt:exec", "{root}:/mnt:ro:z"]
)
def test_what_is_no_mount_is_refused(root: Path, text: str) -> None:
    with pytest.raises(Refused, match="SOURCE:TARGET"):
        mount(root, text)


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "//",
        "/proc",
        "/proc/1/root",
        "//proc",
        "/sys/fs/cgroup",
        "/dev",
        "/dev/shm",
        "/run/gpu-flows",
        "/run/gpu-flows/secrets",
        "//run/gpu-flows",
        "/run",
        "/run/",
    ],
)
def test_nothing_is_mounted_over_what_is_the_containers_own(root: Path, target: str) -> None:
    with pytest.raises(Refused, match="is reserved"):
        mount(root, f"{{root}}/set:{target}")


def test_a_link_out_of_the_root_is_followed_and_refused(root: Path) -> None:
    (root / "shortcut").symlink_to("../secret")
    (root / "far").symlink_to(root / "shortcut")
    for name in ("shortcut", "far"):
        with pytest.raises(Refused, match=rf"{name}' leads to '.*secret'"):
            mount(root, f"{{root}}/{name}:/mnt")


def test_a_link_that_is_bent_after_the_check_is_caught_by_the_next(root: Path) -> None:
    wish = Mount(str(root / "now"), "/mnt")
    (root / "now").symlink_to("set")
    assert resolve_mount(wish, [str(root)], files_are_here=True).source == str(root / "set")
    (root / "now").unlink()
    (root / "now").symlink_to("/etc")
    with pytest.raises(Refused, match="leads to '/etc'"):
        resolve_mount(wish, [str(root)], files_are_here=True)


def test_pipes_sockets_and_what_is_not_there_are_refused(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "sock"))
        for name in ("pipe", "sock"):
            with pytest.raises(Refused, match="neither a directory nor a regular file"):
                mount(root, f"{{root}}/{name}:/mnt")
    with pytest.raises(Refused, match="No such file"):
        mount(root, "{root}/nowhere:/mnt")


def test_on_another_machine_only_the_roots_themselves_are_mounted() -> None:
    def there(source: str) -> Mount:
        return resolve_mount(Mount(source, "/mnt"), ["/data/"], files_are_here=False)

    assert there("/data").source == there("//data/").source == "/data"
    for source in ("/data/set", "/data-evil", "/"):
        with pytest.raises(Refused, match="another machine"):
            there(source)


def test_without_roots_nothing_is_mounted(root: Path) -> None:
    with pytest.raises(Refused, match="none"):
        ask(mounts=[f"{root}:/mnt"])


def test_folders_and_files_under_a_root_are_mounted(root: Path) -> None:
    (root / "set" / "file").touch()
    (root / "inside").symlink_to("set")
    for text in (
        "{root}:/data",
        "{root}/set:/data:ro",
        "{root}/set/file:/etc/config:ro",
        "{root}/inside:/run2",
    ):
        assert mount(root, text).mounts
    assert mount(root, "{root}/set:/data:ro").mounts[0].read_only
    assert not mount(root, "{root}/set:/data").mounts[0].read_only


# -- variables, secrets, sizes, words ---------------------------------------------------------


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
def test_a_job_does_not_choose_its_devices(name: str) -> None:
    with pytest.raises(Refused, match=name):
        ask(env={name: "all"})
    with pytest.raises(Refused, match=name):  # nor by way of a secret
        container_of({"image": "busybox"}, {}, (), RULES, True, secrets={name: "all"})


@pytest.mark.parametrize("env", [{"": "x"}, {"A=B": "x"}, {"A": "x\0y"}, {"A\0B": "x"}])
def test_what_is_no_variable_is_refused(env: dict[str, str]) -> None:
    with pytest.raises(Refused, match="variable"):
        ask(env=env)


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "a/b", "..", ".", "a b", "a\n", "-x", "é"]
)
def test_a_secrets_name_is_no_path(name: str) -> None:
    with pytest.raises(Refused, match="not a valid name of a secret"):
        check_request(Container("busybox", secrets={name: "x"}), {}, "", (), RULES, True)


@pytest.mark.parametrize("field", ["memory_gb", "cpus", "shm_gb"])
@pytest.mark.parametrize("value", [-1, "-1", "nan", "inf", float("nan"), 1e12, "lots", "1; reboot", [], {}])
def test_no_sensible_number_is_refused(field: str, value: object) -> None:
    with pytest.raises(Refused, match=field):
        ask(**{field: value})


@pytest.mark.parametrize(("field", "value"), [("memory_gb", 8.1), ("cpus", 4.5), ("shm_gb", 257)])
def test_more_than_the_pool_allows_is_refused(field: str, value: float) -> None:
    with pytest.raises(Refused, match="the pool allows"):
        ask(**{field: value})


@pytest.mark.parametrize("size", [float("nan"), float("inf"), -1])
def test_the_last_check_does_not_rely_on_the_first(size: float) -> None:
    for container in (Container("busybox", cpus=size), Container("busybox", memory_mb=size)):  # type: ignore[arg-type]
        with pytest.raises(Refused, match="not an amount"):
            check_request(container, {}, "", (), ContainerRules(), True)


@pytest.mark.parametrize("directory", ["data", "../data", "/data/../..", "/da\0ta", "C:\\data"])
def test_a_working_directory_is_an_absolute_path(directory: str) -> None:
    with pytest.raises(Refused, match="working directory"):
        ask(working_dir=directory)


def test_a_pull_policy_is_one_of_three() -> None:
    with pytest.raises(Refused, match="sometimes"):
        ask(pull="sometimes")


def test_a_command_with_an_open_quote_is_refused() -> None:
    with pytest.raises(Refused, match="quotes"):
        command_line("python -c 'print(1)", "auto", 1)
    with pytest.raises(Refused, match="zero byte"):
        container_of({"image": "busybox"}, {}, ("echo", "a\0b"), RULES, True)


def test_harmless_wishes_pass() -> None:
    asked = ask(
        env={"LR": "0.1", "NVIDIA_DRIVER_CAPABILITIES": "all", "CUDA_LAUNCH_BLOCKING": "1", "EMPTY": ""},
        memory_gb="7.5",
        cpus=4,
        shm_gb=0.5,
        working_dir="/workspace",
        pull="always",
    )
    assert (asked.memory_mb, asked.cpus, asked.shm_mb, asked.pull) == (7680, 4.0, 512, "always")
    assert ask().shm_mb == 1024
