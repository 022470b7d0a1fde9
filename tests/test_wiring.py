"""Which exporters a process has."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

import ckpt_observe
from ckpt_observe import config, exporter_selection
from ckpt_observe.errors import ConfigError
from ckpt_observe.exporter import Exporter
from ckpt_observe.exporters.local import LocalExporter


def make_provider(processor_count=1):
    provider = TracerProvider(shutdown_on_exit=False)
    for _ in range(processor_count):
        provider.add_span_processor(SpanProcessor())
    return provider


OTLP, LAMINAR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, {"LMNR_PROJECT_API_KEY": "k"}


def exporter_names(environ, monkeypatch, *, provider=None, laminar=False, **arguments):
    monkeypatch.setattr(exporter_selection, "sdk_provider", lambda: provider)
    monkeypatch.setattr(exporter_selection, "is_laminar", lambda _: laminar)
    sdk = SimpleNamespace(get_project_api_key=lambda: "key", get_base_http_url=lambda: "https://api.lmnr.ai:443")
    monkeypatch.setitem(sys.modules, "lmnr", SimpleNamespace(Laminar=sdk))
    return exporter_selection.exporter_names(config.read(environ, **arguments))


@pytest.mark.parametrize(
    ("environ", "provider", "laminar", "expected"),
    [
        ({}, False, False, ("local",)),
        (OTLP, False, False, ("otlp", "local")),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/v1/traces"}, False, False, ("otlp", "local")),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "a=b"}, False, False, ("local",)),
        (LAMINAR, False, False, ("laminar", "local")),
        (OTLP | LAMINAR, False, False, ("otlp", "laminar", "local")),
        ({}, True, False, ("provider", "local")),
        (OTLP, True, False, ("provider", "local")),
        (OTLP | LAMINAR, True, False, ("provider", "laminar", "local")),
        (LAMINAR, True, True, ("laminar", "local")),
        ({}, True, True, ("laminar", "local")),
        (OTLP | LAMINAR, True, True, ("laminar", "otlp", "local")),
    ],
)
def test_default_exporters(environ, provider, laminar, expected, monkeypatch):
    """Every configured backend gets the spans, and none twice: an exporter whose backend the provider already serves is left out."""
    assert exporter_names(environ, monkeypatch, provider=make_provider() if provider else None, laminar=laminar) == expected


def test_spans_that_must_go_through_laminars_provider(monkeypatch):
    """With further span processors, without a key, or if the SDK is turned off, Laminar's provider gets the spans."""
    assert exporter_names(LAMINAR, monkeypatch, provider=make_provider(2), laminar=True) == ("provider", "local")
    monkeypatch.setenv("LMNR_DISABLE_TRACING", "True")
    assert exporter_names(LAMINAR, monkeypatch, provider=make_provider(), laminar=True) == ("provider", "local")
    monkeypatch.delenv("LMNR_DISABLE_TRACING")
    assert exporter_selection.laminar_sdk_endpoint(make_provider()).url == "https://api.lmnr.ai/v1/traces"
    for key, url in ((None, "https://a:443"), ("key", None), ("key", "http://localhost:443")):
        sdk = SimpleNamespace(get_project_api_key=lambda key=key: key, get_base_http_url=lambda url=url: url)
        monkeypatch.setitem(sys.modules, "lmnr", SimpleNamespace(Laminar=sdk))
        assert exporter_selection.laminar_sdk_endpoint(make_provider()) is None


def test_named_exporters(monkeypatch):
    """If exporters are named, only these are used."""
    assert exporter_names(OTLP | LAMINAR, monkeypatch, provider=object(), exporters="console") == ("console",)
    assert exporter_names({"CKPT_OBSERVE_EXPORTERS": "otlp"}, monkeypatch, provider=object()) == ("otlp",)


def test_every_exporter_can_be_built(tmp_path):
    """Every exporter name of the configuration builds an exporter with that name."""
    settings = config.read(OTLP | LAMINAR, exporters=config.EXPORTERS, dir=tmp_path)
    assert [exporter.name for exporter in exporter_selection.build_exporters(settings)] == list(config.EXPORTERS)


def test_two_exporters_with_one_identity(tmp_path, monkeypatch, caplog):
    """An exporter of another package that is called like a bundled one is left out: the two would share a cursor and miss spans."""
    monkeypatch.setattr(exporter_selection.entry_points, "load", lambda _group, _name: lambda settings: LocalExporter(settings.dir))
    settings = config.read({}, dir=tmp_path, exporters="local")
    assert [exporter.identity for exporter in exporter_selection.build_exporters(settings, ["copy"])] == ["local"]
    assert [exporter.identity for exporter in exporter_selection.build_exporters(settings, ["local", "copy"])] == ["local"]
    assert "Exporter copy is not used: it has the identity of another one, 'local'" in caplog.text


def test_laminar_without_a_key():
    """The exporter laminar without a key is an error when the settings are read."""
    with pytest.raises(ConfigError, match="LMNR_PROJECT_API_KEY"):
        config.read({}, exporters="laminar")


def test_settings_show_no_secret():
    """The repr of the settings contains no key."""
    shown = repr(
        config.read({"OTEL_EXPORTER_OTLP_HEADERS": "a=sk-secret", "LMNR_PROJECT_API_KEY": "lmnr-secret"}, exporters="otlp,laminar")
    )
    assert "secret" not in shown


def test_provider_and_delivery_in_another_process(monkeypatch, caplog):
    """Another process cannot use the provider: it is left out with a warning, and the other exporters stay."""
    monkeypatch.setattr(config, "DELIVERY_MODES", ("in-process", "daemon"))
    assert exporter_names({}, monkeypatch, provider=object(), delivery="daemon") == ("local",)
    assert "Your TracerProvider gets no spans" in caplog.text


def test_import_brings_no_exporter():
    """`import ckpt_observe.auto` imports neither grpc, requests, protobuf nor lmnr."""
    code = "import sys, ckpt_observe.auto; print([n for n in ('grpc', 'requests', 'google.protobuf', 'lmnr', 'opentelemetry.sdk') if n in sys.modules])"
    environ = {"CKPT_OBSERVE_EXPORTERS": "otlp", "PATH": ""}
    assert subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True).stdout == "[]\n"


class ListExporter(Exporter):
    """Keeps the spans in a list."""

    name = "late"

    def __init__(self):
        self.spans, self.health = [], None

    def start(self, health):
        self.health = health

    def send(self, spans):
        self.spans += spans


@pytest.mark.parametrize("delivery", ["in-process", "companion"])
def test_exporter_that_cannot_be_built(state, tmp_path, monkeypatch, caplog, stored_spans, delivery):
    """It is reported once and built later; then it gets every span. The other exporters and the journal do not wait for it."""
    exporter, errors = ListExporter(), [ImportError("damaged package")] * 3

    def build(_settings):
        if errors:
            raise errors.pop()
        return exporter

    monkeypatch.setattr(exporter_selection.entry_points, "names", lambda _group: ["late"])
    monkeypatch.setattr(exporter_selection.entry_points, "load", lambda _group, _name: build)
    monkeypatch.setattr("ckpt_observe.delivery.companion.Companion.check", lambda _: False)  # none can start: falls back to threads
    watch = ckpt_observe.observe(exporters="late,local", dir=state, pages_dir=tmp_path / "pages", delivery=delivery)
    with ckpt_observe.checkpoint("save", id="a") as operation:
        pass
    assert operation.span_id
    while not watch.flush(20):  # ends the pause between two attempts
        pass
    assert watch.close(60)
    assert [span.name for span in exporter.spans] == [span.name for span in stored_spans()] == ["checkpoint.save"]
    assert exporter.health is not None
    assert "Exporter late: it cannot be built (ImportError: damaged package)" in caplog.text


def test_provider_that_cannot_be_loaded(monkeypatch):
    """OTEL_PYTHON_TRACER_PROVIDER with an unknown name raises in OpenTelemetry, and means that there is no provider."""
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: next(iter(())))
    assert exporter_selection.sdk_provider() is None
