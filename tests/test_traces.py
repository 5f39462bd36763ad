"""Trace files of every format become jobs; what is wrong with one is said exactly."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_flows.common.discovery import summary
from gpu_flows.schedulers.traces import TraceError, formats, load, read
from gpu_flows.schedulers.traces.alibaba2023 import nodes

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_rows(*rows: str, name: str = "trace.csv") -> Path:
        path = tmp_path / name
        path.write_text("\n".join(rows) + "\n")
        return path

    return write_rows


NATIVE = "job_id,submit_time,num_gpus,duration"


# -- the native format ------------------------------------------------------------------------


def test_four_columns_are_enough(write: Write) -> None:
    [first, second] = load(write(NATIVE, "a,10,1,60", "b,12.5,4,0")).arrivals
    assert (first.job.id, first.job.submitted, first.job.gpus, first.duration_s) == ("a", 0, 1, 60)
    assert (second.job.id, second.job.submitted, second.job.gpus, second.duration_s) == ("b", 2.5, 4, 0)
    assert first.utilization == 100
    assert (first.job.may_span_nodes, second.job.may_span_nodes) == (False, True)


def test_columns_in_any_order_unknown_ones_ignored_and_num_gpu_will_do(write: Write) -> None:
    path = write("colour, duration ,num_gpu,job_id,submit_time", "red,60,2.0,a,0")
    [arrival] = load(path).arrivals
    assert (arrival.job.id, arrival.job.gpus, arrival.duration_s) == ("a", 2, 60)


def test_every_optional_column(write: Write) -> None:
    header = (
        f"{NATIVE},model,user,vc,priority,deadline,gpu_memory_gb,min_gpus,max_gpus,gpu_model,"
        "utilization,expected,may_span_nodes,cpus,ram_gb"
    )
    path = write(
        header,
        "a,100,2,60,bert,ann,vc1,-3,400,11,1,4,V100 | A100,35.5,70,no,8,32",
        "b,100,2,60,,,vc1,,,,,,,,,,,",
        "c,100,2,60,,,,,,0.0001,,8,,,0,TRUE,,",
    )
    full, bare, odd = load(path).arrivals
    job = full.job
    assert (job.kind, job.user, job.priority, job.deadline) == ("bert", "ann", -3, 300)
    assert (job.memory_mb, job.min_gpus, job.max_gpus) == (11 * 1024, 1, 4)
    assert (job.models, full.utilization, job.expected_s) == (("V100", "A100"), 35.5, 70)
    assert (job.may_span_nodes, job.cpus, job.ram_mb) == (False, 8, 32 * 1024)
    assert (bare.job.user, bare.job.deadline, bare.job.max_gpus) == ("vc1", None, 0)
    assert (bare.job.expected_s, bare.utilization, bare.job.may_span_nodes) == (None, 100, True)
    assert odd.job.memory_mb == 1, "a little memory is not the whole device"
    assert (odd.job.min_gpus, odd.job.max_gpus) == (2, 8), "it asks for 2 and can use up to 8"
    assert odd.job.expected_s is None


@pytest.mark.parametrize(
    ("row", "column", "expected"),
    [
        ("a,soon,1,60", "submit_time", "'soon' is not a number"),
        ("a,nan,1,60", "submit_time", "'nan' is not a number"),
        ("a,0,0,60", "num_gpus", "'0' is not a whole number of at least 1"),
        ("a,0,1.5,60", "num_gpus", "'1.5' is not a whole number of at least 1"),
        ("a,0,inf,60", "num_gpus", "'inf' is not a whole number"),
        ("a,0,,60", "num_gpus", "'' is not a whole number"),
        ("a,0,1,-1", "duration", "'-1' is not a number of at least 0"),
        ("a,0,1,inf", "duration", "'inf' is not a number of at least 0"),
        (",0,1,60", "job_id", "'' is not filled in"),
    ],
)
def test_a_bad_cell_is_named_with_line_column_value_and_what_was_expected(
    write: Write, row: str, column: str, expected: str
) -> None:
    path = write(NATIVE, "good,0,1,60", "", row)
    with pytest.raises(TraceError) as raised:
        load(path)
    message = str(raised.value)
    assert message.startswith(f"Trace {path}, line 4, column {column}: {expected}")


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("utilization", "101", "a number from 0 to 100"),
        ("gpu_memory_gb", "much", "a number of at least 0"),
        ("may_span_nodes", "maybe", "true or false"),
        ("min_gpus", "3", "at most the 2 GPUs the job asks for"),
        ("max_gpus", "1", "at least the 2 GPUs the job asks for"),
        ("deadline", "99", "after submit_time"),
        ("priority", "high", "a whole number"),
    ],
)
def test_bad_optional_cells(write: Write, column: str, value: str, expected: str) -> None:
    path = write(f"{NATIVE},{column}", f"a,100,2,60,{value}")
    with pytest.raises(TraceError, match=f"line 2, column {column}: '{value}' is not {expected}"):
        load(path)


def test_a_row_with_too_few_cells_and_one_id_twice(write: Write) -> None:
    with pytest.raises(TraceError, match="line 3 has 2 cells instead of 4"):
        load(write(NATIVE, "a,0,1,60", "b,0"))
    with pytest.raises(TraceError, match="line 3: there was a job 'a' before"):
        load(write(NATIVE, "a,0,1,60", "a,5,1,60"))


def test_reading_is_lazy(write: Write) -> None:
    """A trace larger than memory can be read: what comes later has not been looked at yet."""
    reading = read(write(NATIVE, "a,0,1,60", "b,x,1,60"))
    assert next(reading).job.id == "a"
    with pytest.raises(TraceError, match="line 3"):
        next(reading)


# -- files ------------------------------------------------------------------------------------


def test_a_zipped_trace_is_read_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(f"{NATIVE}\na,0,1,60\n".encode()))
    assert len(load(path).arrivals) == 1
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(TraceError, match="broken gzip"):
        load(path)


def test_a_spreadsheets_byte_order_mark_is_no_part_of_the_header(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(b"\xef\xbb\xbf" + f"{NATIVE}\r\na,0,1,60\r\n".encode())
    assert load(path).arrivals[0].job.id == "a"


def test_files_that_are_no_traces(write: Write, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        load(tmp_path / "missing.csv")
    with pytest.raises(TraceError, match="is empty"):
        load(write("", name="empty.csv"))
    with pytest.raises(TraceError, match=r"no known format.*job_id, submit_time, num_gpus and duration"):
        load(write("job_id,num_gpus", "a,1"))
    with pytest.raises(TraceError, match="two columns named duration"):
        load(write(f"{NATIVE},duration", "a,0,1,60,61"))
    with pytest.raises(TraceError, match="Unpack it"):
        load(tmp_path / "pai_task_table.tar.gz")
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(TraceError, match="not a table of text"):
        load(binary)
    with pytest.raises(TraceError, match="has no jobs to run"):
        load(write(NATIVE))


def test_a_format_can_be_named(write: Write) -> None:
    path = write(NATIVE, "a,0,1,60")
    assert load(path, "native").format == "native"
    with pytest.raises(TraceError, match=r"no trace format 'excel'.* There are: alibaba2023, gavel"):
        load(path, "excel")
    with pytest.raises(TraceError, match="not in the format philly"):
        load(path, "philly")
    with pytest.raises(TraceError, match="does not take these options"):
        load(path, colour="red")


def test_every_format_says_in_a_line_what_it_is() -> None:
    assert set(formats()) >= {
        "native",
        "philly",
        "pai",
        "pai2020",
        "alibaba2023",
        "gavel",
        "tiresias",
        "muri",
    }
    assert all(summary(each).endswith(".") and len(summary(each)) < 110 for each in formats().values())


# -- choices ----------------------------------------------------------------------------------


def many(write: Write) -> Path:
    """Job n of 100 arrives at 1000 + 10 n, and must be done 50 s later; the file is in no order."""
    rows = [f"j{n:02d},{1000 + 10 * n},1,60,{1050 + 10 * n}" for n in range(100)]
    return write(f"{NATIVE},deadline", *rows[50:], *rows[:50])


def test_arrival_order_from_second_zero(write: Write) -> None:
    trace = load(many(write))
    assert [arrival.job.id for arrival in trace.arrivals] == [f"j{n:02d}" for n in range(100)]
    assert [arrival.job.submitted for arrival in trace.arrivals] == [10.0 * n for n in range(100)]
    assert [arrival.job.deadline for arrival in trace.arrivals] == [50 + 10.0 * n for n in range(100)]


def test_a_window_a_limit_and_a_heavier_load(write: Write) -> None:
    trace = load(many(write), since=100, until=500, limit=5, scale_load=4)
    assert [arrival.job.id for arrival in trace.arrivals] == ["j10", "j11", "j12", "j13", "j14"]
    assert [arrival.job.submitted for arrival in trace.arrivals] == [0, 2.5, 5, 7.5, 10]
    assert [arrival.job.deadline for arrival in trace.arrivals] == [50, 52.5, 55, 57.5, 60]
    assert trace.skipped == {"outside since and until": 60, "over the limit": 35}
    assert str(trace).endswith(
        "(native): 5 jobs; 60 left out (outside since and until); 35 left out (over the limit)"
    )


def test_a_sample_is_seeded_and_in_order(write: Write) -> None:
    path = many(write)

    def sample(size: float, seed: int = 0) -> list[str]:
        return [arrival.job.id for arrival in load(path, sample=size, seed=seed).arrivals]

    assert len(sample(0.25)) == 25
    assert len(sample(25)) == len(sample(25.0)) == 25
    assert len(sample(1)) == 1
    assert len(sample(1.0)) == len(sample(5000)) == 100
    assert sample(25) == sample(25) == sorted(sample(25)) != sample(25, seed=1)
    assert load(path, sample=25).skipped == {"not in the sample": 75}


@pytest.mark.parametrize(
    "choice",
    [
        {"sample": 0},
        {"sample": 2.5},
        {"sample": float("nan")},
        {"scale_load": 0},
        {"since": -1},
        {"since": 5, "until": 5},
        {"limit": 0},
    ],
)
def test_invalid_selections_are_refused(write: Write, choice: dict[str, float]) -> None:
    with pytest.raises(TraceError, match="is not valid: it must be"):
        load(many(write), **choice)  # type: ignore[arg-type]


def test_a_window_without_jobs_says_so(write: Write) -> None:
    with pytest.raises(TraceError, match=r"has no jobs to run.*100 left out \(outside since and until\)"):
        load(many(write), since=5000)


# -- public formats ---------------------------------------------------------------------------


def test_philly_dates_count_from_the_first_and_cpu_jobs_are_counted(write: Write) -> None:
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


def test_philly_names_a_bad_date(write: Write) -> None:
    header = "timestamp,duration,num_gpus,gpu_time,cluster"
    with pytest.raises(TraceError, match="line 3, column timestamp: '' is not a date"):
        load(write(header, "2017-10-09 07:01:55,66.0,1,66.0,x", ",66.0,1,66.0,x"))


def test_pai_window(write: Write) -> None:
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


def test_gavel_needs_good_throughputs(tmp_path: Path) -> None:
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


def test_pai2020_with_its_job_table_knows_users_and_submission(write: Write) -> None:
    jobs = write("j2,8cb3,carl,Failed,1739150.0,1739300.0", name="jobs.csv")
    first, second = load(write(*PAI_ROWS), job_table=jobs).arrivals
    assert (first.job.id, first.job.user, first.job.submitted) == ("j2/worker", "carl", 0)
    assert (second.job.id, second.job.user, second.job.submitted) == ("j1/tensorflow", "", 12)
