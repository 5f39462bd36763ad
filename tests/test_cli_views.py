"""The commands that show a pool: queue, why, gpus and policies, mostly with a local worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line.run import HOSTILE_TEXT, expect_error, gpu_flows, gpu_flows_process
from command_line.server import FakeServer
from command_line.terminal import show_in_terminal
from command_line.worker import device, running_job, waiting_job, write_status
from nvml.standin import StandIn

from gpu_flows.schedulers.policy import PolicyError, make_policy, policies

pytest_plugins = ["command_line.fixtures", "nvml.fixtures"]
pytestmark = pytest.mark.usefixtures("own_home")

# queue, why, gpus


def test_queue_shows_waiting_jobs_with_their_reasons() -> None:
    write_status(waiting=[waiting_job(), waiting_job("next", fix="Ask for less.")], running=[running_job()])
    result = gpu_flows("queue")
    assert result.code == 0
    assert (
        "1  patient  ada      2         3  3m 20s  1st in the queue, needs 2 GPUs on one node" in result.out
    )
    assert "Ask for less." in result.out
    assert "SIM-node-1-0" not in result.out
    assert "2 waiting, 1 running in pool 'gpu', policy fifo." in result.out
    both = gpu_flows("queue", "--all").out
    assert "busy     bob      1         0  1m 05s  SIM-node-1-0" in both
    assert "patient" not in gpu_flows("queue", "--running").out


def test_queue_as_json_has_every_job() -> None:
    write_status(waiting=[waiting_job(str(n)) for n in range(60)], running=[running_job()])
    view = gpu_flows("queue", "--json").json
    assert (view["source"], view["policy"]["name"]) == ("worker", "fifo")
    assert [job["position"] for job in view["waiting"]] == list(range(1, 61))
    assert view["running"][0]["devices"] == ["SIM-node-1-0"]


def test_long_queue_is_cut_with_a_note() -> None:
    write_status(waiting=[waiting_job(f"job-{n}") for n in range(60)])
    printed = gpu_flows("queue").out
    assert "job-49" in printed
    assert "job-50" not in printed
    assert "10 more" in printed
    assert "job-59" in gpu_flows("queue", "--limit", "0").out


def test_queue_shows_that_the_policy_failed() -> None:
    write_status(policy={"name": "mine", "options": {}, "serving": "fifo", "error": "It answered nonsense."})
    printed = gpu_flows("queue").out
    assert "policy mine (failed, fifo decides)" in printed
    assert "It answered nonsense." in printed


def test_old_status_is_ignored() -> None:
    write_status(at=0.0, waiting=[waiting_job()])
    assert gpu_flows("queue").code == 1  # the command turns to the server, and none answers


def test_names_are_escaped() -> None:
    write_status(
        waiting=[waiting_job(HOSTILE_TEXT, user=HOSTILE_TEXT, why=HOSTILE_TEXT)],
        running=[running_job(HOSTILE_TEXT)],
        devices=[device(jobs=[HOSTILE_TEXT], model=HOSTILE_TEXT)],
    )
    for words in (["queue", "--all"], ["gpus"], ["why", HOSTILE_TEXT]):
        printed = gpu_flows(*words).out
        assert "\x1b" not in printed
        assert "\u202e" not in printed
        assert "x\\x1b[2J[red]\\u202eevil" in printed, "escaped, and no markup"
    assert "\x1b" not in expect_error(gpu_flows("why", f"nobody{HOSTILE_TEXT}"), code=1)


@pytest.mark.parametrize("run", ["patient", "11111111", "11111111-aaaa-4aaa-8aaa-000000000001"])
def test_why_explains_a_waiting_run(run: str) -> None:
    write_status(waiting=[waiting_job(fix="Ask for less.")], running=[running_job()])
    found = gpu_flows("why", run, "--json").json
    assert (found["run"], found["state"], found["place"]) == ("patient", "waiting", 1)
    assert (found["reason"], found["fix"]) == ("capacity", "Ask for less.")
    assert found["ui"].endswith("/runs/flow-run/11111111-aaaa-4aaa-8aaa-000000000001")
    assert "needs 2 GPUs on one node" in gpu_flows("why", run).out


def test_why_and_queue_show_what_was_predicted_and_what_was_stated() -> None:
    memory = {"value": 9421.0, "upper": 10342.0, "how": "history", "detail": "3 runs"}
    stated = {"value": 1500.0, "upper": 1500.0, "how": "stated", "detail": ""}
    write_status(waiting=[waiting_job(memory=memory, time=stated)], running=[running_job()])
    printed = gpu_flows("why", "patient").out
    assert "9.2 GB per device (predicted from earlier jobs, at most 10.1 GB per device)" in printed
    assert "25m 00s (stated)" in printed
    assert gpu_flows("why", "patient", "--json").json["memory"] == memory
    queue = gpu_flows("queue").out
    assert "~10.1 GB  25m 00s" in queue
    assert "~ marks what is predicted" in queue
    assert gpu_flows("queue", "--json").json["waiting"][0]["time"]["how"] == "stated"
    write_status(waiting=[waiting_job(time=stated)])
    assert "~" not in gpu_flows("queue").out


def test_why_shows_the_devices_of_a_running_job() -> None:
    write_status(running=[running_job()])
    found = gpu_flows("why", "busy", "--json").json
    assert (found["state"], found["devices"], found["attempt"]) == ("running", ["SIM-node-1-0"], 1)


def test_why_and_queue_show_the_progress_of_a_running_job() -> None:
    progress = {"fraction": 0.45, "remaining_s": 180.0, "upper_s": 240.0, "source": "tqdm"}
    write_status(running=[running_job(progress=progress)], devices=[device()])
    assert gpu_flows("why", "busy", "--json").json["progress"] == progress
    assert "45% done, about 3m 00s left, probably within 4m 00s (tqdm)" in gpu_flows("why", "busy").out
    assert "3m 00s left" in gpu_flows("queue", "--running").out


def test_ambiguous_id_prefix_is_an_error() -> None:
    write_status(waiting=[waiting_job("a"), waiting_job("b", id="11111111-aaaa-4aaa-8aaa-000000000009")])
    assert "Give more of the id" in expect_error(gpu_flows("why", "11111111"))


def test_newest_run_of_a_name_is_explained() -> None:
    newer = waiting_job("twin", id="33333333-aaaa-4aaa-8aaa-000000000003", submitted=2e9)
    write_status(waiting=[waiting_job("twin"), newer])
    assert gpu_flows("why", "twin", "--json").json["id"] == newer["id"]


def test_gpus_shows_the_readings_of_the_worker() -> None:
    silent = {"utilization": None, "memory_used_mb": None, "power_w": None, "temperature_c": None}
    sick = device(index=1, healthy=False, detail="Xid 79: GPU has fallen off the bus", jobs=[], **silent)
    write_status(devices=[device(), sick])
    printed = gpu_flows("gpus").out.splitlines()
    assert " ".join(printed[1].split()) == "node-1 0 GTX 1080 Ti 87% 5.5 / 11 GB 201 W 66 C ok busy"
    assert " ".join(printed[2].split()).endswith("- - / 11 GB - - Xid 79: GPU has fallen off the bus -")
    assert gpu_flows("gpus", "--json").json["source"] == "worker"


def test_gpus_shows_racks_and_links_where_there_are_any() -> None:
    def placed(index: int, rack: str, *links: tuple[str, list[int]]) -> dict[str, Any]:
        return device(index=index, rack=rack, links=[{"link": link, "devices": of} for link, of in links])

    near = ("NVLink", [0, 1]), ("NUMA", [0, 1, 2])
    write_status(devices=[placed(0, "rack-1", *near), placed(2, "rack-1", near[1]), placed(3, "default")])
    lines = [" ".join(line.split()) for line in gpu_flows("gpus").out.splitlines()]
    assert lines[0].split()[3] == "place"
    assert lines[1].startswith("node-1 0 GTX 1080 Ti rack-1 NVLink 0-1 87%")
    assert lines[2].startswith("node-1 2 GTX 1080 Ti rack-1 NUMA 0-2 87%")
    assert lines[3].startswith("node-1 3 GTX 1080 Ti 87%")
    shown = show_in_terminal("gpus")
    assert max(map(len, shown.splitlines())) <= 80
    assert "rack-1 NVLink 0-1" in shown
    assert "busy" in shown.splitlines()[1], "its job is shown in full"
    write_status(devices=[placed(0, "default")])
    assert "place" not in gpu_flows("gpus").out


def test_gpus_without_a_worker_reads_the_driver(nvml: StandIn) -> None:
    nvml.add_gpu(uuid="GPU-a", name="NVIDIA A100", memory="40960 2048", utilization=37)
    library = str(Path(nvml.library).parent)
    found = gpu_flows_process("gpus", "--json", env={**os.environ, "LD_LIBRARY_PATH": library}).json
    assert found["source"] == "nvml"
    [gpu] = found["devices"]
    assert (gpu["id"], gpu["model"], gpu["utilization"]) == ("GPU-a", "NVIDIA A100", 37)


def test_gpus_without_worker_and_driver_shows_declared_devices(fake: FakeServer) -> None:
    nodes = [{"count": 2, "gpus": 2, "model": "V100", "memory_gb": 16.0, "rack_size": 1, "links": "nvlink:2"}]
    fake.answers["/work_pools/gpu"] = 200, {"base_job_template": {}}
    path = "/block_types/slug/gpu-cluster/block_documents/name/default"
    fake.answers[path] = 200, {"data": {"devices": "declared", "nodes": nodes}}
    found = gpu_flows("gpus", "--json").json
    assert found["source"] == "declared"
    assert [each["id"] for each in found["devices"]][1:3] == ["SIM-node-1-1", "SIM-node-2-0"]
    assert [each["rack"] for each in found["devices"]] == ["rack-1", "rack-1", "rack-2", "rack-2"]
    assert found["devices"][0]["links"] == [{"link": "NVLink", "devices": [0, 1]}]


def test_gpus_without_any_device_is_an_error_with_the_reason() -> None:
    error = expect_error(gpu_flows("gpus"), code=1)
    assert "NVML" in error
    assert "prefect worker start --pool gpu" in error


# policies


def test_policies_are_listed_with_rules_options_and_bounds() -> None:
    write_status(policy={"name": "round_robin", "options": {}, "serving": "round_robin", "error": ""})
    listed = {each["name"]: each for each in gpu_flows("policies", "--json").json["policies"]}
    assert set(listed) == set(policies())
    assert [name for name, each in listed.items() if each["in_force"]] == ["round_robin"]
    options = {each["name"]: each for each in listed["round_robin"]["options"]}
    assert options["utilization_threshold"]["allowed"] == "number, > 0, <= 100"
    assert options["sharing"]["allowed"] == "exclusive | shared"
    assert options["wait_for_turn"]["default"] is False
    printed = gpu_flows("policies").out
    assert "round_robin (in force)" in printed
    assert policies()["fifo"].rule() in printed


def test_policies_are_listed_without_a_worker() -> None:
    result = gpu_flows("policies")
    assert result.code == 0
    assert "(in force)" not in result.out


@pytest.mark.parametrize(
    ("name", "options"),
    [("lifo", {}), ("os:system", {}), ("fifo", {"nope": 1}), ("fifo", {"utilization_threshold": 900})],
)
def test_policy_set_reports_the_error_of_the_registry(name: str, options: dict[str, Any]) -> None:
    words = [word for key, value in options.items() for word in ("--option", f"{key}={value}")]
    with pytest.raises(PolicyError) as complaint:
        make_policy(name, options)
    assert str(complaint.value) in expect_error(gpu_flows("policy", "set", name, *words))


def test_watch_prints_updates_until_interrupted() -> None:
    status = write_status(devices=[device()])
    watching = subprocess.Popen(
        [sys.executable, "-m", "gpu_flows.cli", "gpus", "--watch", "--json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    seen = []
    for busy in (10.0, 20.0):
        write_status(devices=[device(utilization=busy)])
        while True:
            found = json.loads(watching.stdout.readline())
            if found["devices"][0]["utilization"] == busy:
                seen.append(busy)
                break
    watching.send_signal(2)
    assert seen == [10.0, 20.0]
    assert watching.wait() == 0
    assert status.pool == "gpu"
