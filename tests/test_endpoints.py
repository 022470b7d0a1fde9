"""Endpoints from OpenTelemetry's and Laminar's variables."""

from __future__ import annotations

import pytest

from ckpt_observe import endpoints
from ckpt_observe.endpoints import GRPC, HTTP, Endpoint
from ckpt_observe.errors import ConfigError

OTLP = "OTEL_EXPORTER_OTLP_"


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({}, "http://localhost:4318/v1/traces"),
        ({"ENDPOINT": "http://c:4318"}, "http://c:4318/v1/traces"),
        ({"ENDPOINT": "http://c:4318/"}, "http://c:4318/v1/traces"),
        ({"ENDPOINT": "https://c/otlp"}, "https://c/otlp/v1/traces"),
        ({"TRACES_ENDPOINT": "http://c:4318"}, "http://c:4318"),
        ({"TRACES_ENDPOINT": "http://t/x", "ENDPOINT": "http://c"}, "http://t/x"),
        ({"PROTOCOL": GRPC}, "http://localhost:4317"),
        ({"PROTOCOL": GRPC, "ENDPOINT": "http://c:4317"}, "http://c:4317"),
        ({"PROTOCOL": GRPC, "ENDPOINT": "c:4317"}, "https://c:4317"),
        ({"PROTOCOL": GRPC, "ENDPOINT": "c:4317", "INSECURE": "true"}, "http://c:4317"),
    ],
)
def test_otlp_url(environ, url):
    """As specified: `/v1/traces` is appended to the general endpoint only, and gRPC has no path."""
    assert endpoints.otlp({OTLP + name: value for name, value in environ.items()}).url == url


def test_traces_variable_takes_precedence():
    """Every setting has a variant for traces, which overrides the general one."""
    general = {
        "PROTOCOL": GRPC,
        "HEADERS": "a=1",
        "TIMEOUT": "1000",
        "COMPRESSION": "none",
        "CERTIFICATE": "a",
        "CLIENT_KEY": "a",
        "CLIENT_CERTIFICATE": "a",
    }
    specific = {
        "PROTOCOL": HTTP,
        "HEADERS": "b=2",
        "TIMEOUT": "2000",
        "COMPRESSION": "gzip",
        "CERTIFICATE": "b",
        "CLIENT_KEY": "b",
        "CLIENT_CERTIFICATE": "b",
    }
    endpoint = endpoints.otlp(
        {**{OTLP + name: value for name, value in general.items()}, **{f"{OTLP}TRACES_{name}": value for name, value in specific.items()}}
    )
    assert (endpoint.protocol, endpoint.headers, endpoint.timeout, endpoint.gzip) == (HTTP, {"b": "2"}, 2.0, True)
    assert (endpoint.certificate, endpoint.client_key, endpoint.client_certificate) == ("b", "b", "b")


def test_headers_are_percent_decoded():
    """As in W3C baggage, encoded values may contain commas and spaces. Names are lower-cased."""
    assert endpoints.otlp({OTLP + "HEADERS": "Authorization=Bearer%20k%2C1, x-tenant=a=b,"}).headers == {
        "authorization": "Bearer k,1",
        "x-tenant": "a=b",
    }


@pytest.mark.parametrize(("text", "seconds"), [("10000", 10.0), ("500", 0.5), ("10", 10.0), ("", 10.0)])
def test_timeout(text, seconds):
    """Milliseconds as specified; small numbers are seconds, as in the Python SDK."""
    assert endpoints.otlp({OTLP + "TIMEOUT": text}).timeout == seconds


@pytest.mark.parametrize(
    "environ",
    [
        {"PROTOCOL": "http/json"},
        {"COMPRESSION": "zip"},
        {"TIMEOUT": "soon"},
        {"TIMEOUT": "-1"},
        {"ENDPOINT": "collector"},
        {"ENDPOINT": "user:sk-secret@collector:4318"},
        {"TRACES_ENDPOINT": "user:sk-secret@collector:4318?key=sk-secret"},
        {"HEADERS": "sk-secret"},
        {"HEADERS": "a=sk-secret%0Ab"},
        {"HEADERS": "sk secret=b"},
        {"HEADERS": "x!tenant=sk-secret"},
    ],
)
def test_invalid_setting(environ):
    """The error names the variable and does not contain what may be a key."""
    with pytest.raises(ConfigError) as caught:
        endpoints.otlp({OTLP + name: value for name, value in environ.items()})
    assert OTLP in str(caught.value)
    assert "sk-secret" not in str(caught.value)
    assert "sk secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({}, "https://api.lmnr.ai/v1/traces"),
        ({"LMNR_BASE_URL": "http://localhost", "LMNR_HTTP_PORT": "8000"}, "http://localhost:8000/v1/traces"),
        ({"LMNR_BASE_URL": "http://localhost:1/", "LMNR_HTTP_PORT": "8000"}, "http://localhost:8000/v1/traces"),
        ({"LMNR_BASE_URL": "http://localhost:8000"}, "http://localhost:8000/v1/traces"),
        ({"LMNR_BASE_URL": "laminar.example"}, "https://laminar.example/v1/traces"),
    ],
)
def test_laminar_url(environ, url):
    """Base URL and port are read as Laminar's SDK does. The key is a bearer token."""
    endpoint = endpoints.laminar({"LMNR_PROJECT_API_KEY": "k", **environ})
    assert (endpoint.url, endpoint.headers) == (url, {"authorization": "Bearer k"})


@pytest.mark.parametrize(
    ("base", "metrics", "is_laminar"),
    [
        ("http://localhost:8000", "http://localhost:8000/v1/metrics", True),
        ("http://localhost:8000", "http://localhost:4318/v1/metrics", False),
        ("", "https://api.lmnr.ai/v1/metrics", True),
        ("", "http://collector:4318/v1/metrics", False),
    ],
)
def test_metrics_are_not_sent_to_laminar(base, metrics, is_laminar):
    """Laminar drops metrics, so its address is refused. An OTel Collector on the same host, with another port, is accepted."""
    environ = {"LMNR_BASE_URL": base, "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": metrics}
    if is_laminar:
        with pytest.raises(ConfigError, match="is Laminar"):
            endpoints.otlp_metrics(environ)
    else:
        assert endpoints.otlp_metrics(environ).url == metrics


@pytest.mark.parametrize(
    "environ",
    [{}, {"LMNR_PROJECT_API_KEY": " "}, {"LMNR_PROJECT_API_KEY": "k", "LMNR_HTTP_PORT": "x"}, {"LMNR_PROJECT_API_KEY": "sk-secret\nx"}],
)
def test_invalid_laminar_setting(environ):
    """A missing key, an invalid port, or a key that no header can contain is an error without the key."""
    with pytest.raises(ConfigError) as caught:
        endpoints.laminar(environ)
    assert "sk-secret" not in str(caught.value)


def test_repr_shows_no_secret():
    """The repr contains no headers, no password or query of the URL, and no key file."""
    shown = repr(Endpoint("https://user:hunter2@c/x?token=t0k", headers={"a": "sk-secret"}, client_key="/keys/k"))
    assert [secret for secret in ("hunter2", "t0k", "sk-secret", "/keys/k") if secret in shown] == []
    assert "https://c/x" in shown


@pytest.mark.parametrize(
    ("headers", "answer", "shown"),
    [
        ({"x-retry": "0", "x-scope-orgid": "production"}, "250 spans of production", ": 250 spans of production"),
        ({"x-tenant": "1"}, "error 1", ": error 1"),
        ({"authorization": "Bearer correcthorse"}, "no such key: correcthorse", ": no such key: [redacted]"),
        ({"x-team": "a8Kd92LmQ0"}, "who is a8Kd92LmQ0?", ": who is [redacted]?"),
        ({}, "password=hunter2 was wrong", ": password=[redacted] was wrong"),
    ],
)
def test_quoted_answer(headers, answer, shown):
    """A quoted answer has no secrets. The value of a header is one only if its name says so or it looks random, and it is not short."""
    assert Endpoint("http://c", headers=headers).quote(answer) == shown
