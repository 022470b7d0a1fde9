"""Traces drawn as text."""

from __future__ import annotations

import io
import uuid

import pytest

from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.values import ERROR_CODES
from ckpt_observe.span import SpanEvent, SpanLink
from ckpt_observe.support.advice import ADVICE
from ckpt_observe.support.formatting import wants_colour
from ckpt_observe.testing.spans import make_span, make_tree, outline
from ckpt_observe.tracestore.tree import render


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_tree_shows_one_line_per_span():
    """A line shows name, step, duration, sizes and outcome."""
    saved = {names.SIZE_SERIALIZED: 2000, names.SIZE_STORED: 812, names.RATIO: 2.463}
    spans = make_tree(operations=("save", "save"), outcome="interrupted")
    for number, more in ((2, saved), (5, {names.ERROR_PHASE: "write"})):
        next(span for span in spans if int(span.span_id, 16) == number).attributes.update(more)
    assert render(spans) == [
        "task demo                   8.0 ms",
        "├─ checkpoint.save  step 1  3.0 ms  2.0 kB -> 812 B (codec x2.5)  ok",
        "│  ├─ serialize             1.0 ms",
        "│  └─ write                 1.0 ms",
        "└─ checkpoint.save  step 2                                        interrupted in write (process died)",
        "   ├─ serialize             1.0 ms",
        "   └─ write                 1.0 ms",
    ]


@pytest.mark.parametrize("outcome", ["interrupted", "error"])
def test_memory_of_an_interrupted_operation(outcome):
    """Below an interrupted operation is the memory that its process had used. A failed one does not show it."""
    attributes = {names.OPERATION: "save", names.OUTCOME: outcome, names.MEMORY_PEAK: 3 * 10**9}
    details = [line.strip() for line in render([make_span(1, "checkpoint.save", status="error", attributes=attributes)])[1:]]
    assert details == (["memory: up to 3.0 GB before the process died"] if outcome == "interrupted" else [])


@pytest.mark.parametrize(
    ("attributes", "status", "expected"),
    [
        ({names.OUTCOME: "ok"}, "ok", "ok"),
        (
            {names.OUTCOME: "error", names.ERROR_CLASS: "capacity", names.ERROR_CODE: "storage.no_space", names.ERROR_PHASE: "write"},
            "error",
            "error capacity storage.no_space in write",
        ),
        (
            {
                names.OUTCOME: "error",
                names.ERROR_CLASS: "serialization",
                names.ERROR_CODE: "serialization.unsupported_type",
                names.ERROR_PHASE: "serialize",
                names.ERROR_PATH: "messages[3].tool",
            },
            "error",
            "error serialization.unsupported_type in serialize at messages[3].tool",
        ),
        ({names.OUTCOME: "error", names.ERROR_TYPE: "KeyError"}, "error", "error KeyError"),
        ({names.OUTCOME: "cancelled", names.ERROR_PHASE: "write"}, "error", "cancelled in write"),
        ({}, "error", "error"),
        ({names.OUTCOME: "skipped"}, "unset", "skipped"),
    ],
    ids=["ok", "classified", "path", "unclassified", "cancelled", "foreign", "skipped"],
)
def test_outcome_and_its_reason(attributes, status, expected):
    """A line ends with the outcome of the operation and the reason."""
    span = make_span(1, "checkpoint.save", attributes={names.OPERATION: "save", **attributes}, status=status)
    assert render([span])[0] == f"checkpoint.save  1.0 ms  {expected}"


def test_failed_operation_is_explained():
    """Below a failed operation are the exception, the checkpoint, the store, the impact, what was tried, and what to do."""
    failed = make_span(
        2,
        "checkpoint.load",
        parent=1,
        status="error",
        events=(SpanEvent("exception", 1, {"exception.type": "lib.CorruptError", "exception.message": "two\nlines " + "long " * 30}),),
        attributes={
            names.OPERATION: "load",
            names.OUTCOME: "error",
            names.ID: "step-3",
            names.LOCATION: "file:///data",
            names.ERROR_CODE: "integrity.truncated",
            names.ERROR_CAUSE: "OSError",
            names.ERROR_IMPACT: "the run starts again",
            names.ERROR_RECOVERY: "an earlier checkpoint was loaded",
        },
    )
    phase = make_span(3, "checkpoint.read", parent=2, status="error", attributes={names.PHASE: "read", names.OUTCOME: "error"})
    _, line, *details, last = render([make_span(1, "task t"), failed, phase])
    assert line.endswith("error integrity.truncated")
    assert [detail.removeprefix("   │").strip() for detail in details] == [
        r"lib.CorruptError: two\nlines" + " long" * 16,
        " ".join(["long"] * 14),
        "cause: OSError",
        "checkpoint: step-3",
        "store: file:///data",
        "impact: the run starts again",
        "recovery: an earlier checkpoint was loaded",
        "advice: The checkpoint is incomplete: load an earlier one.",
    ]
    assert last.startswith("   └─ read")


def test_checkpoint_id_of_a_success_is_at_the_end():
    """A successful operation names its checkpoint."""
    [line] = render([make_span(1, "checkpoint.save", attributes={names.OPERATION: "save", names.OUTCOME: "ok", names.ID: "step-3"})])
    assert line.endswith("ok  id step-3")


def test_notes_that_do_not_fit_are_on_a_line_of_their_own():
    """A line has at most 120 columns, so that it fits most terminals."""
    attributes = {names.OPERATION: "save", names.OUTCOME: "ok", names.ID: "x" * 100}
    spans = [make_span(1, "task t"), make_span(2, "checkpoint.save", parent=1, attributes=attributes)]
    assert render(spans)[1:] == ["└─ checkpoint.save  1.0 ms  ok", "        id " + "x" * 100]


def test_every_error_code_has_advice():
    """Whatever fails, the tree says what to do."""
    assert set(ADVICE) == set(ERROR_CODES)


def test_restore_names_the_trace_of_its_save():
    """A restore names the trace of the save that it read."""
    elsewhere = make_span(1, "checkpoint.restore", links=(SpanLink("4bf92f35" + "0" * 24, "1" * 16),))
    same_trace = make_span(2, "checkpoint.restore", links=(SpanLink(f"{1:032x}", "1" * 16),))
    assert render([elsewhere])[0].endswith("from trace 4bf92f35")
    assert render([same_trace])[0].endswith("from a save of this trace")


def test_append_names_its_node():
    """An operation without a step shows the node that it belongs to, and why."""
    [plain] = render([make_span(1, "checkpoint.append", attributes={names.NODE: "search"})])
    [paused] = render([make_span(1, "checkpoint.append", attributes={names.NODE: "approve", names.REASON: "interrupt"})])
    assert (plain, paused) == ("checkpoint.append  search  1.0 ms", "checkpoint.append  approve (interrupt)  1.0 ms")


@pytest.mark.parametrize(
    ("operation", "attributes", "position"),
    [
        ("save", {names.STEP: 0}, "step 0 in research"),
        ("append", {names.NODE: "approve", names.REASON: "interrupt"}, "approve (interrupt) in research"),
        ("load", {}, "in research"),
    ],
)
def test_part_of_the_task(operation, attributes, position):
    """The steps of a subgraph are counted on their own, so its name is beside them, without the IDs that LangGraph adds."""
    name = f"checkpoint.{operation}"
    [line] = render([make_span(1, name, attributes={**attributes, names.NAMESPACE: f"research:{uuid.uuid4()}"})])
    assert line == f"{name}  {position}  1.0 ms"
    [inner] = render([make_span(1, name, attributes={names.NAMESPACE: f"research:{uuid.uuid4()}|inner:{uuid.uuid4()}"})])
    assert inner == f"{name}  in research/inner  1.0 ms"


@pytest.mark.parametrize(
    ("attributes", "note"),
    [
        ({names.RANK: 3, names.WORLD_SIZE: 8}, "rank 3 of 8"),
        ({names.RANK: 3, names.TASK_INFERRED: True}, "rank 3, task inferred"),
        (
            {names.RANK: 0, names.STRAGGLER_RANK: 3, names.STRAGGLER_PHASE: "write", names.STRAGGLER_DELAY: 1.5},
            "rank 0, rank 3 slower by 1.5 s in write",
        ),
        ({names.ASYNC_BLOCKED: 0.0078, names.ASYNC_DURABLE: 1.6}, "blocked 7.8 ms, durable after 1.6 s"),
        ({names.ASYNC_BLOCKED: 0.0078}, "blocked 7.8 ms"),
        ({names.KEY_NAMES: ["a", "b"], names.KEY_SIZES: [10, 900], names.SIZE_SERIALIZED: 1000}, "mostly b (900 B)"),
        ({names.KEY_NAMES: ["a", "b"], names.KEY_SIZES: [300, 400], names.SIZE_SERIALIZED: 1000}, None),
        ({names.KEY_NAMES: ["a"], names.KEY_SIZES: [900], names.GROWN_KEYS: ["a"], names.GROWN_SIZES: [7]}, "mostly a (900 B, +7 B)"),
        (
            {
                names.KEY_NAMES: ["a", "b"],
                names.KEY_SIZES: [400, 300],
                names.SIZE_SERIALIZED: 1000,
                names.GROWN_KEYS: ["b", "a"],
                names.GROWN_SIZES: [200, 1],
            },
            "b grew by 200 B",
        ),
        ({names.KEY_NAMES: ["a"], names.KEY_SIZES: [40], names.SIZE_SERIALIZED: 99, names.GROWN_KEYS: ["b"], names.GROWN_SIZES: [3]}, None),
        ({names.EXISTS: False}, "no checkpoint found"),
        ({names.OPERATION: "list", names.COUNT: 2000}, "2000 checkpoints"),
        ({names.OPERATION: "append", names.COUNT: 1}, "1 item"),
        ({names.ALTERED_KEYS: ["plan", "user"]}, "altered: plan user"),
        ({names.SOURCE_TRACE: "4bf92f35" + "0" * 24, names.ALTERED_KEYS: ["plan"]}, "from trace 4bf92f35, altered: plan"),
    ],
    ids=[
        "rank",
        "inferred",
        "straggler",
        "async",
        "async that failed",
        "large key",
        "no large key",
        "grown",
        "grew a lot",
        "grew a little",
        "nothing",
        "list",
        "session",
        "altered",
        "two",
    ],
)
def test_notes_on_an_operation(attributes, note):
    """A line ends with what explains the operation: the key that makes up most of it or grew a lot, what a load found."""
    [line] = render([make_span(1, "checkpoint.save", attributes={names.OPERATION: "save", names.OUTCOME: "ok", **attributes})])
    assert line.partition("ok  ")[2] == (note or "")


def test_task_shows_its_status():
    """A task that waits for a human shows that it is paused."""
    assert render([make_span(1, "task agent", attributes={names.STATUS: "paused", names.OUTCOME: "ok"})]) == ["task agent  1.0 ms  paused"]


def test_orphans_are_roots_ordered_by_start():
    """A span without its parent is a root; the order of the input does not matter."""
    spans = [make_span(5, "e", parent=2), make_span(3, "c", parent=99), make_span(2, "b", parent=88), make_span(4, "d", parent=2)]
    assert outline(spans) == outline(reversed(spans)) == "b\n  d\n  e\nc"


def test_same_span_id_in_two_traces_is_two_spans():
    """Span ids are unique only within their trace."""
    spans = [make_span(1, "a"), make_span(2, "b", parent=1), make_span(1, "c", trace=2)]
    assert outline(spans) == "a\n  b\nc"


def test_cycle_of_parents_is_shown_once():
    """Spans that are each other's parent, or their own, all appear exactly once."""
    spans = [make_span(1, "a", parent=3), make_span(2, "b", parent=1), make_span(3, "c", parent=2), make_span(4, "self", parent=4)]
    assert outline(spans) == "a\n  b\n    c\nself"


def test_very_deep_trace():
    """A chain of 20,000 spans is drawn with lines of bounded length."""
    lines = render([make_span(number, "x", parent=number - 1) for number in range(1, 20_001)])
    assert len(lines) == 20_000
    assert max(map(len, lines)) < 200


def test_very_wide_trace():
    """A task with 20,000 operations has one line for each."""
    lines = render([make_span(1, "task x"), *(make_span(number, "checkpoint.save", parent=1) for number in range(2, 20_002))])
    assert len(lines) == 20_001
    assert lines[-1].startswith("└─ ")


def test_control_characters_are_escaped():
    """Control characters in names are shown as escapes."""
    [line] = render([make_span(1, "task a\nb\x1b[2Jc")])
    assert line == r"task a\nb\x1b[2Jc  1.0 ms"


def test_no_spans_no_lines():
    """The text of an empty trace is empty."""
    assert render([]) == []


def test_colour_is_optional():
    """Without colour there are no escape sequences; with colour, only the outcome has one."""
    spans = make_tree(outcome="error")
    assert "\x1b" not in "".join(render(spans))
    assert sum("\x1b[31m" in line for line in render(spans, colour=True)) == 1


def test_colour_is_for_terminals(monkeypatch):
    """There is no colour in a pipe, with NO_COLOR or on a dumb terminal. An empty NO_COLOR is ignored."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "")
    assert wants_colour(Terminal())
    assert not wants_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_colour(Terminal())
