"""Records become spans."""

from __future__ import annotations

import msgspec
import pytest

from ckpt_observe.delivery.assemble import assemble
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events

NOW = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
SPAN, TRACE, PARENT = "00000000000000a1", "0" * 31 + "1", "00000000000000b2"


def made(*lines, given=None, end=None, phases=(), kind=events.OPERATION, name="save"):
    begin = [events.BEGIN, SPAN, NOW, kind, name, TRACE, PARENT, given, None]
    return assemble(msgspec.json.encode([begin, *lines, [events.END, SPAN, NOW + 2 * SECOND, end, list(phases), 0]]), {"service.name": "s"})


def test_operation():
    """Every field of the span comes from its place in the record."""
    [span] = made(given={names.ID: "a", names.STEP: None}, end={names.STEP: 3})
    assert (span.trace_id, span.span_id, span.parent_span_id, span.name) == (TRACE, SPAN, PARENT, "checkpoint.save")
    assert (span.start_unix_nano, span.end_unix_nano, span.status) == (NOW, NOW + 2 * SECOND, "ok")
    assert span.attributes == {names.OPERATION: "save", names.OUTCOME: "ok", names.ID: "a", names.STEP: 3}
    assert span.resource == {"service.name": "s"}


def test_task():
    """A task is named by its name, and is no operation."""
    [span] = made(kind=events.TASK, name="train")
    assert span.name == "task train"
    assert names.OPERATION not in span.attributes


def test_derived():
    """Ratio and throughput are worked out here; what the library said itself goes first."""
    [span] = made(end={names.SIZE_SERIALIZED: 3000, names.SIZE_STORED: 1000})
    assert (span.attributes[names.RATIO], span.attributes[names.THROUGHPUT]) == (3.0, 500.0)
    [span] = made(end={names.SIZE_SERIALIZED: 3000, names.SIZE_STORED: 1000, names.RATIO: 9.0})
    assert span.attributes[names.RATIO] == 9.0


@pytest.mark.parametrize("stored", [0, "many", True, [], -5])
def test_odd_sizes(stored):
    """A size that is none does not lose the operation."""
    [span] = made(end={names.SIZE_SERIALIZED: "few", names.SIZE_STORED: stored})
    assert span.attributes[names.SIZE_STORED] == stored


def test_phases():
    """A phase's parent is the operation, another phase, or somebody else's span; phases told by lines are there too."""
    failed = {names.OUTCOME: "error", "exception.type": "OSError", "exception.message": "no"}
    done = [events.DONE, SPAN, NOW, ["shard", 15, 1, NOW, NOW + 1, {"a": 1}]]
    rows = [["write", 1, 0, NOW, NOW + 5, None], ["commit", 2, 1, NOW, NOW + 4, failed], ["read", 3, PARENT, NOW, NOW + 4, {}]]
    shard, write, commit, read, operation = made(done, phases=rows)
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
    """Phases of one operation never share an id, with each other or with it."""
    assert len({events.phase_span_id(SPAN, number) for number in range(10_000)}) == 10_000


@pytest.mark.parametrize(
    ("outcome", "status"), [("ok", "ok"), ("error", "error"), ("interrupted", "error"), ("cancelled", "ok"), ("skipped", "ok")]
)
def test_status(outcome, status):
    """A pause or a stop on purpose is no error."""
    [span] = made(end={names.OUTCOME: outcome})
    assert span.status == status


def test_events_and_links():
    """Events in the order in which they happened, and links."""
    lines = [
        [events.EVENT, SPAN, NOW + 9, "second", None],
        [events.EVENT, SPAN, NOW + 1, "first", {"a": None, "b": 1}],
        [events.LINK, SPAN, NOW, "t", "s", {}],
    ]
    [span] = made(*lines)
    assert [(event.name, event.attributes) for event in span.events] == [("first", {"b": 1}), ("second", {})]
    assert [(link.trace_id, link.span_id) for link in span.links] == [("t", "s")]


def test_lines_of_another_operation():
    """What a thread that came too late wrote into the page of another operation is not taken for its own."""
    [span] = made([events.EVENT, "00000000000000ff", NOW, "not mine", {}], [events.END, "00000000000000ff", NOW, {}, [], 0])
    assert span.events == ()
    assert span.end_unix_nano == NOW + 2 * SECOND


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b"[]", b"5", b"null", b"[[]]", b'[["begin"]]', b'[["end","a",1,{},[]]]', b'[["begin","a",1],["end","a",1]]', b'[["future","a",1,2]]',
     b'[["begin","a",1,"operation","save","t","",{}],["end","a",1,{},[[1]]]]', b'[["begin","a",1,"operation",5,"t","",{}],["end","a",1,{}]]',
     b'[["begin","a","b","operation","save","t","",{}],["end","a",1,{}]]', b"[" * 3000 + b"]" * 3000],
)  # fmt: skip
def test_unknown_record(payload):
    """A record that we do not know gives nothing, and raises nothing."""
    assert assemble(payload, {}) == []
