"""The Laminar exporter, against a server that fails as the page would."""

from __future__ import annotations

import json
import math
import os
import socket
from types import SimpleNamespace

import pytest
from laminar_server import LaminarServer
from msgspec import structs

from ckpt_observe.delivery.exporter_worker import ExporterWorker
from ckpt_observe.endpoints import Endpoint
from ckpt_observe.errors import ExporterRefusedError, ExporterRetryError, ExporterUnclearError
from ckpt_observe.exporters import laminar as module
from ckpt_observe.exporters import otlp
from ckpt_observe.exporters.laminar import SETTLE_SECONDS, LaminarExporter
from ckpt_observe.exporters.laminar_shape import RECOVERED, shape
from ckpt_observe.span import SpanEvent, SpanLink
from ckpt_observe.testing.exporters import ExporterContract
from ckpt_observe.testing.spans import START_UNIX_NANO, make_span, make_tree

DEAD = -1
"""The process id of whoever made spans that are not ours."""
ASSOCIATION = "lmnr.association.properties."


@pytest.fixture
def laminar():
    with LaminarServer() as running:
        yield running


@pytest.fixture
def clock(monkeypatch):
    """Time that passes when a test says so."""
    clock = SimpleNamespace(now=1000.0, time_ns=lambda: START_UNIX_NANO)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def exporter(laminar, clock):
    exporter = make_exporter(laminar)
    yield exporter
    exporter.close()


def make_exporter(laminar, **fields):
    exporter = LaminarExporter(
        Endpoint(
            f"{laminar.url}/v1/traces", **{"headers": {"authorization": f"Bearer {laminar.key}"}, "timeout": 0.5, "gzip": True, **fields}
        )
    )
    exporter._is_from_this_process = lambda span: span.resource.get("process.pid") != DEAD
    return exporter


def with_ancestors(spans):
    """The same spans with their chain, as the delivery gives them."""
    by_id = {span.span_id: span for span in spans}

    def chain(span):
        above = by_id.get(span.parent_span_id)
        return () if above is None else (*chain(above), (above.span_id, above.name))

    return [structs.replace(span, ancestors=chain(span)) for span in spans]


def sent(laminar, originals):
    """What the server has, with the sender's own resource and links again: it stores neither."""
    by_id = {span.span_id: span for span in originals}
    for row in laminar.rows:
        own = {name: value for name, value in row.attributes.items() if not name.startswith(("lmnr.", "link."))}
        span = by_id[row.span_id]
        yield structs.replace(row, attributes={name: own[name] for name in span.attributes if name in own}, ancestors=span.ancestors)


class TestLaminarExporter(ExporterContract):
    test_repeat_leaves_one_copy = None  # the server does not; the exporter does: see below
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
        return list(sent(exporter.laminar, exporter.originals))

    def break_backend(self, exporter):
        exporter.laminar.otherwise = 503


# how a span looks there


def test_whole_trace_pleases_the_page(laminar, exporter):
    """A task with a save and a failed restore: no complaint, operations in the default view, only the failure red."""
    exporter.send(with_ancestors(make_tree(operations=("save", "restore"), outcome="error")))
    assert laminar.complaints() == []
    assert laminar.transcript() == ["checkpoint.save", "checkpoint.restore"]
    assert laminar.red() == ["checkpoint.restore"]


def test_running_task_is_seen(laminar, exporter):
    """Operations whose task has not ended carry the whole path, so that the page shows them."""
    exporter.send(with_ancestors(make_tree())[:-1])
    assert laminar.complaints() == []
    save = next(row for row in laminar.rows if row.name == "checkpoint.save")
    assert save.attributes["lmnr.span.path"] == ["task demo", "checkpoint.save"]
    assert save.attributes["lmnr.span.ids_path"] == ["00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"]


def test_unknown_chain_is_no_path():
    """Where the chain to the root is not known, neither path is there: a part of it would be a false root."""
    assert not {"lmnr.span.path", "lmnr.span.ids_path"} & shape(make_span(2, "checkpoint.save", parent=1)).attributes.keys()


def test_type_is_on_operations_only():
    """TOOL on an operation beneath something; not on a phase, a task or a root."""
    phase, _, save, task = make_tree()
    kinds = [
        shape(span).attributes.get("lmnr.span.type")
        for span in (phase, save, task, make_span(1, "checkpoint.save", attributes={"checkpoint.operation": "save"}))
    ]
    assert kinds == [None, "TOOL", None, None]


@pytest.mark.parametrize("outcome", ["ok", "cancelled", "skipped"])
def test_no_exception_where_nothing_failed(outcome):
    """A recovered attempt, a pause or an early stop is not red; what happened is told under another name."""
    span = make_span(
        1,
        "checkpoint.save",
        attributes={"checkpoint.outcome": outcome},
        events=(SpanEvent("exception", START_UNIX_NANO, {"exception.message": "once"}),),
    )
    assert [event.name for event in shape(span).events] == [RECOVERED]


def test_interrupted_operation_is_red():
    """A save that died with its process has no exception of its own, and gets one that says so."""
    facts = {"checkpoint.outcome": "interrupted", "checkpoint.error.phase": "write"}
    span = shape(make_span(1, "checkpoint.save", status="error", attributes=facts))
    [event] = span.events
    assert (event.name, event.attributes["exception.message"], event.time_unix_nano) == (
        "exception",
        "interrupted in write",
        span.end_unix_nano,
    )


def test_association_properties_are_strings():
    """Session, user, task and service fill Laminar's columns, each as it reads them; OpenTelemetry's names stay too."""
    facts = {
        "checkpoint.operation": "save",
        "session.id": "s1",
        "user.id": 7,
        "checkpoint.task.name": "train",
        "checkpoint.task.id": "run-42",
    }
    told = shape(make_span(2, "checkpoint.save", parent=1, attributes=facts, resource={"service.name": "trainer"})).attributes
    assert {name: value for name, value in told.items() if name.startswith(ASSOCIATION)} == {
        ASSOCIATION + "session_id": "s1",
        ASSOCIATION + "user_id": "7",
        ASSOCIATION + "metadata.checkpoint.task.name": "train",
        ASSOCIATION + "metadata.checkpoint.task.id": "run-42",
        ASSOCIATION + "metadata.service.name": "trainer",
        ASSOCIATION + "tags": ["checkpoint"],
    }
    assert (told["session.id"], told["user.id"], told["service.name"]) == ("s1", 7, "trainer")


def test_input_and_output_are_small_json():
    """What was asked and what came of it, as strings that the page parses."""
    facts = {
        "checkpoint.operation": "save",
        "checkpoint.id": "step-1",
        "checkpoint.step": 1,
        "checkpoint.outcome": "ok",
        "checkpoint.size.stored": 800,
    }
    told = shape(make_span(1, "checkpoint.save", attributes=facts)).attributes
    assert json.loads(told["lmnr.span.input"]) == {"id": "step-1", "step": 1}
    assert json.loads(told["lmnr.span.output"]) == {"outcome": "ok", "size.stored": 800}


def test_links_are_told_as_attributes():
    """Laminar stores no links; where they point to is not lost."""
    told = shape(make_span(1, "checkpoint.restore", links=(SpanLink("ab" * 16, "cd" * 8),))).attributes
    assert (told["link.trace_id"], told["link.span_id"]) == (["ab" * 16], ["cd" * 8])


def test_host_cannot_speak_as_a_model_or_as_laminar():
    """Own attributes that would turn the span into a model call, or overwrite its path, keep their value under another name."""
    told = shape(make_span(1, "checkpoint.save", attributes={"gen_ai.system": "x", "lmnr.span.path": "y"})).attributes
    assert (told["own.gen_ai.system"], told["own.lmnr.span.path"]) == ("x", "y")
    assert "gen_ai.system" not in told


def test_impossible_numbers_and_times():
    """NaN and infinity are told by name, and no span ends before it begins."""
    span = shape(make_span(1, "x", attributes={"a": math.nan, "b": -math.inf}, end_unix_nano=5))
    assert (span.attributes["a"], span.attributes["b"]) == ("nan", "-inf")
    assert span.end_unix_nano == span.start_unix_nano


# no span twice


@pytest.mark.parametrize("answer", ["cut", "half", 502, 504])
def test_lost_answer_is_cleared_up_before_a_repeat(laminar, exporter, clock, answer):
    """After an unclear end the server is asked; what it has is not sent again, and the rest is."""
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


def test_no_is_not_believed_too_early(laminar, exporter, clock):
    """What the server does not have yet it may still have in its queue; only later is it sent again."""
    laminar.answers.append("stall")
    with pytest.raises(ExporterUnclearError):
        exporter.send(with_ancestors(make_tree(1)))
    clock.now += SETTLE_SECONDS - 1
    with pytest.raises(ExporterRetryError, match="asking again") as caught:
        exporter.send(with_ancestors(make_tree(1)))
    assert caught.value.after == pytest.approx(1.0)
    clock.now += 1
    exporter.send(with_ancestors(make_tree(1)))
    assert len(laminar.rows) == len(make_tree(1))


def test_refused_span_does_not_double_the_others(laminar, exporter, monkeypatch):
    """While the delivery halves a batch to find the span that is refused, what was accepted of it is not sent again."""
    monkeypatch.setattr(otlp, "MAX_REQUEST_BYTES", 4096)
    spans = with_ancestors([span for trace in range(1, 20) for span in make_tree(trace)])
    spans = [structs.replace(span, span_id=f"{number:016x}", ancestors=()) for number, span in enumerate(spans, 1)]
    laminar.poison = spans[len(spans) // 2].span_id
    delivery = ExporterWorker(exporter)
    assert delivery.deliver(spans)
    assert (len(laminar.rows), delivery.refused) == (len(spans) - 1, 1)


def test_spans_of_a_dead_process_are_asked_about(laminar, exporter, clock):
    """Another process may have sent its last batch and died before it could note that."""
    theirs = with_ancestors(make_tree(1, resource={"service.instance.id": "dead", "process.pid": DEAD}))
    make_exporter(laminar).send([structs.replace(span, resource={}) for span in theirs])
    exporter.send(theirs)
    assert len(laminar.rows) == len(theirs)
    clock.now += SETTLE_SECONDS
    later = with_ancestors(make_tree(2, resource={"service.instance.id": "dead", "process.pid": DEAD}))
    exporter.send([structs.replace(span, span_id="f" + span.span_id[1:]) for span in later])
    assert len(laminar.queries) == 1  # only its first batch is in doubt


def test_own_process_is_told_from_another(laminar):
    """A span is ours if it ended here and since we are: the same pid and host may have been those of the container before."""
    own = {"process.pid": os.getpid(), "host.name": socket.gethostname()}
    exporter = LaminarExporter(Endpoint(f"{laminar.url}/v1/traces"))
    now = make_span(1, "checkpoint.save", resource=own, end_unix_nano=2**62)
    before = make_span(2, "checkpoint.save", resource=own)
    elsewhere = structs.replace(now, resource={**own, "host.name": "elsewhere"})
    other = structs.replace(now, resource={**own, "process.pid": DEAD})
    assert [exporter._is_from_this_process(span) for span in (now, before, elsewhere, other)] == [True, False, False, False]


def test_key_that_may_only_write_delivers_all_the_same(laminar, exporter, clock, caplog):
    """Where the server cannot be asked nothing is lost; that a span may be stored twice is said once."""
    laminar.may_query = False
    laminar.answers.append("stall")
    with pytest.raises(ExporterUnclearError):
        exporter.send(with_ancestors(make_tree(1)))
    exporter.send(with_ancestors(make_tree(1)))
    assert len(laminar.rows) == len(make_tree(1))
    assert sum("may be stored twice" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("status", [429, 503])
def test_busy_server_surely_did_not_take_it(laminar, exporter, status):
    """An answer that says no is believed; nothing is asked."""
    laminar.answers.append(status)
    with pytest.raises(ExporterRetryError):
        exporter.send(with_ancestors(make_tree()))
    exporter.send(with_ancestors(make_tree()))
    assert len(laminar.rows) == len(make_tree())
    assert laminar.queries == []


def test_wrong_key_keeps_the_spans(laminar):
    """401 is retried; the key is not in the message."""
    with pytest.raises(ExporterRetryError, match="401") as caught:
        make_exporter(laminar, headers={"authorization": "Bearer wrong-key-secret"}).send(make_tree())
    assert "wrong-key-secret" not in str(caught.value)


def test_batches_stay_under_its_limit(laminar):
    """Its server takes 5 MiB before compression; more goes as several requests, and a span that is larger alone is refused alone."""
    exporter = make_exporter(laminar, timeout=10.0)
    exporter.send([make_span(number, "x", attributes={"own": "x" * 1_000_000}) for number in range(1, 8)])
    assert len(laminar.rows) == 7
    with pytest.raises(ExporterRefusedError, match="413"):
        exporter.send([make_span(99, "x", attributes={"own": "x" * (6 << 20)})])
