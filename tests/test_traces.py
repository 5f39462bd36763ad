"""Reading traces: the native format, files, errors and selections."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from trace_files import Write, trace_writer

from gpu_flows.common.discovery import summary
from gpu_flows.schedulers.traces import TraceError, formats, load, read


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return trace_writer(tmp_path)


NATIVE = "job_id,submit_time,num_gpus,duration"


# -- the native format ------------------------------------------------------------------------


def test_four_columns_are_enough(write: Write) -> None:
    [first, second] = load(write(NATIVE, "a,10,1,60", "b,12.5,4,0")).arrivals
    assert (first.job.id, first.job.submitted, first.job.gpus, first.duration_s) == ("a", 0, 1, 60)
    assert (second.job.id, second.job.submitted, second.job.gpus, second.duration_s) == ("b", 2.5, 4, 0)
    assert first.utilization == 100
    assert (first.job.may_span_nodes, second.job.may_span_nodes) == (False, True)


def test_columns_may_have_any_order_and_unknown_columns_are_ignored(write: Write) -> None:
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
    assert odd.job.memory_mb == 1, "a little memory does not become a whole device"
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
def test_error_states_line_column_value_and_expectation(
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


def test_quote_that_is_not_closed_is_found_where_it_opens(write: Write) -> None:
    rows = [f"job-{number},0,1,60" for number in range(20)]
    rows[3] = 'job-3,0,1,"60'
    with pytest.raises(TraceError, match=r"line 5, column duration: .* line 21: is a quote not closed"):
        load(write(NATIVE, *rows))
    rows[3] = '"job-3,0,1,60'
    with pytest.raises(
        TraceError, match=r"line 5 has 1 cells instead of 4. .* line 21: is a quote not closed"
    ):
        load(write(NATIVE, *rows))


def test_rows_with_too_few_cells_and_duplicate_ids_are_refused(write: Write) -> None:
    with pytest.raises(TraceError, match="line 3 has 2 cells instead of 4"):
        load(write(NATIVE, "a,0,1,60", "b,0"))
    with pytest.raises(TraceError, match="line 3: there was a job 'a' before"):
        load(write(NATIVE, "a,0,1,60", "a,5,1,60"))


def test_reading_is_lazy(write: Write) -> None:
    """A trace larger than memory can be read, because later rows are not read in advance."""
    reader = read(write(NATIVE, "a,0,1,60", "b,x,1,60"))
    assert next(reader).job.id == "a"
    with pytest.raises(TraceError, match="line 3"):
        next(reader)


# -- files ------------------------------------------------------------------------------------


def test_gzipped_trace_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(f"{NATIVE}\na,0,1,60\n".encode()))
    assert len(load(path).arrivals) == 1
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(TraceError, match="broken gzip"):
        load(path)


def test_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(b"\xef\xbb\xbf" + f"{NATIVE}\r\na,0,1,60\r\n".encode())
    assert load(path).arrivals[0].job.id == "a"


def test_files_that_are_not_traces_are_refused(write: Write, tmp_path: Path) -> None:
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


def test_every_format_has_a_description() -> None:
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


# -- selections -------------------------------------------------------------------------------


def many(write: Write) -> Path:
    """Job n of 100 arrives at 1000 + 10 n, with a deadline 50 s later; the file is not sorted."""
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
    "selection",
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
def test_invalid_selections_are_refused(write: Write, selection: dict[str, float]) -> None:
    with pytest.raises(TraceError, match="is not valid: it must be"):
        load(many(write), **selection)  # type: ignore[arg-type]


def test_error_for_a_window_without_jobs(write: Write) -> None:
    with pytest.raises(TraceError, match=r"has no jobs to run.*100 left out \(outside since and until\)"):
        load(many(write), since=5000)
