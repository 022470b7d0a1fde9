"""The Laminar exporter, against a stand-in that reports what Laminar's page would show wrongly."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
from laminar_server import LaminarServer
from msgspec import structs

from ckpt_observe.delivery.exporter_worker import ExporterWorker
from ckpt_observe.delivery.set_aside import FIRST_RETRY, SetAside
from ckpt_observe.endpoints import Endpoint
from ckpt_observe.errors import ExporterRefusedError, ExporterRetryError, ExporterUnclearError
from ckpt_observe.exporters import laminar as module
from ckpt_observe.exporters import otlp
from ckpt_observe.exporters.laminar import SETTLE_SECONDS, LaminarExporter
from ckpt_observe.exporters.laminar_shape import RECOVERED, shape
from ckpt_observe.span import SpanEvent, SpanLink
from ckpt_observe.testing.exporters import ExporterContract
from ckpt_observe.testing.spans import START_UNIX_NANO, make_span, make_tree

ASSOCIATION = "lmnr.association.properties."


@pytest.fixture
def laminar():
    with LaminarServer() as running:
        yield running


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests move forward."""
    clock = SimpleNamespace(now=1000.0, time_ns=lambda: START_UNIX_NANO)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def exporter(laminar, clock):
    exporter = make_exporter(laminar)
    yield exporter
    exporter.close()


@pytest.fixture
def impatient_exporter(laminar, clock):
    """For servers that do not answer."""
    exporter = make_exporter(laminar, timeout=0.5)
    yield exporter
    exporter.close()


def make_exporter(laminar, **fields):
    return LaminarExporter(
        Endpoint(
            f"{laminar.url}/v1/traces", **{"headers": {"authorization": f"Bearer {laminar.key}"}, "timeout": 30.0, "gzip": True, **fields}
        )
    )


def with_ancestors(spans):
    """Return the spans with their ancestors, as delivery provides them."""
    by_id = {span.span_id: span for span in spans}

    def chain(span):
        above = by_id.get(span.parent_span_id)
        return () if above is None else (*chain(above), (above.span_id, above.name))

    return [structs.replace(span, ancestors=chain(span)) for span in spans]


def stored_spans(laminar, originals):
    """Yield what the server has, without the attributes that the exporter adds."""
    by_id = {span.span_id: span for span in originals}
    for row in laminar.rows:
        span = by_id[row.span_id]
        attributes = {name: row.attributes[name] for name in span.attributes if name in row.attributes}
        yield structs.replace(row, attributes=attributes, ancestors=span.ancestors)


class TestLaminarExporter(ExporterContract):
    test_repeat_leaves_one_copy = None  # the server keeps every copy; the exporter avoids repeats, see below
    secrets = (LaminarServer.key,)

    @pytest.fixture
    def exporter(self, laminar):
        exporter = make_exporter(laminar)
        exporter.laminar, exporter.originals = laminar, []
        send = exporter.send
        exporter.send = lambda spans: (exporter.originals.extend(spans), send(spans))[1]
        yield exporter
        exporter.close()

    def received(self, exporter):
        return list(stored_spans(exporter.laminar, exporter.originals))

    def break_backend(self, exporter):
        exporter.laminar.otherwise = 503


# Shape of spans


def test_complete_trace(laminar, exporter):
    """A task with a save and a failed restore has no complaints, operations are in the default view, and only the failure is red."""
    exporter.send(with_ancestors(make_tree(operations=("save", "restore"), outcome="error")))
    assert laminar.complaints() == []
    assert laminar.transcript() == ["checkpoint.save", "checkpoint.restore"]
    assert laminar.red() == ["checkpoint.restore"]


def test_operations_of_a_running_task(laminar, exporter):
    """Operations of a running task have the complete path, so that the page shows them."""
    exporter.send(with_ancestors(make_tree())[:-1])
    assert laminar.complaints() == []
    assert laminar.tree() == [span.name for span in make_tree()[:-1]]
    save = next(row for row in laminar.rows if row.name == "checkpoint.save")
    assert save.attributes["lmnr.span.path"] == ["task demo", "checkpoint.save"]
    assert save.attributes["lmnr.span.ids_path"] == ["00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"]


def test_no_ids_if_ancestors_are_unknown():
    """If the ancestors are unknown, there are no ids of them: a partial path would create a false root. Nothing is invented without a task."""
    span = make_span(2, "checkpoint.save", parent=1)
    assert not {"lmnr.span.path", "lmnr.span.ids_path"} & shape(span).attributes.keys()
    named = shape(structs.replace(span, attributes={"checkpoint.task.name": "demo"})).attributes
    assert (named["lmnr.span.path"], "lmnr.span.ids_path" in named) == (["task demo", "checkpoint.save"], False)


def test_trace_keeps_the_name_of_its_task(laminar, exporter):
    """Spans of another process that know only their parent come last, and do not rename the trace."""
    exporter.send(with_ancestors(make_tree()))
    exporter.send([make_span(9, "checkpoint.write", parent=8), make_span(8, "checkpoint.save", parent=1)])
    assert list(laminar.trace_names.values()) == ["task demo"]


def test_batches_of_another_process_keep_the_name(laminar, exporter):
    """Phases of a process that knows only its parent do not name the trace, although only their operation names the task."""
    phase, other, save, _ = make_tree()
    exporter.send([save, phase, other])
    assert list(laminar.trace_names.values()) == ["task demo"]
    exporter.send([make_span(9, "checkpoint.read", parent=8)])
    assert list(laminar.trace_names.values()) == ["task demo"]


def test_search_for_running_tasks(laminar, clock):
    """Each unknown trace is searched once among the running tasks, and all searches together take at most 2 % of the time."""
    endpoint = Endpoint(f"{laminar.url}/v1/traces", headers={"authorization": laminar.authorization})
    searches = []

    def find(trace_ids):
        searches.append(sorted(trace_ids))
        clock.now += 0.1
        return {}

    exporter = LaminarExporter(endpoint, find_running_tasks=find)

    def save(trace, number):
        exporter.send([make_span(number, "checkpoint.save", parent=99, trace=trace)])

    first, second, third = (make_span(1, "x", trace=trace).trace_id for trace in (1, 2, 3))
    save(1, 1)
    save(1, 2)
    save(2, 3)
    clock.now += 4.9
    save(2, 4)
    assert searches == [[first]]
    clock.now += 0.2
    save(2, 5)
    clock.now += 5.1
    save(2, 6)
    save(3, 7)
    assert searches == [[first], [second], [third]]


@pytest.mark.parametrize("content", [None, b"damaged" * 999])
def test_local_store_that_cannot_be_read(laminar, tmp_path, content):
    """Without a local store, or with a damaged one, a span of another process is sent all the same, and the file is as it was."""
    store = tmp_path / "operations.db"
    if content is not None:
        store.write_bytes(content)
    LaminarExporter(Endpoint(f"{laminar.url}/v1/traces", headers={"authorization": laminar.authorization}), None, store).send(
        [make_span(2, "checkpoint.save", parent=1)]
    )
    assert [row.name for row in laminar.rows] == ["checkpoint.save"]
    assert (store.read_bytes() if store.exists() else None) == content


def test_remembered_roots_are_bounded(laminar, exporter, monkeypatch):
    """The names of roots are remembered for the newest traces only."""
    monkeypatch.setattr(module, "_MAX_ROOTS", 3)
    for trace in range(1, 9):
        exporter.send(with_ancestors(make_tree(trace)))
    assert len(exporter._root_names) == 3


def test_operations_are_in_the_transcript():
    """Operations have the type TOOL, also without a task; phases and tasks have none."""
    phase, _, save, task = make_tree()
    kinds = [
        shape(span).attributes.get("lmnr.span.type")
        for span in (phase, save, task, make_span(1, "checkpoint.save", attributes={"checkpoint.operation": "save"}))
    ]
    assert kinds == [None, "TOOL", None, "TOOL"]


def test_pruning_after_a_save_is_not_in_the_transcript(laminar, exporter):
    """A prune inside a save has no line of its own, unless it failed; a prune that the program asked for has one."""
    prune = {"checkpoint.operation": "prune"}
    inside = make_span(
        3, "checkpoint.prune", parent=2, attributes=prune, ancestors=(("1" * 16, "task demo"), ("2" * 16, "checkpoint.save"))
    )
    asked_for = make_span(4, "checkpoint.prune", parent=1, attributes=prune, ancestors=(("1" * 16, "task demo"),))
    failed = structs.replace(inside, status="error")
    assert [shape(span).attributes.get("lmnr.span.type") for span in (inside, asked_for, failed)] == [None, "TOOL", "TOOL"]


SIZES = {"checkpoint.step": 3, "checkpoint.size.serialized": 12_200, "checkpoint.size.stored": 973}


@pytest.mark.parametrize(
    ("attributes", "fields", "preview"),
    [
        (SIZES, {}, "step 3 · 12.2 kB → 973 B"),
        ({**SIZES, "checkpoint.source.age": 90.0}, {}, "step 3 · 12.2 kB → 973 B · saved 1m 30s before"),
        ({"checkpoint.size.serialized": 800, "checkpoint.size.stored": 800}, {}, "800 B"),
        ({"checkpoint.step": 4, "checkpoint.outcome": "interrupted", "checkpoint.error.phase": "write"}, {"status": "error"}, "step 4 · interrupted in write"),
        ({}, {"status": "error", "events": (SpanEvent("exception", 5, {"exception.type": "OSError", "exception.message": "no\nspace"}),)}, "OSError: no space"),
    ],
)  # fmt: skip
def test_preview_is_readable(laminar, attributes, fields, preview):
    """The line of an operation in the transcript says step, sizes and age, or the error."""
    span = shape(make_span(1, "checkpoint.save", attributes={"checkpoint.operation": "save", **attributes}, **fields))
    assert laminar.preview(span) == preview


def test_restore_names_its_source():
    """The output of a restore has step, age and steps to repeat, and the ids of the save in Laminar's notation."""
    facts = {
        "checkpoint.operation": "restore",
        "checkpoint.step": 3,
        "checkpoint.source.age": 12.5,
        "checkpoint.source.steps_since": 2,
        "checkpoint.source.trace_id": "ab" * 16,
        "checkpoint.source.span_id": "cd" * 8,
    }
    output = json.loads(shape(make_span(1, "checkpoint.restore", attributes=facts)).attributes["lmnr.span.output"])
    assert output == {
        "source.age": 12.5,
        "source.steps_since": 2,
        "source.step": 3,
        "source.trace": "abababab-abab-abab-abab-abababababab",
        "source.span": "00000000-0000-0000-cdcd-cdcdcdcdcdcd",
    }


@pytest.mark.parametrize("outcome", ["ok", "cancelled", "skipped"])
def test_no_exception_event_without_failure(outcome):
    """If the operation did not fail, its exception event has another name, so that the span is not red."""
    span = make_span(
        1,
        "checkpoint.save",
        attributes={"checkpoint.outcome": outcome},
        events=(SpanEvent("exception", START_UNIX_NANO, {"exception.message": "once"}),),
    )
    assert [event.name for event in shape(span).events] == [RECOVERED]


def test_interrupted_operation_is_red():
    """An interrupted save has no exception event and gets one."""
    facts = {"checkpoint.outcome": "interrupted", "checkpoint.error.phase": "write"}
    span = shape(make_span(1, "checkpoint.save", status="error", attributes=facts))
    [event] = span.events
    assert (event.name, event.attributes["exception.message"], event.time_unix_nano) == (
        "exception",
        "interrupted in write",
        span.end_unix_nano,
    )


def test_association_properties_are_strings():
    """Session, user, task and service fill Laminar's columns as strings; their OpenTelemetry names remain."""
    facts = {
        "checkpoint.operation": "save",
        "session.id": "s1",
        "user.id": 7,
        "checkpoint.task.name": "train",
        "checkpoint.task.id": "run-42",
    }
    attributes = shape(make_span(2, "checkpoint.save", parent=1, attributes=facts, resource={"service.name": "trainer"})).attributes
    assert {name: value for name, value in attributes.items() if name.startswith(ASSOCIATION)} == {
        ASSOCIATION + "session_id": "s1",
        ASSOCIATION + "user_id": "7",
        ASSOCIATION + "metadata.checkpoint.task.name": "train",
        ASSOCIATION + "metadata.checkpoint.task.id": "run-42",
        ASSOCIATION + "metadata.service.name": "trainer",
        ASSOCIATION + "tags": ["checkpoint"],
    }
    assert (attributes["session.id"], attributes["user.id"], attributes["service.name"]) == ("s1", 7, "trainer")


def test_input_and_output_are_small_json():
    """Input and output are JSON strings, which the page parses."""
    facts = {
        "checkpoint.operation": "save",
        "checkpoint.id": "step-1",
        "checkpoint.step": 1,
        "checkpoint.outcome": "ok",
        "checkpoint.size.stored": 800,
    }
    attributes = shape(make_span(1, "checkpoint.save", attributes=facts)).attributes
    assert json.loads(attributes["lmnr.span.input"]) == {"summary": "step 1 · 800 B", "id": "step-1", "step": 1}
    assert json.loads(attributes["lmnr.span.output"]) == {"outcome": "ok", "size.stored": 800}


def test_links_are_sent_as_attributes():
    """Laminar stores no links, so their ids are attributes, in the notation of its pages."""
    attributes = shape(make_span(1, "checkpoint.restore", links=(SpanLink("ab" * 16, "cd" * 8),))).attributes
    assert (attributes["link.trace_id"], attributes["link.span_id"]) == (
        ["abababab-abab-abab-abab-abababababab"],
        ["00000000-0000-0000-cdcd-cdcdcdcdcdcd"],
    )


def test_attributes_that_control_laminar_are_renamed():
    """Attributes of the program that would turn the span into a model call, or change its path, are renamed."""
    attributes = shape(make_span(1, "checkpoint.save", attributes={"gen_ai.system": "x", "lmnr.span.path": "y"})).attributes
    assert (attributes["own.gen_ai.system"], attributes["own.lmnr.span.path"]) == ("x", "y")
    assert "gen_ai.system" not in attributes


def test_non_finite_numbers_and_negative_durations():
    """NaN and infinity are sent as strings, and no span ends before it starts."""
    span = shape(make_span(1, "x", attributes={"a": math.nan, "b": -math.inf}, end_unix_nano=5))
    assert (span.attributes["a"], span.attributes["b"]) == ("nan", "-inf")
    assert span.end_unix_nano == span.start_unix_nano


SAVE = {"checkpoint.operation": "save", "lmnr.span.type": "TOOL"}
EXCEPTION = SpanEvent("exception", START_UNIX_NANO, {})
WRONG_SPANS = {
    "not in the transcript": {"attributes": {"checkpoint.operation": "save"}},
    "a line that hides others": {"attributes": {"lmnr.span.type": "TOOL"}},
    "a type that becomes DEFAULT": {"attributes": {**SAVE, "lmnr.span.type": "SPAN"}},
    "no readable preview": {"attributes": {**SAVE, "checkpoint.step": 1, "lmnr.span.input": '{"step": 1}'}},
    "an empty page of the trace": {"name": "task demo"},
    "path and ids path do not match": {"attributes": {"lmnr.span.path": ["task", "x"], "lmnr.span.ids_path": ["1"]}},
    "a path that does not end with it": {"attributes": {"lmnr.span.path": ["task demo"]}},
    "re-parented, or a false root": {"parent": 2, "attributes": {"lmnr.span.path": ["x"], "lmnr.span.ids_path": ["1"]}},
    "a link that leads nowhere": {"attributes": {"link.trace_id": ["ab" * 16]}},
    "hidden, because its parent": {"parent": 2},
    "lmnr.span.output is lost": {"attributes": {"lmnr.span.output": 1}},
    "session_id is lost": {"attributes": {ASSOCIATION + "session_id": 1}},
    "tags are lost": {"attributes": {ASSOCIATION + "tags": "checkpoint"}},
    "metadata.step is lost": {"attributes": {ASSOCIATION + "metadata.step": 1}},
    "a negative duration": {"end_unix_nano": 0},
    "a number that becomes null": {"attributes": {"a": math.nan}},
    "not red, and the message is lost": {"status": "error"},
    "red, although it did not fail": {"events": (EXCEPTION,)},
    "a trace id that the server": {"trace_id": "ab" * 8},
    "a model call": {"attributes": {"gen_ai.system": "x"}},
    "loses its quotes": {"attributes": {"a": '"x"'}},
    "not found by its session.id": {"attributes": {"session.id": "s1"}},
    "the resource is lost": {"name": "checkpoint.write", "resource": {"service.name": "trainer"}},
    "a link is lost": {"links": (SpanLink("ab" * 16, "cd" * 8),)},
    "does not name its source": {"attributes": {"checkpoint.source.span_id": "cd" * 8}},
}
"""Fields of a span by what the page does with it."""


OTHER_MISTAKES = [
    ("tags are lost", {"attributes": {ASSOCIATION + "tags": [1]}}),
    ("a number that becomes null", {"attributes": {"list": [1.0, math.inf]}}),
    ("a number that becomes null", {"attributes": {"lmnr.span.output": '{"ratio": NaN}'}}),
    ("re-parented, or a false root", {"attributes": {"lmnr.span.path": ["a", "x"], "lmnr.span.ids_path": ["1", "00000000-0000-0000-0000-000000000001"]}}),
    ("a line that hides others", {"attributes": {"checkpoint.operation": "prune", "checkpoint.retention": True, "lmnr.span.type": "TOOL"}}),
    ("hidden, because its parent", {"parent": 2, "attributes": {"lmnr.span.path": ["task", "x"]}}),
    ("no readable preview", {"attributes": {**SAVE, "checkpoint.size.stored": 9, "lmnr.span.input": '{"summary": "1"}'}}),
    ("no readable preview", {"status": "error", "attributes": {**SAVE, "checkpoint.step": 1, "lmnr.span.input": '{"summary": "step 1"}', "checkpoint.outcome": "error"}, "events": (EXCEPTION,)}),
    ("a link that leads nowhere", {"attributes": {"checkpoint.source.span_id": "cd" * 8, "lmnr.span.output": '{"source.trace": "abab", "source.span": "cdcd"}'}}),
]  # fmt: skip
"""The same mistakes, made in another way."""


@pytest.mark.parametrize(("complaint", "mistake"), [*WRONG_SPANS.items(), *OTHER_MISTAKES])
def test_stand_in_reports_wrong_spans(laminar, complaint, mistake):
    """Control: the stand-in reports each mistake, and nothing about a plain span."""
    fields = {"attributes": {}, **mistake}
    changes = {key: fields.pop(key) for key in ("trace_id", "end_unix_nano") if key in fields}
    laminar.keep([make_span(7, "plain")])
    assert laminar.complaints() == []
    laminar.rows.clear()
    laminar.keep([structs.replace(make_span(1, fields.pop("name", "x"), **fields), **changes)])
    assert any(complaint in each for each in laminar.complaints()), laminar.complaints()


def test_stand_in_reports_what_several_spans_do(laminar):
    """Control: a second copy, metadata that differ within a trace, and a later span that renames or moves the trace are noticed; some are dropped."""
    step = ASSOCIATION + "metadata.step"
    copy = make_span(1, "x", attributes={step: "1"})
    laminar.keep([copy, copy, make_span(2, "y", attributes={step: "2"}), make_span(3, "RunnableLambda.task")])
    complaints = laminar.complaints()
    assert any("stored twice" in each for each in complaints)
    assert any("overwritten by another span" in each for each in complaints)
    assert "RunnableLambda.task" not in [row.name for row in laminar.rows]
    laminar.keep([make_span(4, "checkpoint.serialize", parent=1, start=-120_000)])
    assert list(laminar.trace_names.values()) == ["checkpoint.serialize"]
    complaints = laminar.complaints()
    assert any("its trace is called checkpoint.serialize" in each for each in complaints)
    assert any("moves its trace" in each for each in complaints)


def test_stand_in_shows_incomplete_traces(laminar):
    """Control: below a task that has not ended, spans with the whole path are in the tree, and every operation is in the transcript."""
    ids = [f"00000000-0000-0000-0000-{number:012x}" for number in (1, 2)]
    path = {"lmnr.span.path": ["task demo", "checkpoint.save"]}
    laminar.keep([make_span(2, "checkpoint.save", parent=1, attributes={**SAVE, **path, "lmnr.span.ids_path": ids})])
    laminar.keep([make_span(3, "checkpoint.load", parent=1, attributes=SAVE), make_span(4, "checkpoint.write", parent=1, attributes=path)])
    assert laminar.tree() == ["checkpoint.save"]
    assert laminar.transcript() == ["checkpoint.save", "checkpoint.load"]
    laminar.keep([make_span(1, "task demo")])
    assert len(laminar.tree()) == len(laminar.rows)


# No span is stored twice


@pytest.mark.parametrize("answer", ["cut", "half", 500, 502, 504])
def test_server_is_queried_after_a_lost_answer(laminar, exporter, clock, answer):
    """After an unclear result the server is queried; only spans that it does not have are sent again."""
    laminar.answers.append(answer)
    with pytest.raises(ExporterUnclearError) as caught:
        exporter.send(with_ancestors(make_tree(1)))
    assert caught.value.after == SETTLE_SECONDS
    arrived = answer in ("cut", "half")
    if not arrived:
        clock.now += SETTLE_SECONDS
    exporter.send(with_ancestors(make_tree(1)))
    assert len(laminar.rows) == len(make_tree(1))
    assert laminar.complaints() == []
    assert len(laminar.queries) == 1


def test_span_that_fails_is_set_aside_without_copies(laminar, exporter, clock, tmp_path, monkeypatch):
    """A span that gets 500 is isolated; the server is asked before each repeat, and has every other span once."""
    spans = [structs.replace(span, ancestors=()) for span in with_ancestors(make_tree(1))]
    laminar.poison, laminar.poison_status = spans[1].span_id, 500
    delivery, store = ExporterWorker(exporter), SetAside(str(tmp_path))
    for _ in range(40):
        if delivery.deliver(spans, store):
            break
        clock.now += SETTLE_SECONDS
    assert (delivery.delivered, delivery.refused, delivery.set_aside) == (len(spans) - 1, 0, 1)
    assert sorted(row.span_id for row in laminar.rows) == sorted(span.span_id for span in spans if span is not spans[1])
    laminar.poison = None
    for _ in range(3):
        clock.now += FIRST_RETRY
        delivery.retry_set_aside(SetAside(str(tmp_path)))
    assert len(laminar.rows) == len(spans) == delivery.delivered


def test_negative_answer_is_not_final_at_once(laminar, impatient_exporter, clock):
    """A span that the server does not return may still be in its queue; it is sent again only later."""
    laminar.answers.append("stall")
    with pytest.raises(ExporterUnclearError):
        impatient_exporter.send(with_ancestors(make_tree(1)))
    clock.now += SETTLE_SECONDS - 1
    with pytest.raises(ExporterRetryError, match="asked again") as caught:
        impatient_exporter.send(with_ancestors(make_tree(1)))
    assert caught.value.after == pytest.approx(1.0)
    clock.now += 1
    impatient_exporter.send(with_ancestors(make_tree(1)))
    assert len(laminar.rows) == len(make_tree(1))


def test_server_that_finds_its_spans_late(laminar, exporter, clock):
    """What has arrived may not be found at once: the server is asked again before anything is sent again, and each span is stored once."""
    laminar.answers.append("cut")
    laminar.is_slow = True
    with pytest.raises(ExporterUnclearError):
        exporter.send(with_ancestors(make_tree(1)))
    with pytest.raises(ExporterRetryError, match="asked again"):
        exporter.send(with_ancestors(make_tree(1)))
    laminar.settle()
    clock.now += SETTLE_SECONDS
    exporter.send(with_ancestors(make_tree(1)))
    assert len(laminar.rows) == len(make_tree(1))
    assert laminar.complaints() == []


def test_refused_span_does_not_duplicate_others(laminar, exporter, monkeypatch):
    """While delivery splits a batch to find the refused span, accepted spans are not sent again."""
    monkeypatch.setattr(otlp, "MAX_REQUEST_BYTES", 4096)
    spans = with_ancestors([span for trace in range(1, 20) for span in make_tree(trace)])
    spans = [structs.replace(span, span_id=f"{number:016x}", ancestors=()) for number, span in enumerate(spans, 1)]
    laminar.poison = spans[len(spans) // 2].span_id
    delivery = ExporterWorker(exporter)
    assert delivery.deliver(spans)
    assert (len(laminar.rows), delivery.refused) == (len(spans) - 1, 1)


def test_spans_that_another_process_may_have_sent(laminar, exporter):
    """If delivery doubts spans, the server is asked once, and only those that it does not have are sent, without waiting."""
    spans = with_ancestors(make_tree(1))
    make_exporter(laminar).send(spans[:2])
    exporter.doubt(spans)
    assert exporter.may_have(spans)
    exporter.send(spans)
    assert sorted(row.span_id for row in laminar.rows) == sorted(span.span_id for span in spans)
    assert len(laminar.queries) == 1


def test_server_that_surely_has_nothing(laminar, impatient_exporter):
    """After a clear failure the server has nothing; after an unclear one, or if it has accepted a part, it may have."""
    spans = with_ancestors(make_tree(1))
    laminar.answers += [503, "stall"]
    for expected in (False, True):
        with pytest.raises(ExporterRetryError):
            impatient_exporter.send(spans)
        assert impatient_exporter.may_have(spans) == expected


def test_key_without_query_permission(laminar, impatient_exporter, clock, caplog):
    """If the server cannot be queried, nothing is lost; a warning about possible duplicates is logged once."""
    laminar.may_query = False
    laminar.answers.append("stall")
    with pytest.raises(ExporterUnclearError):
        impatient_exporter.send(with_ancestors(make_tree(1)))
    impatient_exporter.send(with_ancestors(make_tree(1)))
    assert len(laminar.rows) == len(make_tree(1))
    assert sum("may be stored twice" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("status", [429, 503])
def test_busy_server_needs_no_query(laminar, exporter, status):
    """If the server answers that it is busy, it does not have the spans, and is not queried."""
    laminar.answers.append(status)
    with pytest.raises(ExporterRetryError):
        exporter.send(with_ancestors(make_tree()))
    exporter.send(with_ancestors(make_tree()))
    assert len(laminar.rows) == len(make_tree())
    assert laminar.queries == []


def test_wrong_key_keeps_the_spans(laminar):
    """401 is retried, and the message does not contain the key."""
    with pytest.raises(ExporterRetryError, match="401") as caught:
        make_exporter(laminar, headers={"authorization": "Bearer wrong-key-secret"}).send(make_tree())
    assert "wrong-key-secret" not in str(caught.value)


def test_batches_stay_below_the_limit(laminar):
    """Laminar accepts 5 MiB before compression. Larger batches are split, and a single larger span is refused."""
    exporter = make_exporter(laminar)
    exporter.send([make_span(number, "x", attributes={"own": "x" * 1_000_000}) for number in range(1, 8)])
    assert len(laminar.rows) == 7
    with pytest.raises(ExporterRefusedError, match="413"):
        exporter.send([make_span(99, "x", attributes={"own": "x" * (6 << 20)})])
