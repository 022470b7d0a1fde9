"""Records of the journal become spans."""

from __future__ import annotations

import msgspec
import pytest

import ckpt_observe
from ckpt_observe.core import Checkpointer
from ckpt_observe.delivery.assemble import assemble, lifecycle_events
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events

NOW = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
SPAN, TRACE, PARENT = "00000000000000a1", "0" * 31 + "1", "00000000000000b2"


def assemble_lines(*lines, begin=None, end=None, phases=(), kind=events.OPERATION, name="save"):
    first = [events.BEGIN, SPAN, NOW, kind, name, TRACE, PARENT, begin, None]
    return assemble(msgspec.json.encode([first, *lines, [events.END, SPAN, NOW + 2 * SECOND, end, list(phases), 0]]), {"service.name": "s"})


def test_operation():
    """Every field of the span comes from its place in the record."""
    [span] = assemble_lines(begin={names.ID: "a", names.STEP: None}, end={names.STEP: 3})
    assert (span.trace_id, span.span_id, span.parent_span_id, span.name) == (TRACE, SPAN, PARENT, "checkpoint.save")
    assert (span.start_unix_nano, span.end_unix_nano, span.status) == (NOW, NOW + 2 * SECOND, "ok")
    assert span.attributes == {names.OPERATION: "save", names.OUTCOME: "ok", names.ID: "a", names.STEP: 3}
    assert span.resource == {"service.name": "s"}


def test_task():
    """The span of a task bears the task's name, and has no operation attribute."""
    [span] = assemble_lines(kind=events.TASK, name="train")
    assert span.name == "task train"
    assert names.OPERATION not in span.attributes


def test_derived_attributes():
    """Ratio and throughput are computed, unless the library reported them."""
    sizes = {names.SIZE_SERIALIZED: 3000, names.SIZE_STORED: 1000}
    [span] = assemble_lines(end=sizes)
    assert (span.attributes.get(names.RATIO), span.attributes[names.THROUGHPUT]) == (None, 500.0)
    [span] = assemble_lines(end={**sizes, names.CODEC: "gzip"})
    assert (span.attributes[names.RATIO], span.attributes[names.THROUGHPUT]) == (3.0, 500.0)
    [span] = assemble_lines(end={names.SIZE_SERIALIZED: 3000, names.SIZE_STORED: 1000, names.RATIO: 9.0})
    assert span.attributes[names.RATIO] == 9.0


@pytest.mark.parametrize("stored", [0, "many", True, [], -5])
def test_invalid_sizes(stored):
    """An operation with a size that is not a number is delivered all the same."""
    [span] = assemble_lines(end={names.SIZE_SERIALIZED: "few", names.SIZE_STORED: stored})
    assert span.attributes[names.SIZE_STORED] == stored


def test_phases():
    """The parent of a phase is the operation, another phase, or a foreign span. Phases that were written as lines are included."""
    failed = {names.OUTCOME: "error", "exception.type": "OSError", "exception.message": "no"}
    line = [events.DONE, SPAN, NOW, ["shard", 15, 1, NOW, NOW + 1, {"a": 1}]]
    rows = [["write", 1, 0, NOW, NOW + 5, None], ["commit", 2, 1, NOW, NOW + 4, failed], ["read", 3, PARENT, NOW, NOW + 4, {}]]
    shard, write, commit, read, operation = assemble_lines(line, phases=rows)
    assert [span.name for span in (shard, write, commit, read)] == [f"checkpoint.{name}" for name in ("shard", "write", "commit", "read")]
    assert [span.parent_span_id for span in (shard, write, commit, read)] == [write.span_id, SPAN, write.span_id, PARENT]
    assert write.span_id == events.phase_span_id(SPAN, 1)
    assert (write.attributes, write.status) == ({names.PHASE: "write", names.OUTCOME: "ok"}, "ok")
    assert (commit.status, commit.attributes) == ("error", {names.PHASE: "commit", names.OUTCOME: "error"})
    assert [(event.name, event.time_unix_nano, event.attributes["exception.type"]) for event in commit.events] == [
        ("exception", NOW + 4, "OSError")
    ]
    assert operation.status == "ok"


def test_phase_ids_differ():
    """Phases of one operation never share an id, neither with each other nor with the operation."""
    assert len({events.phase_span_id(SPAN, number) for number in range(10_000)}) == 10_000


@pytest.mark.parametrize(
    ("outcome", "status"), [("ok", "ok"), ("error", "error"), ("interrupted", "error"), ("cancelled", "ok"), ("skipped", "ok")]
)
def test_status(outcome, status):
    """Only failed and interrupted operations have the status error; cancelled and skipped ones do not."""
    [span] = assemble_lines(end={names.OUTCOME: outcome})
    assert span.status == status


def test_events_and_links():
    """A span has its links, and its events in the order of their time."""
    lines = [
        [events.EVENT, SPAN, NOW + 9, "second", None],
        [events.EVENT, SPAN, NOW + 1, "first", {"a": None, "b": 1}],
        [events.LINK, SPAN, NOW, "t", "s", {}],
    ]
    [span] = assemble_lines(*lines)
    assert [(event.name, event.attributes) for event in span.events] == [("first", {"b": 1}), ("second", {})]
    assert [(link.trace_id, link.span_id) for link in span.links] == [("t", "s")]


def test_lines_of_another_operation():
    """Lines that a late thread wrote into the page of another operation are ignored."""
    [span] = assemble_lines([events.EVENT, "00000000000000ff", NOW, "foreign", {}], [events.END, "00000000000000ff", NOW, {}, [], 0])
    assert span.events == ()
    assert span.end_unix_nano == NOW + 2 * SECOND


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b"[]", b"5", b"null", b"[[]]", b'[["begin"]]', b'[["end","a",1,{},[]]]', b'[["begin","a",1],["end","a",1]]', b'[["future","a",1,2]]',
     b'[["begin","a",1,"operation","save","t","",{}],["end","a",1,{},[[1]]]]', b'[["begin","a",1,"operation",5,"t","",{}],["end","a",1,{}]]',
     b'[["begin","a","b","operation","save","t","",{}],["end","a",1,{}]]', b"[" * 3000 + b"]" * 3000],
)  # fmt: skip
def test_unknown_record(payload):
    """A record that cannot be understood gives no span and raises nothing."""
    assert assemble(payload, {}) == []


@pytest.mark.parametrize(
    "line",
    [[events.EVENT, SPAN, NOW, 7, {}], [events.EVENT, SPAN, "now", "retry", {}], [events.LINK, SPAN, NOW, 1, "s", {}], [events.LINK, SPAN, NOW, "t", None, {}]],
)  # fmt: skip
def test_wrong_type_in_a_record(line):
    """A record with a value of a wrong type gives no span: exporters rely on the types of a span."""
    assert assemble_lines(line) == []


# OpenTelemetry's draft events for AI agents


def genai_events(**attributes):
    values = {names.OUTCOME: "ok", names.TASK_ID: "run-1", names.ID: "c-1"}
    values |= {getattr(names, key): value for key, value in attributes.items()}
    return [(event.name, event.time_unix_nano, event.attributes) for event in lifecycle_events(values, NOW)]


def test_genai_event_of_a_save():
    """A save names the checkpoint and the execution."""
    expected = {"gen_ai.agent.execution.id": "run-1", "gen_ai.agent.checkpoint.id": "c-1"}
    assert genai_events(OPERATION="save") == [("gen_ai.agent.checkpointed", NOW, expected)]


def test_genai_event_of_a_pause():
    """A save with the status `paused` also has the event `paused`."""
    assert [name for name, _, _ in genai_events(OPERATION="save", STATUS="paused")] == ["gen_ai.agent.checkpointed", "gen_ai.agent.paused"]
    assert [name for name, _, _ in genai_events(OPERATION="save", STATUS="running")] == ["gen_ai.agent.checkpointed"]


def test_genai_event_of_a_restore():
    """A restore names the checkpoint from which the execution continues."""
    expected = {"gen_ai.agent.execution.id": "run-1", "gen_ai.agent.resumed_from.type": "checkpoint", "gen_ai.agent.resumed_from.id": "c-1"}
    assert genai_events(OPERATION="restore") == [("gen_ai.agent.resumed", NOW, expected)]


@pytest.mark.parametrize(
    "attributes", [{"OPERATION": "load"}, {"OPERATION": "save", "OUTCOME": "error"}, {"OPERATION": "restore", "OUTCOME": "interrupted"}, {}]
)
def test_no_genai_event(attributes):
    """Failed operations have no such event, and a load is not a resume."""
    assert genai_events(**attributes) == []


@pytest.mark.parametrize("setting", ["true", "false"])
def test_genai_setting(setting, monkeypatch, state, stored_spans, tmp_path):
    """The setting decides whether the spans in the store have these events."""
    monkeypatch.setenv("CKPT_OBSERVE_GENAI_EVENTS", setting)
    watch = ckpt_observe.observe(exporters="local", dir=state, pages_dir=tmp_path / "pages")
    checkpointer = Checkpointer(tmp_path / "ckpt")
    saved = checkpointer.save("run-1", {"a": 1}, status="paused")
    checkpointer.restore("run-1")
    watch.close(10)
    span_events = {event.name: event.attributes for span in stored_spans() for event in span.events}
    if setting == "false":
        assert span_events == {}
    else:
        assert set(span_events) == {"gen_ai.agent.checkpointed", "gen_ai.agent.paused", "gen_ai.agent.resumed"}
        assert span_events["gen_ai.agent.resumed"]["gen_ai.agent.resumed_from.id"] == saved.id
