"""Operations and phases: begun, ended exactly once, and what they say of themselves."""

from __future__ import annotations

import asyncio
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


def one(recorded, name):
    [span] = [span for span in recorded.spans() if span.name == name]
    return span


def test_ends_once(recorded):
    """Whoever ends it first ends it; later ends change nothing."""
    operation = Operation("save")
    operation.begin()
    operation.finish()
    operation.finish(ValueError("late"))
    operation.end()
    assert recorded.pages[0].ended == 1
    assert one(recorded, "checkpoint.save").attributes[names.OUTCOME] == "ok"


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
def test_ends_on_any_exit(recorded, error, outcome, status, events):
    """Every BaseException ends phase and operation, and leaves the block as the same object."""
    with pytest.raises(type(error)) as caught, ckpt_observe.checkpoint("save") as operation, operation.phase("write"):
        raise error
    assert caught.value is error
    for name in ("checkpoint.save", "checkpoint.write"):
        found = one(recorded, name)
        assert (found.attributes[names.OUTCOME], found.status, len(found.events)) == (outcome, status, events)
        assert found.attributes[names.ERROR_TYPE] == type(error).__name__
        assert found.attributes[names.ERROR_PHASE] == "write"
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_exception_event(recorded):
    """The event has type, message without secrets, and the stack without source lines."""
    with pytest.raises(OSError), ckpt_observe.checkpoint("save"):
        raise OSError(28, "No space left on postgres://u:hunter2@db/x")
    [event] = one(recorded, "checkpoint.save").events
    assert event.name == "exception"
    assert event.attributes["exception.type"] == "OSError"
    assert "No space left" in event.attributes["exception.message"]
    assert "hunter2" not in recorded.text()
    assert event.attributes["exception.stacktrace"].endswith("in test_exception_event")


def test_exception_that_cannot_be_printed(recorded):
    """An exception whose `__str__` raises is told by its type, and the operation ends."""

    class MuteError(Exception):
        def __str__(self):
            raise RuntimeError

    with pytest.raises(MuteError), ckpt_observe.checkpoint("save") as operation, operation.phase("write"):
        raise MuteError
    assert one(recorded, "checkpoint.save").events[0].attributes["exception.message"] == "<MuteError>"


def test_failed_phase_is_the_innermost(recorded):
    """The phase that is named in the failure is the one in which the exception was raised."""
    with pytest.raises(ValueError), ckpt_observe.checkpoint("save") as op, op.phase("write"), op.phase("compress"):
        raise ValueError
    assert one(recorded, "checkpoint.save").attributes[names.ERROR_PHASE] == "compress"


def test_handled_failure_of_a_phase(recorded):
    """A phase that failed and was handled leaves the operation ok."""
    with ckpt_observe.checkpoint("save") as operation, pytest.raises(ValueError), operation.phase("validate"):
        raise ValueError
    assert one(recorded, "checkpoint.validate").status == "error"
    assert one(recorded, "checkpoint.save").status == "ok"
    assert names.ERROR_CLASS not in one(recorded, "checkpoint.save").attributes


def test_nesting(recorded):
    """Operations nest in tasks, phases and operations; phases in phases."""
    with ckpt_observe.task("train"), ckpt_observe.checkpoint("restore") as outer, outer.phase("read"):
        with outer.phase("decompress"):
            pass
        with ckpt_observe.checkpoint("load") as inner, inner.phase("read"), ckpt_observe.phase("validate"):
            pass
    assert outline(recorded.spans()).splitlines() == [
        "task train",
        "  checkpoint.restore",
        "    checkpoint.read",
        "      checkpoint.decompress",
        "      checkpoint.load",
        "        checkpoint.read",
        "          checkpoint.validate",
    ]


def test_times_enclose(recorded):
    """A child lies within its parent, and nothing lasts less than no time."""
    with ckpt_observe.checkpoint("save") as operation, operation.phase("write"), operation.phase("commit"):
        pass
    spans = {span.name: span for span in recorded.spans()}
    save, write, commit = (spans[f"checkpoint.{name}"] for name in ("save", "write", "commit"))
    assert save.start_unix_nano <= write.start_unix_nano <= commit.start_unix_nano
    assert commit.start_unix_nano <= commit.end_unix_nano <= write.end_unix_nano <= save.end_unix_nano


def test_task_is_on_its_operations(recorded):
    """Name, id, user and session of the task are on every operation within it; what the operation says itself goes first."""
    with ckpt_observe.task("train", id="run-1", user="u", session="s", attributes={"own": 1}):
        with ckpt_observe.checkpoint("save", id="a", step=3):
            pass
        with ckpt_observe.checkpoint("load", attributes={names.TASK_ID: "run-0"}):
            pass
    shared = {names.TASK_NAME: "train", names.TASK_ID: "run-1", names.USER_ID: "u", names.SESSION_ID: "s"}
    save, load = one(recorded, "checkpoint.save").attributes, one(recorded, "checkpoint.load").attributes
    assert save.items() >= (shared | {names.ID: "a", names.STEP: 3, names.OPERATION: "save", names.SYSTEM: "custom"}).items()
    assert "own" not in save
    assert load[names.TASK_ID] == "run-0"
    assert one(recorded, "task train").attributes.items() >= (shared | {"own": 1}).items()


def test_first_phases_are_marks(recorded):
    """A phase of the registry costs two words while it runs, and no line."""
    with ckpt_observe.checkpoint("save") as operation:
        for name in ("serialize", "write"):
            with operation.phase(name):
                assert len(recorded.pages[0].lines) == 1
    assert sorted(recorded.pages[0].marks) == [2, 3, 4, 5]
    assert len(recorded.pages[0].lines) == 2


def test_many_and_own_phases(recorded):
    """More phases than there are marks, and phases of one's own words, are told by lines, and none is missing."""
    with ckpt_observe.checkpoint("save") as operation:
        with operation.phase("shard 0"), operation.phase("write") as phase:
            phase.set({names.PHASE_BYTES_OUT: 7})
        for _ in range(300):
            with operation.phase("write") as phase:
                phase.set({names.PHASE_BYTES_OUT: 7})
    assert all(len(line) <= 4000 for line in recorded.pages[0].lines)
    phases = [span for span in recorded.spans() if span.name == "checkpoint.write"]
    assert [span.attributes[names.PHASE_BYTES_OUT] for span in phases] == [7] * 301
    assert len({span.span_id for span in recorded.spans()}) == 303
    own = one(recorded, "checkpoint.shard 0")
    assert [span.parent_span_id for span in phases].count(own.span_id) == 1
    assert one(recorded, "checkpoint.save").status == "ok"


def test_phase_after_the_end_writes_nothing(recorded):
    """A phase that outlives its operation, in another thread say, leaves the page alone: it may be another operation's by then."""
    operation = Operation("save")
    operation.begin()
    phase = Phase(operation, "write")
    phase.__enter__()
    marks = dict(recorded.pages[0].marks)
    operation.finish()
    phase.__exit__(None, None, None)
    assert recorded.pages[0].marks == marks
    with operation.phase("commit"):
        pass
    assert len(recorded.pages[0].lines) == 2


def test_links(recorded):
    """A link points to another span, with attributes."""
    with ckpt_observe.checkpoint("restore") as operation:
        operation.link("a" * 32, "b" * 16)
        operation.add_link(trace.SpanContext(1, 2, is_remote=True), {"why": "second"})
    assert [(link.trace_id, link.span_id, link.attributes) for link in one(recorded, "checkpoint.restore").links] == [
        ("a" * 32, "b" * 16, {}),
        (f"{1:032x}", f"{2:016x}", {"why": "second"}),
    ]


@pytest.mark.parametrize("ids", [("", ""), ("0" * 32, "0" * 16), ("x", "y"), (5, 6), ("a" * 32, "b" * 15)])
def test_a_link_to_nothing_is_left_out(recorded, ids):
    """As OpenTelemetry does: no backend takes a link without ids, and the operation must not be lost by it."""
    with ckpt_observe.checkpoint("restore") as operation:
        operation.link(*ids)
        operation.add_link(None)
        operation.add_link(trace.INVALID_SPAN_CONTEXT)
        operation.link("A" * 32, "B" * 16)
    assert [(link.trace_id, link.span_id) for link in one(recorded, "checkpoint.restore").links] == [("a" * 32, "b" * 16)]


@pytest.mark.parametrize("moment", ["soon", 1.5, -1, 2**70])
@pytest.mark.parametrize("name", [5, None, object(), "sk-proj-0123456789abcdef0123"], ids=["int", "none", "object", "key"])
def test_an_event_has_a_name_and_a_time(recorded, name, moment):
    """Whatever the host gave as such: the span can be stored and read, and a key in the name is gone."""
    with ckpt_observe.checkpoint("save"):
        trace.get_current_span().add_event(name, {"a": 1}, moment)
    span = one(recorded, "checkpoint.save")
    assert span.start_unix_nano <= span.events[0].time_unix_nano <= span.end_unix_nano
    assert type(span.events[0].name) is str
    assert "0123456789abcdef" not in recorded.text()


@pytest.mark.parametrize(
    ("name", "told"),
    [(7, "7"), (None, "None"), (2.5, "2.5"), ((1, 2), "[1, 2]"), ([], "[]"), (object(), "<object>")],
    ids=["int", "none", "float", "tuple", "list", "object"],
)
def test_a_phase_whose_name_is_no_word(recorded, name, told):
    """The number of a shard, say: it is a phase as any other, and the operation is there."""

    @ckpt_observe.phase(name)
    def decorated():
        pass

    with ckpt_observe.checkpoint("save") as operation:
        with operation.phase(name):
            pass
        decorated()
    assert [span.name for span in recorded.spans()] == [f"checkpoint.{told}"] * 2 + ["checkpoint.save"]


def test_off_is_nothing():
    """Without `observe` nothing is recorded, and the block runs."""
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


def test_lines_are_json(recorded):
    """Every line is one JSON array: word, operation id, time."""
    with ckpt_observe.checkpoint("save") as operation, operation.phase("my own"):
        operation.add_event("e")
    for line in recorded.pages[0].lines:
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        word, span_id, moment, *_ = msgspec.json.decode(line)
        assert (span_id, type(moment)) == (operation.span_id, int), word


def test_phase_that_comes_too_late(recorded, monkeypatch):
    """A thread that begins a phase while another ends the operation leaves no mark: the page may be another operation's by then."""
    operation = Operation("save")
    operation.begin()

    def meanwhile_it_ends():
        operation.finish()
        return time.perf_counter_ns()

    monkeypatch.setattr(phases, "_monotonic", meanwhile_it_ends)
    with operation.phase("write"):
        pass
    assert recorded.pages[0].marks == {}
