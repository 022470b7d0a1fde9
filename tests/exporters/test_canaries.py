"""Generated secrets, passed in every way that a program can pass text, reach neither the disk nor a server."""

from __future__ import annotations

import uuid
from urllib.parse import quote

import pytest
from laminar_server import LaminarServer
from opentelemetry import trace

import ckpt_observe
from ckpt_observe.exporters import laminar as laminar_exporter
from ckpt_observe.instrument.reference_attributes import shared_attributes
from ckpt_observe.record.operation import Operation
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import laminar as laminar_names
from tests.support.secret_examples import EXAMPLES, new_chooser

MARKER = "harmless-marker"
FORMS = [form for forms, _ in EXAMPLES.values() for form in forms]


class ForeignSpan(trace.NonRecordingSpan):
    """The current span of Laminar's SDK, whose session, user and path our spans inherit."""

    def __init__(self, text):
        super().__init__(trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED)))
        path = {laminar_names.PATH: [text], laminar_names.IDS_PATH: [str(uuid.UUID(int=2))]}
        self.attributes = {laminar_names.SESSION: text, laminar_names.USER: text, **path}


def pass_everywhere(text):
    """Pass the text in every way in which text enters a record."""
    hostile_error = type(text, (ValueError,), {"recovery": text, "impact": text})
    attributes = {"own.text": text, "own.list": [MARKER, text], text: MARKER, names.LOCATION: text, names.ID: text}
    with ckpt_observe.task(text, id=text, user=text, session=text, attributes=attributes) as task:
        task.set(attributes)
        for error in (ValueError(text), hostile_error(text)):
            with pytest.raises(ValueError), ckpt_observe.checkpoint("save", id=text, step=text, attributes=attributes) as operation:
                operation.set(attributes)
                trace.get_current_span().set_attribute("own.current", text)
                operation.add_event(text, attributes)
                operation.record_exception(ValueError(text), attributes)
                operation.link("a" * 32, "b" * 16, attributes)
                with operation.phase("write") as phase:
                    phase.set(attributes)
                with operation.phase(text), ckpt_observe.checkpoint("load", id=MARKER), ckpt_observe.phase(text):
                    raise error
    store = shared_attributes("file", text, text, text, text)
    with trace.use_span(ForeignSpan(text)), Operation("save", {names.TASK_ID: text, "own.library": text}, store) as operation:
        operation.set({"own.marker": MARKER})


def leaks(parts, data):
    return [part for part in parts if part.encode() in data]


def test_no_secret_in_a_line(recording):
    """No line of the journal contains part of a secret."""
    chooser = new_chooser()
    for form in FORMS:
        text, parts = form.fill(chooser)
        start = len(recording.pages)
        pass_everywhere(text)
        lines = b"".join(line for page in recording.pages[start:] for line in page.lines)
        assert leaks(parts, lines) == [], text
        assert lines.count(b"[redacted]") > 20
        assert MARKER.encode() in lines


@pytest.fixture
def laminar(monkeypatch):
    monkeypatch.setattr(laminar_exporter, "SETTLE_SECONDS", 0.0)  # the stand-in has no queue
    with LaminarServer() as running:
        monkeypatch.setenv("LMNR_PROJECT_API_KEY", running.key)
        monkeypatch.setenv("LMNR_BASE_URL", running.url)
        yield running


def files(directory):
    return b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file() and not path.is_symlink())


def test_no_secret_leaves_the_process(tmp_path, collector, laminar, monkeypatch):
    """Neither the journal nor the local store nor a request to a server contains part of a secret, also not in the resource."""
    chooser = new_chooser()
    texts, parts = [], []
    for form in chooser.sample(FORMS, 24):
        text, new_parts = form.fill(chooser)
        texts.append(text)
        parts += new_parts
    pairs = [f"own.{number}={quote(text, safe='')}" for number, text in enumerate(texts[::2])]
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", ",".join([f"own.marker={MARKER}", *pairs]))
    monkeypatch.setenv("OTEL_SERVICE_NAME", texts[-1])
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    watch = ckpt_observe.observe(exporters="otlp,laminar,local", dir=tmp_path / "state", pages_dir=tmp_path / "pages")
    try:
        for text in texts:
            pass_everywhere(text)
        running = files(tmp_path)
        assert watch.flush(60)
    finally:
        watch.close(10)
    requests = {name: b"".join(body for *_, body in server.requests) for name, server in (("otlp", collector), ("laminar", laminar))}
    for data in (running, files(tmp_path), *requests.values()):
        assert MARKER.encode() in data
        assert b"[redacted]" in data
        assert leaks(parts, data) == []
