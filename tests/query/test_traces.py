"""Queries over the trace store and the journals."""

from __future__ import annotations

import os
from types import SimpleNamespace

import msgspec
import pytest

import ckpt_observe
from ckpt_observe import query
from ckpt_observe.errors import AmbiguousTraceError, TraceNotFoundError
from ckpt_observe.exporters.local import LocalExporter
from ckpt_observe.query import OperationFilter
from ckpt_observe.semconv import attributes as names
from ckpt_observe.testing.spans import START_UNIX_NANO, make_span, make_tree


@pytest.fixture
def exporter(tmp_path):
    exporter = LocalExporter(tmp_path / "state")
    yield exporter
    exporter.close()


@pytest.fixture
def traces(tmp_path):
    with query.open_traces(tmp_path / "state") as traces:
        yield traces


@pytest.fixture
def watch(tmp_path):
    watch = ckpt_observe.observe(exporters="local", dir=tmp_path / "state", pages_dir=tmp_path / "pages", service="trainer")
    yield watch
    watch.close()


def test_missing_state_directory_has_no_traces(traces, tmp_path):
    """Without a store every query has an empty answer, and nothing is created."""
    assert (traces.traces(), traces.find(""), list(traces.operations()), traces.running(), traces.spans("0")) == ([], [], [], [], [])
    assert traces.changes() == query.Changes(cursor="", finished=(), running=())
    assert traces.totals() == query.StoreTotals(0, 0)
    assert not (tmp_path / "state").exists()


def test_store_on_a_read_only_file_system(tmp_path, monkeypatch):
    """It is read without SQLite's log, which cannot be created there. What is stored after all, through another mount, is found."""
    exporter = LocalExporter(tmp_path / "state")
    exporter.send(make_tree(1))
    exporter.close()
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(f_flag=os.ST_RDONLY))
    with query.open_traces(tmp_path / "state") as traces:
        assert len(traces.traces()) == 1
        assert {path.name for path in (tmp_path / "state").iterdir() if path.is_file()} == {"operations.db"}
        for number in (2, 3):
            exporter = LocalExporter(tmp_path / "state")
            exporter.send(make_tree(number))
            assert len(traces.traces()) == number
            exporter.close()
            assert len(traces.traces()) == number


def test_default_is_the_state_directory_of_the_environment(monkeypatch, tmp_path):
    """Without an argument, the settings of the environment say which directory is read."""
    monkeypatch.setenv("CKPT_OBSERVE_DIR", str(tmp_path / "elsewhere"))
    with query.open_traces() as traces:
        assert traces.state == tmp_path / "elsewhere"


def test_trace_has_operations_with_their_phases(exporter, traces):
    """A trace lists tasks and operations, parents first, each operation with its phases by start."""
    exporter.send(make_tree(operations=("save", "restore")))
    trace = traces.trace(f"{1:032x}"[:31])
    assert [(each.kind, each.name, [phase.name for phase in each.phases]) for each in trace.operations] == [
        ("task", "demo", []),
        ("operation", "save", ["serialize", "write"]),
        ("operation", "restore", ["serialize", "write"]),
    ]
    assert (trace.summary.operations, trace.summary.running) == (2, 0)
    assert trace.operations[1].service == "test"


def test_nested_phases_belong_to_their_operation(exporter, traces):
    """A phase inside a phase is one of the operation's phases, also if it is stored before the outer one."""
    inner, outer = ({names.PHASE: name} for name in ("compress", "write"))
    operation = make_span(1, "checkpoint.save", attributes={names.OPERATION: "save"})
    exporter.send([make_span(3, "x", parent=2, attributes=inner), make_span(2, "y", parent=1, attributes=outer), operation])
    [stored] = traces.operations()
    assert [(phase.name, int(phase.parent_span_id, 16)) for phase in stored.phases] == [("write", 1), ("compress", 2)]


def test_span_of_another_library_is_listed(exporter, traces):
    """Spans that are neither task, operation nor phase are part of their trace."""
    exporter.send([make_span(1, "GET /", attributes={"own": 1})])
    [operation] = traces.operations()
    assert (operation.kind, operation.name, operation.outcome, operation.attributes) == ("span", "GET /", "ok", {"own": 1})


def test_unknown_and_ambiguous_ids(exporter, traces):
    """A prefix without a trace, or with several, raises an error that says what to do."""
    for number in (0xAB << 120, 0xAF << 120):
        exporter.send(make_tree(number))
    assert traces.trace("AB").summary.trace_id.startswith("ab")
    with pytest.raises(AmbiguousTraceError, match=r"ab0.*af0"):
        traces.trace("a")
    with pytest.raises(TraceNotFoundError, match="lists the newest"):
        traces.trace("c")


@pytest.mark.parametrize(
    ("matching", "expected"),
    [
        (OperationFilter(), [3, 2, 1]),
        (OperationFilter(since_unix_nano=START_UNIX_NANO + 2_000_000_000), [3, 2]),
        (OperationFilter(until_unix_nano=START_UNIX_NANO + 2_000_000_000), [1]),
        (OperationFilter(operation="load"), [2]),
        (OperationFilter(outcome="error"), [3]),
        (OperationFilter(error_class="capacity"), [3]),
        (OperationFilter(error_code="capacity.disk_full"), [3]),
        (OperationFilter(system="langgraph"), [2]),
        (OperationFilter(checkpoint_id="c1"), [1]),
        (OperationFilter(service="agent"), [2]),
        (OperationFilter(min_bytes=500), [2]),
        (OperationFilter(max_bytes=500), [1]),
        (OperationFilter(task_name="train"), [1]),
        (OperationFilter(task_id="run-1"), [1]),
        (OperationFilter(session_id="monday"), [1]),
        (OperationFilter(operation="save", outcome="error", service="agent"), []),
    ],
    ids=range(16),
)
def test_filters(exporter, traces, matching, expected):
    """Each condition selects operations and the traces that contain them; several conditions must hold for one operation."""
    first = {names.ID: "c1", names.SIZE_STORED: 100, names.TASK_NAME: "train", names.TASK_ID: "run-1", names.SESSION_ID: "monday"}
    second = {names.SYSTEM: "langgraph", names.SIZE_SERIALIZED: 1000}
    third = {names.ERROR_CLASS: "capacity", names.ERROR_CODE: "capacity.disk_full"}
    for number, operation, outcome, attributes, service in (
        (1, "save", "ok", first, "trainer"),
        (2, "load", "ok", second, "agent"),
        (3, "save", "error", third, "trainer"),
    ):
        attributes |= {names.OPERATION: operation, names.OUTCOME: outcome}
        exporter.send([make_span(1, "x", trace=number, start=number * 1000, attributes=attributes, resource={"service.name": service})])
    assert [int(operation.trace_id, 16) for operation in traces.operations(matching)] == expected
    assert [int(trace.trace_id, 16) for trace in traces.traces(matching)] == expected


def test_running_operation_shows_its_phase(watch, traces):
    """A running operation has its finished phases and the running one, which `phase` names; it ends with its process or its end."""
    with ckpt_observe.task("train", id="run-1"):
        with ckpt_observe.checkpoint("save", id="s1") as operation:
            with operation.phase("serialize"):
                pass
            with operation.phase("write"):
                task, save = traces.running()
                assert (task.kind, task.name, task.phase, task.is_running) == ("task", "train", None, True)
                assert (save.name, save.outcome, save.phase, save.end_unix_nano) == ("save", "running", "write", None)
                assert [(phase.name, phase.outcome) for phase in save.phases] == [("serialize", "ok"), ("write", "running")]
                assert (save.trace_id, save.span_id, save.task_id) == (operation.trace_id, operation.span_id, "run-1")
                assert (save.service, save.checkpoint_id, save.seconds() > 0) == ("trainer", "s1", True)
            assert traces.running()[1].phase is None
        assert [each.kind for each in traces.running()] == ["task"]
    assert traces.running() == []


def test_running_operation_is_part_of_its_trace(watch, traces):
    """A trace contains what is stored and what is running, each once, and its summary counts both."""
    with ckpt_observe.task("train") as task:
        with ckpt_observe.checkpoint("save"):
            pass
        watch.flush(60)
        with ckpt_observe.checkpoint("load"):
            trace = traces.trace(task.trace_id)
            assert [(each.name, each.outcome) for each in trace.operations] == [("train", "running"), ("save", "ok"), ("load", "running")]
            [summary] = traces.traces()
            assert (summary.name, summary.operations, summary.running) == ("task train", 2, 2)
            assert traces.traces(OperationFilter(operation="load"))[0].running == 1
            assert [span.name for span in traces.spans(task.trace_id)] == ["task train", "checkpoint.save", "checkpoint.load"]
    watch.flush(60)
    [summary] = traces.traces()
    assert (summary.operations, summary.running) == (2, 0)


def test_changes_report_each_operation_once(exporter, traces, tmp_path):
    """From a cursor on, each stored operation is reported once; without one, only what is stored later."""
    exporter.send(make_tree(1))
    first = traces.changes()
    assert first.finished == ()
    exporter.send(make_tree(2))
    second = traces.changes(first.cursor)
    assert [(each.name, int(each.trace_id, 16)) for each in second.finished] == [("save", 2), ("demo", 2)]
    assert len(second.finished[0].phases) == 2
    assert traces.changes(second.cursor).finished == ()
    exporter.path.rename(tmp_path / "old.db")
    exporter.send(make_tree(3))
    assert {int(each.trace_id, 16) for each in traces.changes(second.cursor).finished} == {3}


def test_changes_are_filtered(exporter, traces):
    """With a filter, only matching operations are reported, and the cursor still moves past the others."""
    first = traces.changes(matching=OperationFilter(operation="restore"))
    exporter.send(make_tree(1))
    exporter.send(make_tree(2, operations=("save", "restore")))
    second = traces.changes(first.cursor, OperationFilter(operation="restore"))
    assert [(each.name, int(each.trace_id, 16)) for each in second.finished] == [("restore", 2)]
    assert traces.changes(second.cursor).finished == ()


def test_following_a_store_that_does_not_exist_yet(exporter, traces):
    """Who follows an empty state directory gets the first operation too."""
    following = traces.follow(interval=0)
    assert next(following).finished == ()
    exporter.send(make_tree(1))
    assert len(next(following).finished) == 2
    assert next(following).finished == ()


@pytest.mark.parametrize("cursor", ["", "x", "1-2:", "1-2:-5", "9" * 5000 + ":1", ":" + "9" * 30])
def test_cursor_of_another_store_starts_at_the_beginning(exporter, traces, cursor):
    """A cursor that is not of this store is no error: everything counts as new."""
    exporter.send(make_tree(1))
    assert len(traces.changes(cursor).finished) == 2


@pytest.mark.parametrize("kind", [query.Trace, query.Changes, query.Statistics, list[query.TraceSummary], query.ObservedOperation], ids=str)
def test_every_answer_has_a_json_schema(kind):
    """The schema comes from the type."""
    assert "$defs" in query.json_schema(kind)


def test_answers_convert_to_json_and_back(exporter, traces):
    """What `--json` prints can be read back as the same value."""
    exporter.send(make_tree(1, outcome="error"))
    trace = traces.trace("0")
    assert msgspec.json.decode(msgspec.json.encode(trace), type=query.Trace) == trace
