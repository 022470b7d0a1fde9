"""What the pages show: recovery, failures, filters, sizes, growth and live updates."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading

import msgspec
import pytest

import ckpt_observe
from ckpt_observe import query
from ckpt_observe.core import Checkpointer
from ckpt_observe.semconv import attributes as names
from ckpt_observe.testing.spans import make_span
from ckpt_observe.tracestore import FILENAME, TraceLimits, TraceWriter
from ckpt_observe.viewer import live_feed, page_data
from tests.viewer.address import BASE, LIVE


def test_overview_of_a_run(client, training):
    """The overview says to which step the run can be recovered, what failed, and what to do about it."""
    data = client.get("/api/overview").json()
    [task] = data["tasks"]
    assert (task["task_name"], task["task_id"], task["last_good"]["step"], task["consecutive_failures"]) == ("train", "run-42", 3, 1)
    assert (task["last_attempt"]["outcome"], task["at_risk_seconds"]) == ("error", None)
    [failure] = data["failures"]
    assert "SerializationError" in failure["operation"]["error"]
    assert "Leave the value out" in failure["advice"]


def test_empty_state_directory(client):
    """A state directory in which nothing was recorded is empty, and not an error."""
    data = client.get("/api/overview").json()
    assert (data["tasks"], data["running"], data["considered"]) == ([], [], 0)
    assert client.get("/api/libraries").json()["libraries"]


def test_history_filters_and_counts(client, training):
    """Filters narrow the list, and facets count what is in it."""
    everything = client.get("/api/operations").json()
    assert everything["facets"]["outcome"] == {"ok": 3, "error": 1}
    failed = client.get("/api/operations", params={"outcome": "error"}).json()
    assert [row["step"] for row in failed["operations"]] == [4]
    assert client.get("/api/operations", params={"text": "SERIALIZATIONerror"}).json()["considered"] == 1
    assert client.get("/api/operations", params={"text": "no such thing"}).json()["considered"] == 0
    assert len(client.get("/api/operations", params={"limit": 2}).json()["operations"]) == 2


@pytest.mark.parametrize("parameters", [{"limit": "many"}, {"since_unix_nano": "yesterday"}])
def test_invalid_parameter(client, parameters):
    """A parameter that is not a number is an error with a message."""
    answer = client.get("/api/operations", params=parameters)
    assert (answer.status_code, "parameter" in answer.json()["error"]) == (400, True)


def test_trace_and_checkpoint(client, training):
    """A trace has its operations with phases; a checkpoint has the sizes of its keys over the run, oldest first."""
    save = client.get("/api/operations", params={"outcome": "ok"}).json()["operations"][0]
    trace = client.get(f"/api/traces/{save['trace_id']}").json()
    phases = next(each["phases"] for each in trace["operations"] if each["span_id"] == save["span_id"])
    assert {"serialize", "write"} <= {phase["name"] for phase in phases}
    page = client.get(f"/api/checkpoints/{save['trace_id']}/{save['span_id']}").json()
    assert [each["operation"]["step"] for each in page["history"]] == [1, 2, 3]
    weights = [each["keys"]["weights"] for each in page["history"]]
    assert weights == sorted(weights)
    assert weights[0] < weights[-1]


def test_operations_without_phases(training, tmp_path):
    """Lists leave the phases out, and are otherwise the same."""
    with query.open_traces(tmp_path / "state") as traces:
        whole, short = list(traces.operations()), list(traces.operations(phases=False))
    assert any(operation.phases for operation in whole)
    assert short == [msgspec.structs.replace(operation, phases=()) for operation in whole]


@pytest.mark.parametrize("path", ["traces/ffff", "checkpoints/ffff/ffff"])
def test_unknown_trace(client, training, path):
    """An id that does not exist is 404 with a message."""
    answer = client.get(f"/api/{path}")
    assert (answer.status_code, bool(answer.json()["error"])) == (404, True)


def test_progress_and_time_left(client, record):
    """A running task that declares its number of steps has a progress and a time left."""

    def work(watch):
        with ckpt_observe.task("train", id="run-1", total_steps=10):
            for step in (1, 2):
                with ckpt_observe.checkpoint("save", step=step):
                    pass
            assert watch.flush(timeout=60)
            [task] = client.get("/api/overview").json()["tasks"]
            assert (task["progress"]["step"], task["progress"]["total_steps"]) == (2, 10)
            assert task["progress"]["remaining_seconds"] >= 0
            assert task["at_risk_seconds"] >= 0

    record(work)


def test_libraries_count_what_was_recorded(client, training):
    """The page about libraries counts the operations of each."""
    counts = {library["name"]: library["operations"] for library in client.get("/api/libraries").json()["libraries"]}
    assert (counts["reference"], counts["langgraph"]) == (4, 0)


def write_save(writer, number, program, *, outcome="ok"):
    attributes = {names.OPERATION: "save", names.OUTCOME: outcome, names.SYSTEM: "torch", names.SIZE_STORED: number}
    resource = {"service.name": program}
    writer.write([make_span(number, "checkpoint.save", trace=number, attributes=attributes, resource=resource)])


@pytest.fixture
def writer(tmp_path):
    writer = TraceWriter(tmp_path / "state" / FILENAME, TraceLimits(days=0))
    yield writer
    writer.close()


def test_programs_without_a_task_are_runs_of_their_own(client, writer):
    """A program whose saves all fail cannot be recovered, whatever another program saves. Growth is that of one program."""
    for number, program in enumerate(("good.py", "other.py", "good.py"), 1):
        write_save(writer, number, program)
    write_save(writer, 9, "bad.py", outcome="error")
    tasks = {task["task_title"]: task for task in client.get("/api/overview").json()["tasks"]}
    assert {program: task["last_good"] is not None for program, task in tasks.items()} == {
        "good.py": True,
        "other.py": True,
        "bad.py": False,
    }
    [first] = [row for row in client.get("/api/operations").json()["operations"] if row["stored_bytes"] == 1]
    page = client.get(f"/api/checkpoints/{first['trace_id']}/{first['span_id']}").json()
    assert [save["operation"]["stored_bytes"] for save in page["history"]] == [1, 3]


def test_deleted_checkpoint_is_not_recoverable(client, record, tmp_path):
    """A run can be recovered to its newest save that still exists."""

    def work(_watch):
        checkpointer = Checkpointer(str(tmp_path / "checkpoints"))
        saved = [checkpointer.save("run-1", {"step": step}, step=step) for step in (1, 2)]
        checkpointer.delete("run-1", saved[-1].id)

    record(work)
    [task] = client.get("/api/overview").json()["tasks"]
    assert task["last_good"]["step"] == 1


def test_deleted_run_is_not_listed(client, writer):
    """A run whose checkpoints were all deleted is over, and is listed again when it saves again."""

    def write(number, operation, **attributes):
        values = {names.OPERATION: operation, names.OUTCOME: "ok", names.SYSTEM: "langgraph", names.TASK_ID: "thread-1", **attributes}
        writer.write([make_span(number, f"checkpoint.{operation}", trace=number, attributes=values)])

    write(1, "save")
    write(2, "delete", **{names.WHOLE_TASK: True})
    assert client.get("/api/overview").json()["tasks"] == []
    write(3, "save")
    [task] = client.get("/api/overview").json()["tasks"]
    assert task["last_good"]["trace_id"] == f"{3:032x}"


def test_tasks_with_equal_run_ids_are_listed_apart(client, writer):
    """A task that deletes all its checkpoints does not hide another one whose run has the same id."""

    def write(number, operation, task, **attributes):
        values = {names.OPERATION: operation, names.OUTCOME: "ok", names.TASK_ID: "1", names.TASK_NAME: task, **attributes}
        writer.write([make_span(number, f"checkpoint.{operation}", trace=number, attributes=values)])

    write(1, "save", "first")
    write(2, "save", "second")
    assert {task["task_title"] for task in client.get("/api/overview").json()["tasks"]} == {"first", "second"}
    write(3, "delete", "second", **{names.WHOLE_TASK: True})
    [task] = client.get("/api/overview").json()["tasks"]
    assert (task["task_title"], task["last_good"]["trace_id"]) == ("first", f"{1:032x}")


def test_libraries_are_counted_by_their_system(client, writer):
    """Some libraries have another name as `checkpoint.system`."""
    attributes = {names.OPERATION: "save", names.OUTCOME: "ok", names.SYSTEM: "torch.dcp"}
    writer.write([make_span(1, "checkpoint.save", attributes=attributes)])
    counts = {library["name"]: library["operations"] for library in client.get("/api/libraries").json()["libraries"]}
    assert counts["torch-dcp"] == 1


def test_old_checkpoint_is_in_its_own_history(client, writer, monkeypatch):
    """The page of a checkpoint shows its sizes, also if many newer ones fill the history."""
    monkeypatch.setattr(page_data, "_MAX_HISTORY", 2)
    for number in range(1, 6):
        write_save(writer, number, "program.py")
    [first] = [row for row in client.get("/api/operations").json()["operations"] if row["stored_bytes"] == 1]
    page = client.get(f"/api/checkpoints/{first['trace_id']}/{first['span_id']}").json()
    assert min(save["operation"]["stored_bytes"] for save in page["history"]) == 1


def test_feed_reports_every_error(tmp_path):
    """Whatever goes wrong while the feed reads, the pages get to know, and the feed goes on."""

    def fail():
        raise PermissionError(13, "Permission denied")

    feed = live_feed.LiveFeed(tmp_path, fail)
    assert feed._read("cursor") == ("cursor", live_feed.Update(error="[Errno 13] Permission denied"))
    feed.close()


def test_live_updates(client, record):
    """A page sees an operation while it runs, with its phase, and its end."""

    def work(watch):
        with client.websocket_connect(LIVE, headers={"origin": BASE}) as socket:
            socket.receive_json()
            with ckpt_observe.checkpoint("save", step=7) as operation, operation.phase("write"):
                running = next(update["running"] for update in iter(socket.receive_json, None) if update["running"])
            assert [(row["step"], row["phase"], row["end_unix_nano"]) for row in running] == [(7, "write", None)]
            finished = next(update["finished"] for update in iter(socket.receive_json, None) if update["finished"])
            assert [(row["step"], row["outcome"]) for row in finished] == [(7, "ok")]

    record(work)


def test_slow_page_gets_the_newest_update_only():
    """If a page does not read, its queue stays bounded, and it learns that it missed something."""

    async def fill():
        queue = asyncio.Queue(live_feed._QUEUED)
        update = live_feed.Update(error="x")
        for _ in range(100):
            live_feed._put(queue, msgspec.json.encode(update), update)
        sizes = queue.qsize()
        return sizes, msgspec.json.decode(queue.get_nowait())

    size, first = asyncio.run(fill())
    assert size <= live_feed._QUEUED
    assert first["is_incomplete"] is True


def test_feed_stops_reading_without_pages(client):
    """The thread of the feed reads only while a page is open."""
    with client.websocket_connect(LIVE, headers={"origin": BASE}) as socket:
        socket.receive_json()
    assert client.get("/api/overview").status_code == 200
    assert sum(thread.name.startswith("ckpt_observe-viewer-feed") for thread in threading.enumerate()) <= 1


def test_viewer_without_its_extra(command_without_uvicorn):
    """Without the extra, the command names it."""
    result = command_without_uvicorn("ui", "--no-browser")
    assert (result.returncode, "pip install 'ckpt-observe[ui]'" in result.stderr) == (2, True)


@pytest.fixture
def command_without_uvicorn(tmp_path):
    (tmp_path / "blocked" / "uvicorn").mkdir(parents=True)
    (tmp_path / "blocked" / "uvicorn" / "__init__.py").write_text("raise ModuleNotFoundError('No module named uvicorn', name='uvicorn')")

    def run(*arguments):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / "blocked"), "CKPT_OBSERVE_DIR": str(tmp_path / "state")}
        return subprocess.run(
            [sys.executable, "-m", "ckpt_observe", *arguments], capture_output=True, text=True, env=environment, check=False
        )

    return run
