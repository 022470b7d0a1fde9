"""Where spans go, said or found."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry.sdk.trace import TracerProvider

from ckpt_observe import config, wiring
from ckpt_observe.errors import ConfigError

OTLP, LAMINAR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, {"LMNR_PROJECT_API_KEY": "k"}


def chosen(environ, monkeypatch, *, provider=None, laminar=False, **arguments):
    monkeypatch.setattr(wiring, "sdk_provider", lambda: provider)
    monkeypatch.setattr(wiring, "is_laminar", lambda _: laminar)
    return wiring.exporter_names(config.read(environ, **arguments))


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
        (LAMINAR, True, True, ("provider", "local")),
        (OTLP | LAMINAR, True, True, ("provider", "otlp", "local")),
    ],
)
def test_what_the_process_has_gets_the_spans_once(environ, provider, laminar, expected, monkeypatch):
    """Each destination that is there gets them, and none twice: what a provider sends to already is left to it."""
    assert chosen(environ, monkeypatch, provider=TracerProvider() if provider else None, laminar=laminar) == expected


def test_named_exporters_are_taken_as_they_are(monkeypatch):
    """Who says where, gets that and nothing else."""
    assert chosen(OTLP | LAMINAR, monkeypatch, provider=object(), exporters="console") == ("console",)
    assert chosen({"CKPT_OBSERVE_EXPORTERS": "otlp"}, monkeypatch, provider=object()) == ("otlp",)


def test_every_exporter_can_be_made(tmp_path):
    """Each name of the configuration has its exporter, which bears that name."""
    settings = config.read(OTLP | LAMINAR, exporters=config.EXPORTERS, dir=tmp_path)
    assert [exporter.name for exporter in wiring.build_exporters(settings)] == list(config.EXPORTERS)


def test_laminar_without_a_key_is_said():
    """Asked for Laminar, without a key: an error when the settings are read, not a silent nothing."""
    with pytest.raises(ConfigError, match="LMNR_PROJECT_API_KEY"):
        config.read({}, exporters="laminar")


def test_settings_show_no_secret():
    """The settings can be printed."""
    shown = repr(
        config.read({"OTEL_EXPORTER_OTLP_HEADERS": "a=sk-secret", "LMNR_PROJECT_API_KEY": "lmnr-secret"}, exporters="otlp,laminar")
    )
    assert "secret" not in shown


def test_provider_is_left_out_where_the_delivery_is_elsewhere(monkeypatch, caplog):
    """Another process cannot reach it; that is said, and the other destinations stay."""
    monkeypatch.setattr(config, "DELIVERY_MODES", ("in-process", "daemon"))
    assert chosen({}, monkeypatch, provider=object(), delivery="daemon") == ("local",)
    assert "Your TracerProvider gets no spans" in caplog.text


def test_import_brings_no_exporter():
    """`import ckpt_observe.auto` imports neither grpc, requests, protobuf nor lmnr."""
    code = "import sys, ckpt_observe.auto; print([n for n in ('grpc', 'requests', 'google.protobuf', 'lmnr', 'opentelemetry.sdk') if n in sys.modules])"
    environ = {"CKPT_OBSERVE_EXPORTERS": "otlp", "PATH": ""}
    assert subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True).stdout == "[]\n"
