"""The dashboard's pages and fragments: what they show of a status, and what they refuse."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from analytics_history import T
from command_line.run import HOSTILE_TEXT
from command_line.worker import device, running_job, waiting_job, write_status
from report_history import POOL, record_live
from starlette.testclient import TestClient

from gpu_flows.analytics.query_runner import run_query
from gpu_flows.common.retry import wait_until
from gpu_flows.config.paths import home, pool_folder
from gpu_flows.dashboard import pool_watch, questions, simulating
from gpu_flows.dashboard.answers import BUSY, MOST_PENDING, Answers
from gpu_flows.dashboard.app import VIEWS, Dashboard
from gpu_flows.dashboard.pages import format_clock
from gpu_flows.dashboard.views import history
from gpu_flows.dashboard.views.look import Settings
from gpu_flows.dashboard.views.policies import OVER
from gpu_flows.forecasting.state_file import state_path
from gpu_flows.schedulers.cluster.spec import declare
from gpu_flows.schedulers.forecast.pool_state import PoolState
from gpu_flows.schedulers.mirror import Held
from gpu_flows.schedulers.model import NO_PROGRESS, Job
from gpu_flows.schedulers.prediction.estimate import Estimate

pytest_plugins = ["command_line.fixtures"]
pytestmark = pytest.mark.usefixtures("own_home")

URL = "http://127.0.0.1:8321"
EVIL = f'<script>alert(1)</script>"onload="x{HOSTILE_TEXT}\u202e'


@pytest.fixture(autouse=True)
def patient_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A status stays that of now, however slow this machine is."""
    monkeypatch.setattr(pool_watch, "LATE_S", 600.0)


@pytest.fixture
def open_dashboard(tmp_path: Path) -> Iterator[Callable[..., TestClient]]:
    opened: list[TestClient] = []

    def make(database: Path = tmp_path / "none.duckdb", pool: str = "gpu") -> TestClient:
        settings = Settings(pool, database, lambda run: f"http://127.0.0.1:4200/runs/flow-run/{run}")
        opened.append(TestClient(Dashboard(settings).app(), base_url=URL))
        return opened[-1].__enter__()

    yield make
    for client in opened:
        client.__exit__(None, None, None)


@pytest.fixture
def client(open_dashboard: Callable[..., TestClient]) -> TestClient:
    return open_dashboard()


class Rows(HTMLParser):
    """The texts of the rows of the first table."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._is_in_cell = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag == "td":
            self.rows[-1].append("")
            self._is_in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._is_in_cell = self._is_in_cell and tag != "td"

    def handle_data(self, data: str) -> None:
        if self._is_in_cell:
            self.rows[-1][-1] += data


def fragments(client: TestClient, address: str) -> dict[str, str]:
    answer = client.get(f"/fragments/{address}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def column(client: TestClient, address: str, number: int) -> list[str]:
    rows = Rows(fragments(client, address)["view"]).rows
    return [" ".join(row[number].split()) for row in rows if row]


def queue_of(count: int) -> list[dict[str, Any]]:
    """A tenth is held, and so at the end, as a worker lists them."""
    jobs = [
        waiting_job(
            f"job-{number:04d}",
            id=f"id-{number:04d}",
            user=("ada", "bob", "chen")[number % 3],
            gpus=1 + number % 4,
            reason="held" if number % 10 == 9 else "capacity",
            why=f"It is number {number}.",
            waited=float(count - number),
        )
        for number in range(count)
    ]
    return sorted(jobs, key=lambda job: job["reason"] == "held")


def write_state(**changed: Any) -> None:
    """Two devices; one runs `busy` for 40 s more, `patient` needs both, `small` one."""
    now, node = time.time(), declare("1x2")[0]
    ids = {"patient": waiting_job()["id"], "small": "33333333", "busy": running_job()["id"]}
    state = PoolState(
        "gpu",
        now,
        "fifo",
        {},
        (node,),
        waiting=(
            (Job(ids["patient"], now - 30, 2, name="patient"), NO_PROGRESS),
            (Job(ids["small"], now - 20, 1, name="small"), NO_PROGRESS),
        ),
        running=(
            Held(Job(ids["busy"], now - 90, name="busy"), (node.devices[0],), now - 60, 1, NO_PROGRESS),
        ),
        durations={id: Estimate(100, 100, "stated") for id in ids.values()},
    )
    state_path(pool_folder("gpu")).write_bytes(replace(state, **changed).to_json())


def until_shown(client: TestClient, address: str, text: str, part: str = "panel") -> str:
    assert wait_until(lambda: text in fragments(client, address)[part], 60), fragments(client, address)[part]
    return fragments(client, address)[part]


# -- what is shown ----------------------------------------------------------------------------


def test_every_view_is_a_page_of_its_fragments(client: TestClient) -> None:
    write_status(waiting=[waiting_job()], running=[running_job()], devices=[device()])
    expected = {
        "overview": ("patient", "1 of 1", "87%", "ada"),
        "queue": ("patient", "capacity", "needs 2 GPUs on one node"),
        "running": ("busy", "node-1:0", "bob"),
        "devices": ("node-1", "GTX 1080 Ti", "5.5 of 11 GB", "busy"),
        "policies": ("fifo", "The oldest job starts first", "srtf"),
        "history": ("no warehouse",),
    }
    assert set(expected) == set(VIEWS)
    for view, texts in expected.items():
        page, parts = client.get(f"/{view}").text, fragments(client, view)
        assert "Policy" in parts["state"]
        for text in texts:
            assert text in parts["view"], view
            assert text in page
    assert "patient" in client.get("/").text, "the overview has no name in the address"


def test_numbers_of_the_overview(client: TestClient) -> None:
    sick = device(index=1, id="b", healthy=False, detail="Xid 79", jobs=[], utilization=None)
    drained = device(index=2, id="c", healthy=False, detail="drained", jobs=[], utilization=None)
    idle = device(index=3, id="d", jobs=[], utilization=0.0)
    write_status(waiting=queue_of(30), running=[running_job()], devices=[device(), sick, drained, idle])
    text = " ".join(Text(fragments(client, "overview")["view"]).text.split())
    for expected in (
        "Waiting 30",
        "Running 1",
        "GPUs busy 1 of 4",
        "GPUs idle 1 1 sick, 1 drained",
        "now 44%",
    ):
        assert expected in text, text
    assert "capacity 27 held 3" in text


class Text(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.text = ""
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.text += f" {data}"


def test_a_long_queue_is_filtered_ordered_and_paged(client: TestClient) -> None:
    write_status(waiting=queue_of(1200))
    assert (
        column(client, "queue", 1) == [f"job-{number:04d}" for number in range(56) if number % 10 != 9][:50]
    )
    assert column(client, "queue", 0) == [str(number) for number in range(1, 51)]
    assert column(client, "queue?page=24", 1)[-1] == "job-1199"
    assert column(client, "queue?page=999", 1)[-1] == "job-1199", "the last page there is"
    assert column(client, "queue?page=x", 1)[0] == "job-0000"
    assert set(column(client, "queue?user=bob", 2)) == {"bob"}
    assert column(client, "queue?q=NUMBER 77&sort=-name", 1)[0] == "job-0779"
    assert set(column(client, "queue?reason=held", 0)) == {"–"}
    assert column(client, "queue?sort=waited", 1)[0] == "job-1199"
    assert column(client, "queue?sort=-gpus", 3)[0] == "4"
    assert column(client, "queue?sort=nonsense", 1)[0] == "job-0000"
    view = fragments(client, "queue?user=bob&reason=held&sort=-waited")["view"]
    assert "1–40 of 40 jobs" in view
    assert 'aria-sort="descending"' in view
    assert "None of the 1,200 waiting jobs is like that" in fragments(client, "queue?q=nowhere")["view"]


def test_jobs_beyond_those_that_are_listed_are_counted(client: TestClient) -> None:
    write_status(waiting=queue_of(20), whole={"by_reason": {"capacity": 5000, "held": 10}, "gpus": 9000})
    view = fragments(client, "overview")["view"]
    assert "All 5,010 waiting jobs" in view
    assert "5,000</span>" in view
    assert "the first 20 of 5,010" in fragments(client, "queue")["view"]


def test_an_eta_is_shown_where_it_is_known(client: TestClient) -> None:
    now = time.time()
    eta = {"start_p50": now + 60, "start_p90": now + 6000, "end_p50": now + 900, "end_p90": now + 1900}
    write_status(waiting=[waiting_job(eta=eta), waiting_job("later")], running=[running_job(eta=eta)])
    assert column(client, "queue", 6) == [format_clock(now + 60, now), "–"]
    assert column(client, "running", 6) == [format_clock(now + 900, now)]
    panel = fragments(client, f"queue?job={waiting_job()['id']}")["panel"]
    assert f"probably before {format_clock(now + 6000, now)}" in panel


def test_devices_are_grouped_by_node_and_filtered(client: TestClient) -> None:
    devices = [device(id=f"d{n}", index=n % 4, node=f"node-{n // 4}", jobs=[]) for n in range(400)]
    write_status(devices=[*devices[:-1], device(id="x", node="node-99", healthy=False, detail="Xid 79")])
    view = fragments(client, "devices")["view"]
    assert "1–40 of 100 nodes" in view
    sick = fragments(client, "devices?state=sick")["view"]
    assert "node-99" in sick
    assert "Xid 79" in sick
    assert "node-98" not in sick


# -- one job ----------------------------------------------------------------------------------


def test_a_waiting_job_tells_why_and_what_would_help(client: TestClient) -> None:
    write_status(waiting=[waiting_job(fix="Ask for less.")], running=[running_job()])
    write_state()
    panel = until_shown(client, f"queue?job={waiting_job()['id']}", "As things are")
    for text in ("needs 2 GPUs on one node", "Ask for less.", "1 of 1", "on 1 GPU instead of 2", "now"):
        assert text in panel
    assert "busy</a> (until" in panel, "it names the job that it waits for"
    assert "runs/flow-run/11111111" in panel


def test_nothing_starts_in_the_past(client: TestClient) -> None:
    """The state was written an hour ago, and the running job should have ended since."""
    write_status(waiting=[waiting_job()], running=[running_job()])
    write_state(now=time.time() - 3600)
    panel = until_shown(client, f"queue?job={waiting_job()['id']}", "As things are")
    assert "it starts about" in panel
    explained = simulating.explain_job(str(pool_folder("gpu")), waiting_job()["id"], 1.0)
    assert explained["at"] == pytest.approx(time.time(), abs=60)
    assert explained["outlook"]["start"] >= explained["at"]


def test_without_a_state_a_job_says_so(client: TestClient) -> None:
    write_status(waiting=[waiting_job()])
    until_shown(client, f"queue?job={waiting_job()['id']}", "does not write the state")


def test_a_running_job_tells_where_it_is_and_when_it_ends(client: TestClient) -> None:
    progress = {"fraction": 0.45, "remaining_s": 180.0, "upper_s": 240.0, "source": "tqdm"}
    write_status(running=[running_job(progress=progress)], devices=[device()])
    panel = fragments(client, f"running?job={running_job()['id']}")["panel"]
    assert "45% done, about 3m 00s left" in panel
    assert "node-1:0" in panel
    assert "Ends</dt><dd>about " in panel


def test_a_job_that_is_gone_is_looked_up(open_dashboard: Callable[..., TestClient], tmp_path: Path) -> None:
    client = open_dashboard(record_live(tmp_path, jobs=10), POOL)
    write_status(POOL)
    assert "and no record of it is there" in until_shown(client, "queue?job=nobody", "no record")
    job_id = client_query(tmp_path, "select job_id from job_history where outcome = 'completed' limit 1")
    panel = until_shown(client, f"queue?job={job_id}", "completed")
    assert "Attempts" in until_shown(client, f"queue?job={job_id}", "Attempts"), panel


def client_query(folder: Path, sql: str) -> str:
    [database] = folder.glob("*.duckdb")
    return str(run_query(database, sql).rows[0][0])


# -- live -------------------------------------------------------------------------------------


def test_what_has_not_changed_is_not_sent_again(client: TestClient) -> None:
    write_status(waiting=[waiting_job()])
    first = client.get("/fragments/queue")
    tag = {"If-None-Match": first.headers["etag"]}
    unchanged = client.get("/fragments/queue", headers=tag)
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    assert client.get("/fragments/queue?user=ada", headers=tag).status_code == 200
    write_status(policy={"name": "srtf", "options": {}, "serving": "srtf", "error": ""})
    changed = client.get("/fragments/queue", headers=tag)
    assert changed.status_code == 200
    assert "srtf" in changed.json()["state"]


def test_a_policy_that_failed_is_shown(client: TestClient) -> None:
    write_status(policy={"name": "mine", "options": {}, "serving": "fifo", "error": "It answered nonsense."})
    state = fragments(client, "overview")["state"]
    assert "fifo decides" in state
    assert "It answered nonsense." in state


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        (None, "No worker has served pool gpu"),
        ({"at": 1000.0}, "has not reported since"),
        ({"leads": False}, "another machine&#39;s worker serves pool gpu"),
        ({"recorder_trouble": "The disk is full."}, "The disk is full."),
        ({"cluster_trouble": "NVML is gone."}, "NVML is gone."),
    ],
)
def test_trouble_is_a_notice(client: TestClient, status: dict[str, Any] | None, shown: str) -> None:
    if status is not None:
        write_status(**status)
    assert shown in fragments(client, "overview")["state"]
    assert shown in client.get("/queue").text


# -- what if ----------------------------------------------------------------------------------

ORIGIN = {"Origin": URL, "Content-Type": "application/x-www-form-urlencoded"}


def test_the_present_queue_is_simulated_under_other_policies(client: TestClient) -> None:
    write_status(waiting=[waiting_job()], running=[running_job()])
    write_state()
    question = "policy=srtf&policy=fifo&gpus=2&over=now"
    assert client.post("/whatif", content=question, headers=ORIGIN).status_code == 204
    view = until_shown(client, f"policies?{question}", "Simulated in", "view")
    rows = [[" ".join(cell.split()) for cell in row] for row in Rows(view).rows if row]
    assert [row[0] for row in rows] == ["as it is", "srtf", "fifo"]
    assert [row[1] for row in rows] == ["2", "4", "4"]
    soon = {"4m 00s", *(f"3m {seconds}s" for seconds in range(40, 60))}
    assert rows[0][2] == "3 of 3"
    assert rows[0][3] in soon, "40 s of busy, less those since, then 100 s of each of the others"
    assert rows[2][3].startswith("1m 40s"), "with two more devices, all run at once"


def test_the_history_is_replayed(
    open_dashboard: Callable[..., TestClient], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = open_dashboard(record_live(tmp_path, jobs=20), POOL)
    write_status(POOL)
    monkeypatch.setitem(history.PERIODS, "all", ("all", time.time() - T + 86_400, 1.0))
    monkeypatch.setitem(OVER, "all", "all")
    question = "policy=fifo&gpus=&over=all"
    assert client.post("/whatif", content=question, headers=ORIGIN).status_code == 204
    view = until_shown(client, f"policies?{question}", "Simulated in", "view")
    assert [row[0] for row in Rows(view).rows if row][:3] == ["as recorded", "srtf, replayed", "fifo"]
    assert "What is assumed" in view


def test_a_what_if_is_cancelled(client: TestClient) -> None:
    write_status(waiting=[waiting_job()])
    write_state()
    client.post("/whatif", content="policy=srtf", headers=ORIGIN)
    client.post("/whatif", content="policy=srtf&action=cancel", headers=ORIGIN)
    until_shown(client, "policies?policy=srtf", "It was cancelled", "view")


@pytest.mark.parametrize(
    "question", ["", "policy=nonsense", "gpus=many", "gpus=99999", "policy=fifo&over=always"]
)
def test_a_question_without_sense_is_refused(client: TestClient, question: str) -> None:
    assert client.post("/whatif", content=question, headers=ORIGIN).status_code == 400


# -- history ----------------------------------------------------------------------------------


def test_figures_of_a_period(
    open_dashboard: Callable[..., TestClient], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(history.PERIODS, "24h", ("all", time.time() - T + 86_400, 60.0))
    client = open_dashboard(record_live(tmp_path, jobs=20), POOL)
    assert 'data-figure="figures/gantt?period=24h"' in client.get("/history").text
    figure = client.get("/figures/gantt?period=24h")
    assert "figure-data" in figure.text
    again = client.get("/figures/gantt?period=24h", headers={"If-None-Match": figure.headers["etag"]})
    assert again.status_code == 304, "it is kept"
    assert client.get("/figures/nonsense?period=24h").status_code == 404
    assert client.get("/figures/gantt?period=1y").status_code == 404


def test_without_a_warehouse_figures_say_so(client: TestClient) -> None:
    assert "There is no warehouse" in client.get("/figures/gantt?period=24h").text
    assert "There is no history yet" in client.get("/history").text


# -- safety -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8321", "127.0.0.1.evil.example", "", "0.0.0.0:8321"]
)
def test_other_names_of_this_server_are_refused(client: TestClient, host: str) -> None:
    write_status(waiting=[waiting_job()])
    for address in ("/", "/fragments/queue", "/static/dashboard.js", "/figures/gantt"):
        answer = client.get(address, headers={"Host": host})
        assert answer.status_code == 403
        assert "patient" not in answer.text


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9999", "[::1]:8321"])
def test_names_of_this_machine_are_accepted(client: TestClient, host: str) -> None:
    assert client.get("/queue", headers={"Host": host}).status_code == 200


def test_what_other_pages_fetch_or_embed_is_refused_and_links_are_not(client: TestClient) -> None:
    write_status(waiting=[waiting_job()])
    for site in ("cross-site", "same-site"):
        for mode, kind in (("no-cors", "image"), ("cors", "empty"), ("navigate", "iframe")):
            headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": kind}
            assert client.get("/queue?job=x", headers=headers).status_code == 403
        link = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        assert client.get("/queue", headers=link).status_code == 200
        assert client.post("/whatif", headers={**ORIGIN, **link}).status_code == 403
    own = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}
    assert client.get("/fragments/queue", headers=own).status_code == 200


@pytest.mark.parametrize(
    "origin", [None, "null", "http://evil.example", "http://127.0.0.1:9", "https://127.0.0.1:8321"]
)
def test_other_pages_start_nothing(client: TestClient, origin: str | None) -> None:
    headers = {"Origin": origin} if origin else {}
    assert client.post("/whatif", content="policy=fifo", headers=headers).status_code == 403
    assert "Simulating since" not in fragments(client, "policies?policy=fifo")["view"]


def test_scripts_come_from_the_server_only(client: TestClient) -> None:
    for address in ("/", "/fragments/queue", "/nowhere"):
        policy = client.get(address).headers["content-security-policy"]
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
    assert "<script>" not in client.get("/").text
    for name in ("page.js", "dashboard.js", "style.css", "dashboard.css", "plotly.min.js"):
        assert client.get(f"/static/{name}").status_code == 200
    for name in ("..%2fapp.py", "app.py", "../../pyproject.toml"):
        assert client.get(f"/static/{name}").status_code == 404


def test_hostile_names_are_only_text(client: TestClient) -> None:
    evil = {"user": EVIL, "why": EVIL, "fix": EVIL, "reason": EVIL}
    write_status(
        worker=EVIL,
        waiting=[waiting_job(EVIL, **evil, id="w")],
        running=[running_job(EVIL, id="r", user=EVIL, nodes=[EVIL], policy=EVIL, stopping=EVIL)],
        devices=[device(jobs=[EVIL], model=EVIL, node=EVIL, id=EVIL, healthy=False, detail=EVIL)],
        policy={"name": EVIL, "options": {EVIL: EVIL}, "serving": EVIL, "error": EVIL, "remark": EVIL},
        recorder_trouble=EVIL,
    )
    for view in VIEWS:
        for job in ("w", "r", EVIL):
            page = client.get(f"/{view}", params={"job": job, "q": EVIL, "user": EVIL, "policy": EVIL}).text
            assert "<script>alert" not in page
            assert '"onload=' not in page
            assert not {"\x1b", "\u202e"}.intersection(page)


def test_no_request_changes_anything_on_disk(client: TestClient) -> None:
    write_status(waiting=[waiting_job()], running=[running_job()], devices=[device()])
    write_state()

    def files() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in home().rglob("*")}

    before = files()
    for view in VIEWS:
        client.get(f"/{view}?job={waiting_job()['id']}")
    client.get("/figures/gantt?period=1h")
    until_shown(client, f"queue?job={waiting_job()['id']}", "As things are")
    client.post("/whatif", content="policy=srtf", headers=ORIGIN)
    until_shown(client, "policies?policy=srtf", "Simulated in", "view")
    assert files() == before


def test_only_the_what_if_accepts_a_post(client: TestClient) -> None:
    assert client.get("/whatif").status_code == 404
    for address in ("/", "/queue", "/fragments/queue", "/figures/gantt"):
        assert client.post(address, headers=ORIGIN).status_code == 405
    assert client.get("/nowhere").status_code == 404


# -- answers that take a while ----------------------------------------------------------------


def test_an_answer_that_fails_says_so_and_one_too_many_is_not_begun() -> None:
    async def fail() -> None:
        raise OSError("No such device.")

    async def hang() -> None:
        await asyncio.Event().wait()

    async def check() -> None:
        answers = Answers(MOST_PENDING, (ValueError,))
        failed = await answers.wait("fails", fail, 60)
        assert (failed.is_known, failed.error) == (True, "It failed: OSError: No such device.")
        pending = [answers.ask(number, hang, 60) for number in range(MOST_PENDING)]
        assert all(each.is_pending for each in pending)
        assert (await answers.wait("one more", hang, 60)).error == BUSY
        await asyncio.sleep(0)  # they begin
        await answers.close()
        assert {each.error for each in pending} == {"It was stopped."}

    asyncio.run(check())


def test_a_panel_shows_why_there_is_no_answer(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process can be started, or it prints what is no answer."""
    write_status(waiting=[waiting_job()], running=[running_job()])
    write_state()
    monkeypatch.setattr(questions.sys, "executable", "/nowhere/python")
    until_shown(client, f"queue?job={waiting_job()['id']}", "No process can be started")


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("print('nonsense')", "no answer that can be read"),
        ("import sys; sys.stderr.write('x' * 1_000_000 + chr(10) + 'the end')", "stopped: the end"),
        ("import sys; sys.stderr.write('x' * 1_000_000); print('[\"answer\", 1]')", "1"),
    ],
)
def test_a_process_that_prints_much_or_nonsense_is_understood(
    program: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\n{program}\n")
    python.chmod(0o700)
    monkeypatch.setattr(questions.sys, "executable", str(python))
    try:
        answer = str(asyncio.run(questions.ask_process({"ask": "job"}, 30)))
    except questions.QuestionError as error:
        answer = str(error)
    assert expected in answer
