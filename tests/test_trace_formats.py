"""The formats of public traces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trace_files import Write, trace_writer

from gpu_flows.schedulers.traces import TraceError, load, read
from gpu_flows.schedulers.traces.alibaba2023 import nodes


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return trace_writer(tmp_path)


def test_philly_dates_count_from_the_first_and_jobs_without_gpus_are_skipped(write: Write) -> None:
    path = write(
        "timestamp,duration,num_gpus,gpu_time,cluster",
        "2017-10-09 07:01:55,66.0,1,66.0,11cb48",
        "2017-10-08 07:01:50,10.0,8,80.0,6214e9",
        "2017-10-09 07:02:00,10.0,0,0.0,6214e9",
    )
    trace = load(path)
    assert trace.format == "philly"
    big, small = trace.arrivals
    assert (big.job.id, big.job.submitted, big.job.gpus, big.job.user) == ("000002", 0, 8, "6214e9")
    assert big.job.may_span_nodes
    assert (small.job.id, small.job.submitted, small.duration_s) == ("000001", 86405, 66)
    assert trace.skipped == {"asks for no GPU": 1}
    assert [arrival.job.id for arrival in read(path)] == ["000001", "000002"], "read keeps the file's order"


def test_philly_bad_date_is_reported(write: Write) -> None:
    header = "timestamp,duration,num_gpus,gpu_time,cluster"
    with pytest.raises(TraceError, match="line 3, column timestamp: '' is not a date"):
        load(write(header, "2017-10-09 07:01:55,66.0,1,66.0,x", ",66.0,1,66.0,x"))


def test_pai_fractions_of_gpus(write: Write) -> None:
    path = write(
        "job_id,user,num_cpu,num_gpu,submit_time,duration,num_inst",
        "0,ann,0,1,0,79,1",
        "1,ann,6,0.5,5,20,1",
        "2,bob,6,0.25,6,20,4",
        "3,bob,6,1.5,7,20,2",
        "4,bob,6,0,8,20,1",
    )
    trace = load(path)
    assert trace.format == "pai"
    asks = {a.job.id: (a.job.gpus, a.job.memory_mb, a.job.cpus, a.utilization) for a in trace.arrivals}
    assert asks == {"0": (1, 0, 0, 100), "1": (1, 500, 6, 50), "2": (4, 250, 6, 25), "3": (4, 0, 6, 100)}
    assert trace.skipped == {"asks for no GPU": 1}


PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli"
TIMED_PODS = f"{PODS},gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"


def test_alibaba2023_parts_of_devices_models_and_host_resources(write: Write) -> None:
    path = write(
        TIMED_PODS,
        "a,12000,16384,1,1000,,LS,Running,100,200,110",
        "b,6500,12288,1,460,V100M16|V100M32,LS,Failed,105,205,105",
        "c,8000,12288,2,1000,,LS,Running,106,206,106",
        "d,8000,12288,0,0,,LS,Running,106,206,106",
        "e,8000,12288,1,1000,,BE,Pending,107,207,",
    )
    trace = load(path)
    assert trace.format == "alibaba2023"
    whole, part, two = trace.arrivals
    assert (whole.job.memory_mb, whole.job.submitted, whole.duration_s) == (0, 0, 90)
    assert (whole.job.cpus, whole.job.ram_mb) == (12, 16384)
    assert (part.job.memory_mb, part.job.models, part.utilization) == (460, ("V100M16", "V100M32"), 46)
    assert part.job.cpus == 6.5
    assert (two.job.gpus, two.job.memory_mb, two.job.may_span_nodes) == (2, 0, False)
    assert trace.skipped == {"asks for no GPU": 1, "never scheduled": 1}

    packed = load(path, static=True)
    assert [arrival.job.id for arrival in packed.arrivals] == ["a", "b", "c", "e"]
    assert min(arrival.duration_s for arrival in packed.arrivals) > 20 * 365 * 86400
    with pytest.raises(TraceError, match="line 2, column deletion_time: '100' is not after scheduled_time"):
        load(write(TIMED_PODS, "a,1,1,1,1000,,LS,Running,100,100,110"))


def test_alibaba2023_lists_without_times_arrive_in_file_order(write: Write) -> None:
    trace = load(write(PODS, "z,1000,1024,1,500", "y,1000,1024,8,1000"))
    assert [(arrival.job.id, arrival.job.submitted) for arrival in trace.arrivals] == [("z", 0), ("y", 1)]


def test_alibaba2023_nodes(write: Write) -> None:
    path = write("sn,cpu_milli,memory_mib,gpu,model", "n0,64000,262144,2,P100", "n1,32000,1024,0,")
    with_gpus, without = nodes(path)
    assert (with_gpus.name, with_gpus.cpus, with_gpus.ram_mb) == ("n0", 64, 262144)
    assert [(d.id, d.node, d.index, d.model, d.memory_mb) for d in with_gpus.devices] == [
        ("n0-0", "n0", 0, "P100", 1000),
        ("n0-1", "n0", 1, "P100", 1000),
    ]
    assert without.devices == ()
    with pytest.raises(TraceError, match="there was a node 'n0' before"):
        nodes(write("sn,cpu_milli,memory_mib,gpu,model", "n0,1,1,1,T4", "n0,1,1,1,T4"))


def gavel_files(tmp_path: Path) -> tuple[Path, Path, Path]:
    new, old, speeds = tmp_path / "new.trace", tmp_path / "old.trace", tmp_path / "throughputs.json"
    new.write_text(
        "A3C\tpython3 main.py\trl\t--max-steps\t0\t1000\t1\t1\t-1.000000\t50\n"
        "LM (batch size 5)\tpython3 lm.py\tlm\t--steps\t1\t900\t2\t5\t1.5\t60.5\n"
        "LM (batch size 5)\tpython3 lm.py\tlm\t--steps\t1\t900\t16\t1\t-1.0\t61\n"
    )
    old.write_text("A3C\tpython3 main.py\t--max-steps\t0\t1000\t50.000000\t1\n")
    table = {
        "v100": {"('A3C', 1)": {"null": 10.0}, "('LM (batch size 5)', 2)": {"null": 3.0}},
        "k80": {"('A3C', 1)": {"null": 2.0}},
    }
    speeds.write_text(json.dumps(table))
    return new, old, speeds


def test_gavel_steps_become_seconds(tmp_path: Path) -> None:
    new, old, speeds = gavel_files(tmp_path)
    trace = load(new, throughputs=speeds)
    assert trace.format == "gavel"
    a3c, lm = trace.arrivals
    assert (a3c.job.kind, a3c.job.gpus, a3c.job.deadline, a3c.duration_s) == ("A3C", 1, None, 100)
    assert (lm.job.kind, lm.job.gpus, lm.duration_s) == ("LM (batch size 5)", 2, 300)
    assert (lm.job.submitted, lm.job.deadline, lm.job.priority) == (10.5, 10.5 + 1.5 * 300, 5)
    assert trace.skipped == {"no measured speed on 16 x v100": 1}
    [older] = load(old, throughputs=str(speeds), reference="k80").arrivals
    assert (older.job.kind, older.job.gpus, older.duration_s) == ("A3C", 1, 500)


def test_gavel_needs_valid_throughputs(tmp_path: Path) -> None:
    new, _, speeds = gavel_files(tmp_path)
    with pytest.raises(TraceError, match=r"counts training steps.*Give throughputs=FILE"):
        load(new)
    with pytest.raises(TraceError, match=r"have no model .h100..* They have: v100, k80"):
        load(new, throughputs=speeds, reference="h100")
    with pytest.raises(TraceError, match="are not one of Gavel's"):
        load(new, throughputs=new)
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        load(new, throughputs=tmp_path / "missing.json")


def test_tiresias_in_seconds_and_muri_in_milliseconds(write: Write) -> None:
    tiresias = load(
        write(
            "job_id,num_gpu,submit_time,iterations,model_name,duration,interval",
            "0,1,0,606,vgg19,164,30",
            "1,8,30,133,vgg11,147,23",
        )
    )
    muri = load(
        write(
            "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,"
            "resource_time_0,resource_time_1,resource_time_2,priority",
            "0,1,0,606,vgg19,4,164000,30,200,0.5,150,18,0",
            "1,8,30000,133,vgg11,4,147000,23,0,0.5,163,18,1",
        )
    )
    assert (tiresias.format, muri.format) == ("tiresias", "muri")
    for trace in (tiresias, muri):
        first, second = trace.arrivals
        assert (first.job.kind, first.duration_s, first.job.submitted) == ("vgg19", 164, 0)
        assert (second.job.gpus, second.duration_s, second.job.submitted) == (8, 147, 30)
    assert [arrival.utilization for arrival in muri.arrivals] == [75, 100]
    assert [arrival.job.priority for arrival in muri.arrivals] == [0, 1]


def test_helios(write: Write) -> None:
    path = write(
        "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue",
        "1,u1,vc1,1,4,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0",
        "2,u2,vc1,16,64,2,CANCELLED,2020-06-09 18:42:01,2020-06-09 18:42:01,2020-06-09 18:45:36,249,0",
        "3,u2,vc1,0,64,2,FAILED,2020-06-09 18:40:01,2020-06-09 18:42:01,2020-06-09 18:45:36,249,0",
    )
    trace = load(path)
    one, two = trace.arrivals
    assert (one.job.id, one.job.user, one.job.submitted, one.duration_s) == ("1", "u1", 0, 36848)
    assert (two.job.gpus, two.job.submitted, two.job.cpus) == (16, 60, 32)
    assert (one.job.may_span_nodes, two.job.may_span_nodes) == (False, True)
    assert (trace.format, trace.skipped) == ("helios", {"asks for no GPU": 1})


PAI_ROWS = (
    "j1,tensorflow,1.0,Terminated,1739162.0,1739200.0,600.0,29.296875,50.0,MISC",
    "j2,worker,4.0,Failed,1739172.0,1739300.0,400.0,16,100.0,V100",
    "j2,ps,2.0,Failed,1739172.0,1739300.0,400.0,16,,",
    "j3,worker,1.0,Running,1739172.0,,400.0,16,800.0,V100",
    "j4,worker,1.0,Waiting,,,400.0,16,800.0,V100",
)


def test_pai2020_has_no_header_and_parts_of_devices(write: Write) -> None:
    trace = load(write(*PAI_ROWS))
    part, four = trace.arrivals
    assert trace.format == "pai2020"
    assert (part.job.id, part.job.gpus, part.job.memory_mb, part.utilization) == ("j1/tensorflow", 1, 500, 50)
    assert (part.duration_s, part.job.cpus, part.job.ram_mb) == (38, 6, 30000)
    assert (four.job.id, four.job.gpus, four.job.memory_mb, four.job.submitted) == ("j2/worker", 4, 0, 10)
    assert (part.job.may_span_nodes, four.job.may_span_nodes) == (False, True)
    assert trace.skipped == {"asks for no GPU": 1, "has not ended": 1, "has not started": 1}
    headed = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type"
    assert load(write(headed, *PAI_ROWS)).arrivals == trace.arrivals


def test_pai2020_job_table_adds_users_and_submit_times(write: Write) -> None:
    jobs = write("j2,8cb3,carl,Failed,1739150.0,1739300.0", name="jobs.csv")
    first, second = load(write(*PAI_ROWS), job_table=jobs).arrivals
    assert (first.job.id, first.job.user, first.job.submitted) == ("j2/worker", "carl", 0)
    assert (second.job.id, second.job.user, second.job.submitted) == ("j1/tensorflow", "", 12)
