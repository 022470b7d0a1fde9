"""Operations and phases end exactly once, and record what happened in them."""

from __future__ import annotations

import asyncio
import contextlib
import time

import msgspec
import pytest
from opentelemetry import trace

import ckpt_observe
from ckpt_observe.record import phase as phases
from ckpt_observe.record.operation import Operation
from ckpt_observe.record.phase import Phase
from ckpt_observe.semconv import attributes as names
from ckpt_observe.testing.spans import outline


def span_of(recording, name):
    [span] = [span for span in recording.spans() if span.name == name]
    return span


def test_ends_once(recording):
    """Only the first end counts."""
    operation = Operation("save")
    operation.begin()
    operation.finish()
    operation.finish(ValueError("late"))
    operation.end()
    assert recording.pages[0].ended == 1
    assert span_of(recording, "checkpoint.save").attributes[names.OUTCOME] == "ok"


@pytest.mark.parametrize(
    ("error", "outcome", "status", "events"),
    [
        (ValueError("no"), "error", "error", 1),
        (KeyboardInterrupt(), "cancelled", "ok", 0),
        (SystemExit(1), "cancelled", "ok", 0),
        (GeneratorExit(), "cancelled", "ok", 0),
        (asyncio.CancelledError(), "cancelled", "ok", 0),
    ],
)
def test_ends_on_any_exit(recording, error, outcome, status, events):
    """Every BaseException ends phase and operation, and the host program catches the same object."""
    with pytest.raises(type(error)) as caught, ckpt_observe.checkpoint("save") as operation, operation.phase("write"):
        raise error
    assert caught.value is error
    for name in ("checkpoint.save", "checkpoint.write"):
        span = span_of(recording, name)
        assert (span.attributes[names.OUTCOME], span.status, len(span.events)) == (outcome, status, events)
        assert span.attributes[names.ERROR_TYPE] == type(error).__name__
        assert span.attributes[names.ERROR_PHASE] == "write"
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_exception_event(recording):
    """The event has the type, the redacted message, and the stack without source lines."""
    with pytest.raises(OSError), ckpt_observe.checkpoint("save"):
        raise OSError(28, "No space left on postgres://u:hunter2@db/x")
    [event] = span_of(recording, "checkpoint.save").events
    assert event.name == "exception"
    assert event.attributes["exception.type"] == "OSError"
    assert "No space left" in event.attributes["exception.message"]
    assert "hunter2" not in recording.text()
    assert event.attributes["exception.stacktrace"].endswith("in test_exception_event")


def test_exception_that_cannot_be_printed(recording):
    """For an exception whose `__str__` raises, the type is recorded, and the operation ends."""

    class MuteError(Exception):
        def __str__(self):
            raise RuntimeError

    with pytest.raises(MuteError), ckpt_observe.checkpoint("save") as operation, operation.phase("write"):
        raise MuteError
    assert span_of(recording, "checkpoint.save").events[0].attributes["exception.message"] == "<MuteError>"


def test_failed_phase_is_the_innermost(recording):
    """The failure names the phase in which the exception was raised."""
    with pytest.raises(ValueError), ckpt_observe.checkpoint("save") as op, op.phase("write"), op.phase("compress"):
        raise ValueError
    assert span_of(recording, "checkpoint.save").attributes[names.ERROR_PHASE] == "compress"


@pytest.mark.parametrize("last_phase", ["write", None])
def test_handled_exception_is_not_the_failure(recording, last_phase):
    """A phase whose exception was handled is not the failed phase of a later failure, which may be in another phase or in none."""
    with pytest.raises(OSError), ckpt_observe.checkpoint("save") as op:
        with contextlib.suppress(ValueError), op.phase("compress"):
            raise ValueError
        with op.phase(last_phase) if last_phase else contextlib.nullcontext():
            raise OSError
    assert span_of(recording, "checkpoint.save").attributes.get(names.ERROR_PHASE) == last_phase


@pytest.mark.parametrize("wrap", [lambda error: ExceptionGroup("", [error]), lambda error: error])
def test_exception_that_was_raised_again(recording, wrap):
    """The failed phase is found if the library raises another exception because of the one in the phase."""
    with pytest.raises(RuntimeError), ckpt_observe.checkpoint("save") as op:
        try:
            with op.phase("compress"):
                raise ValueError
        except ValueError as error:
            with op.phase("write"):
                raise RuntimeError from wrap(error)
    assert span_of(recording, "checkpoint.save").attributes[names.ERROR_PHASE] == "compress"


def test_handled_exception_of_a_phase(recording):
    """An operation is ok if the exception of its phase was handled."""
    with ckpt_observe.checkpoint("save") as operation, pytest.raises(ValueError), operation.phase("validate"):
        raise ValueError
    assert span_of(recording, "checkpoint.validate").status == "error"
    assert span_of(recording, "checkpoint.save").status == "ok"
    assert names.ERROR_CLASS not in span_of(recording, "checkpoint.save").attributes


def test_nesting(recording):
    """Operations nest in tasks, phases and other operations; phases nest in phases."""
    with ckpt_observe.task("train"), ckpt_observe.checkpoint("restore") as outer, outer.phase("read"):
        with outer.phase("decompress"):
            pass
        with ckpt_observe.checkpoint("load") as inner, inner.phase("read"), ckpt_observe.phase("validate"):
            pass
    assert outline(recording.spans()).splitlines() == [
        "task train",
        "  checkpoint.restore",
        "    checkpoint.read",
        "      checkpoint.decompress",
        "      checkpoint.load",
        "        checkpoint.read",
        "          checkpoint.validate",
    ]


def test_children_lie_within_their_parents(recording):
    """The times of a child lie within those of its parent, and no duration is negative."""
    with ckpt_observe.checkpoint("save") as operation, operation.phase("write"), operation.phase("commit"):
        pass
    spans = {span.name: span for span in recording.spans()}
    save, write, commit = (spans[f"checkpoint.{name}"] for name in ("save", "write", "commit"))
    assert save.start_unix_nano <= write.start_unix_nano <= commit.start_unix_nano
    assert commit.start_unix_nano <= commit.end_unix_nano <= write.end_unix_nano <= save.end_unix_nano


def test_operations_have_the_attributes_of_their_task(recording):
    """Name, id, user and session of a task are set on every operation within it. Attributes of the operation have precedence."""
    with ckpt_observe.task("train", id="run-1", user="u", session="s", attributes={"own": 1}):
        with ckpt_observe.checkpoint("save", id="a", step=3):
            pass
        with ckpt_observe.checkpoint("load", attributes={names.TASK_ID: "run-0"}):
            pass
    shared = {names.TASK_NAME: "train", names.TASK_ID: "run-1", names.USER_ID: "u", names.SESSION_ID: "s"}
    save, load = span_of(recording, "checkpoint.save").attributes, span_of(recording, "checkpoint.load").attributes
    assert save.items() >= (shared | {names.ID: "a", names.STEP: 3, names.OPERATION: "save", names.SYSTEM: "custom"}).items()
    assert "own" not in save
    assert load[names.TASK_ID] == "run-0"
    assert span_of(recording, "task train").attributes.items() >= (shared | {"own": 1}).items()


def test_first_phases_are_marks(recording):
    """A registered phase is recorded as two marks, without a line."""
    with ckpt_observe.checkpoint("save") as operation:
        for name in ("serialize", "write"):
            with operation.phase(name):
                assert len(recording.pages[0].lines) == 1
    assert sorted(recording.pages[0].marks) == [2, 3, 4, 5]
    assert len(recording.pages[0].lines) == 2


def test_many_phases_and_custom_phases(recording):
    """Phases beyond the number of marks, and phases with other names, are recorded as lines; none is lost."""
    with ckpt_observe.checkpoint("save") as operation:
        with operation.phase("shard 0"), operation.phase("write") as phase:
            phase.set({names.PHASE_BYTES_OUT: 7})
        for _ in range(300):
            with operation.phase("write") as phase:
                phase.set({names.PHASE_BYTES_OUT: 7})
    assert all(len(line) <= 4000 for line in recording.pages[0].lines)
    phases = [span for span in recording.spans() if span.name == "checkpoint.write"]
    assert [span.attributes[names.PHASE_BYTES_OUT] for span in phases] == [7] * 301
    assert len({span.span_id for span in recording.spans()}) == 303
    shard = span_of(recording, "checkpoint.shard 0")
    assert [span.parent_span_id for span in phases].count(shard.span_id) == 1
    assert span_of(recording, "checkpoint.save").status == "ok"


def test_phase_after_the_end_writes_nothing(recording):
    """A phase that outlives its operation does not touch the page, which may belong to another operation by then."""
    operation = Operation("save")
    operation.begin()
    phase = Phase(operation, "write")
    phase.__enter__()
    marks = dict(recording.pages[0].marks)
    operation.finish()
    phase.__exit__(None, None, None)
    assert recording.pages[0].marks == marks
    with operation.phase("commit"):
        pass
    assert len(recording.pages[0].lines) == 2


def test_links(recording):
    """A link points to another span, with attributes."""
    with ckpt_observe.checkpoint("restore") as operation:
        operation.link("a" * 32, "b" * 16)
        operation.add_link(trace.SpanContext(1, 2, is_remote=True), {"why": "second"})
    assert [(link.trace_id, link.span_id, link.attributes) for link in span_of(recording, "checkpoint.restore").links] == [
        ("a" * 32, "b" * 16, {}),
        (f"{1:032x}", f"{2:016x}", {"why": "second"}),
    ]


@pytest.mark.parametrize("ids", [("", ""), ("0" * 32, "0" * 16), ("x", "y"), (5, 6), ("a" * 32, "b" * 15)])
def test_invalid_links_are_ignored(recording, ids):
    """Links without valid ids are dropped, as in OpenTelemetry: no backend accepts them, and the operation would be lost."""
    with ckpt_observe.checkpoint("restore") as operation:
        operation.link(*ids)
        operation.add_link(None)
        operation.add_link(trace.INVALID_SPAN_CONTEXT)
        operation.link("A" * 32, "B" * 16)
    assert [(link.trace_id, link.span_id) for link in span_of(recording, "checkpoint.restore").links] == [("a" * 32, "b" * 16)]


@pytest.mark.parametrize("timestamp", ["soon", 1.5, -1, 2**70])
@pytest.mark.parametrize("name", [5, None, object(), "sk-proj-0123456789abcdef0123"], ids=["int", "none", "object", "key"])
def test_event_with_invalid_name_or_time(recording, name, timestamp):
    """Whatever the host program passes as name and time, the span can be stored and read, and a key in the name is redacted."""
    with ckpt_observe.checkpoint("save"):
        trace.get_current_span().add_event(name, {"a": 1}, timestamp)
    span = span_of(recording, "checkpoint.save")
    assert span.start_unix_nano <= span.events[0].time_unix_nano <= span.end_unix_nano
    assert type(span.events[0].name) is str
    assert "0123456789abcdef" not in recording.text()


@pytest.mark.parametrize(
    ("name", "expected"),
    [(7, "7"), (None, "None"), (2.5, "2.5"), ((1, 2), "[1, 2]"), ([], "[]"), (object(), "<object>")],
    ids=["int", "none", "float", "tuple", "list", "object"],
)
def test_phase_name_that_is_not_a_string(recording, name, expected):
    """Any object can be the name of a phase, such as the number of a shard; the operation is recorded."""

    @ckpt_observe.phase(name)
    def decorated():
        pass

    with ckpt_observe.checkpoint("save") as operation:
        with operation.phase(name):
            pass
        decorated()
    assert [span.name for span in recording.spans()] == [f"checkpoint.{expected}"] * 2 + ["checkpoint.save"]


def test_nothing_is_recorded_without_observe():
    """Without `observe()`, the blocks run and nothing is recorded."""
    with (
        ckpt_observe.task("t"),
        ckpt_observe.checkpoint("save") as operation,
        operation.phase("write") as phase,
        ckpt_observe.phase("commit"),
    ):
        phase.set({"a": 1})
        operation.set({"b": 2})
        assert operation.traceparent() == ""
        assert trace.get_current_span() is trace.INVALID_SPAN


def test_lines_are_json(recording):
    """Every line is a JSON array that starts with event name, operation id and time."""
    with ckpt_observe.checkpoint("save") as operation, operation.phase("my own"):
        operation.add_event("e")
    for line in recording.pages[0].lines:
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        word, span_id, moment, *_ = msgspec.json.decode(line)
        assert (span_id, type(moment)) == (operation.span_id, int), word


def test_phase_begins_while_the_operation_ends(recording, monkeypatch):
    """If a thread begins a phase while another ends the operation, no mark is set: the page may belong to another operation by then."""
    operation = Operation("save")
    operation.begin()

    def meanwhile_it_ends():
        operation.finish()
        return time.perf_counter_ns()

    monkeypatch.setattr(phases, "_monotonic", meanwhile_it_ends)
    with operation.phase("write"):
        pass
    assert recording.pages[0].marks == {}
