"""The OTLP exporter over HTTP, and the error for each answer."""

from __future__ import annotations

import logging
import socket
from contextlib import closing

import collectors
import pytest
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, get_value
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from ckpt_observe.delivery.exporter_worker import ExporterWorker
from ckpt_observe.delivery.set_aside import SetAside
from ckpt_observe.endpoints import Endpoint
from ckpt_observe.errors import ExporterRefusedError, ExporterRetryError, ExporterUnclearError
from ckpt_observe.exporters import otlp
from ckpt_observe.exporters.otlp import OtlpExporter
from ckpt_observe.testing.exporters import ExporterContract
from ckpt_observe.testing.spans import make_span, make_tree

KEY = "Bearer sk-very-secret-0123456789"


def endpoint(collector, **fields):
    return Endpoint(collector.url + "/v1/traces", **{"timeout": 60.0, "headers": {"authorization": KEY}, **fields})


class TestOtlpExporterOverHttp(ExporterContract):
    secrets = (KEY, "sk-very-secret-0123456789")

    @pytest.fixture
    def exporter(self, collector):
        collector.authorization = KEY
        exporter = OtlpExporter(endpoint(collector))
        exporter.collector = collector
        yield exporter
        exporter.close()

    def received(self, exporter):
        return list(exporter.collector.spans.values())

    def break_backend(self, exporter):
        exporter.collector.otherwise = 503


@pytest.fixture
def exporter(collector):
    exporter = OtlpExporter(endpoint(collector))
    yield exporter
    exporter.close()


def test_unused_exporter_does_not_connect(collector):
    """Neither the constructor nor an empty batch connects."""
    OtlpExporter(endpoint(collector)).send([])
    assert collector.requests == []


@pytest.mark.parametrize("gzip", [True, False])
def test_request_is_otlp(collector, gzip):
    """Path, content type, compression, headers and user agent follow the specification."""
    OtlpExporter(endpoint(collector, gzip=gzip)).send(make_tree())
    [(path, headers, _)] = collector.requests
    assert path == "/v1/traces"
    assert headers["content-type"] == "application/x-protobuf"
    assert headers["authorization"] == KEY
    assert headers["user-agent"].startswith("ckpt_observe/")
    assert headers.get("content-encoding") == ("gzip" if gzip else None)


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504])
def test_busy_server_is_retried(collector, exporter, status):
    """Statuses that the specification calls retryable are retried after the delay that the server asks for."""
    collector.answers.append((status, {"retry-after": "7"}, b""))
    with pytest.raises(ExporterRetryError, match=str(status)) as caught:
        exporter.send(make_tree())
    assert caught.value.after == 7.0
    exporter.send(make_tree())
    assert len(collector.spans) == len(make_tree())


def test_unusual_retry_after(collector, exporter):
    """A date in the past means now, an invalid value is ignored, and more than an hour becomes an hour."""
    for text, expected in (("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("soon", None), ("99999999999", 3600.0)):
        collector.answers.append((503, {"retry-after": text}, b""))
        with pytest.raises(ExporterRetryError) as caught:
            exporter.send(make_tree())
        assert caught.value.after == expected


@pytest.mark.parametrize("status", [301, 302, 307, 308, 401, 403, 404, 405])
def test_wrong_setup_keeps_the_spans(collector, exporter, status):
    """With a wrong key, path or address no span is lost and no redirect followed; once it is fixed, the spans are sent."""
    collector.answers.append((status, {"location": collector.url + "/elsewhere"}, b""))
    with pytest.raises(ExporterRetryError, match=str(status)):
        exporter.send(make_tree())
    assert len(collector.requests) == 1
    exporter.send(make_tree())
    assert len(collector.spans) == len(make_tree())


@pytest.mark.parametrize("status", [400, 413, 422])
def test_refused_batch_is_refused(collector, exporter, status):
    """Other statuses refuse the batch, so that delivery searches for the span that causes it."""
    collector.answers.append(status)
    with pytest.raises(ExporterRefusedError, match=str(status)):
        exporter.send(make_tree())


@pytest.mark.parametrize("status", [500, 501, 507, 520])
def test_failing_server_loses_nothing(collector, exporter, status):
    """A server that fails on spans, but accepts an empty request, gets the spans again when it works."""
    collector.otherwise = status
    collector.accepts_empty = True
    delivery = ExporterWorker(exporter)
    for _ in range(10):
        assert not delivery.deliver(make_tree())
    assert (delivery.delivered, delivery.refused) == (0, 0)
    collector.otherwise = 200
    assert delivery.deliver(make_tree())
    assert len(collector.spans) == len(make_tree()) == delivery.delivered


@pytest.mark.parametrize("status", [400, 413, 500])
def test_server_that_refuses_everything_loses_nothing(collector, exporter, status):
    """If an empty request is refused, too, the span is not the cause and is kept."""
    collector.otherwise = status
    delivery = ExporterWorker(exporter)
    assert not delivery.deliver(make_tree())
    assert (delivery.delivered, delivery.refused) == (0, 0)
    collector.otherwise = 200
    assert delivery.deliver(make_tree())
    assert len(collector.spans) == len(make_tree())


def test_span_that_is_always_refused_is_dropped(collector, exporter):
    """If the server never accepts one span, only that span is lost."""
    spans = [span for trace in range(1, 30) for span in make_tree(trace)]
    poisoned = make_span(999, "checkpoint.save", trace=99)
    collector.poison = poisoned.span_id
    delivery = ExporterWorker(exporter)
    assert delivery.deliver([*spans[:40], poisoned, *spans[40:]])
    assert (delivery.delivered, delivery.refused) == (len(spans), 1)
    assert len(collector.spans) == len(spans)


@pytest.mark.parametrize("bad", [{1}, {700}, {1, 2, 3, 99, 100, 101, 1500}, set(range(1, 51))])
def test_server_that_refuses_empty_requests(collector, exporter, tmp_path, bad):
    """A server that answers 400 to some spans and to every empty request gets each good span once; the bad ones are counted."""
    spans = [make_span(number, "checkpoint.save") for number in range(1, 1501)]
    collector.poison, collector.refuses_empty = [spans[number - 1].span_id for number in bad], True
    delivery, store = ExporterWorker(exporter), SetAside(str(tmp_path))
    for first in range(0, len(spans), 100):
        attempts = 0
        while not delivery.deliver(spans[first : first + 100], store):
            attempts += 1
            assert attempts < 200
    assert collector.copies == {span.span_id: 1 for span in spans if span.span_id not in collector.poison}
    assert delivery.delivered == len(spans) - len(bad)
    delivery.retry_now()
    while SetAside(str(tmp_path)).count():  # those that were set aside before the server had accepted anything
        delivery.retry_set_aside(SetAside(str(tmp_path)))
    assert delivery.refused == len(bad)


def test_span_that_otlp_cannot_represent_is_dropped(collector, exporter):
    """A span with a value that OTLP cannot represent is refused alone; the rest is sent."""
    delivery = ExporterWorker(exporter)
    assert delivery.deliver([*make_tree(), make_span(99, "x", attributes={"own": object()})])
    assert (delivery.delivered, delivery.refused) == (len(make_tree()), 1)


def test_server_that_never_answers(collector):
    """The request ends at its deadline with an unclear result."""
    collector.answers.append("stall")
    with (
        closing(OtlpExporter(endpoint(collector, timeout=0.3))) as exporter,
        pytest.raises(ExporterUnclearError, match="no complete answer"),
    ):
        exporter.send(make_tree())


@pytest.mark.parametrize("answer", ["cut", "half"])
def test_broken_answer_is_unclear_and_can_be_repeated(collector, exporter, answer):
    """After an incomplete answer the batch is sent again, which replaces what the server may have."""
    collector.answers.append(answer)
    with pytest.raises(ExporterUnclearError):
        exporter.send(make_tree())
    exporter.send(make_tree())
    assert len(collector.spans) == len(make_tree())


def test_long_answer_is_read_in_part(collector, exporter):
    """At most 64 KiB of an answer are read, so a server cannot fill our memory."""
    collector.answers.append((200, {}, b"x" * (1 << 20)))
    exporter.send(make_tree())
    assert exporter.rejected == 0


def test_refused_connection_is_retried_and_not_unclear():
    """If the connection is refused, nothing was sent, so the result is not unclear."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound, but not listening
        exporter = OtlpExporter(Endpoint(f"http://127.0.0.1:{bound.getsockname()[1]}/v1/traces"))
        with pytest.raises(ExporterRetryError, match="cannot be reached: ConnectionRefusedError") as caught:
            exporter.send(make_tree())
    assert not isinstance(caught.value, ExporterUnclearError)


def test_partial_success_is_counted_and_logged_once(collector, exporter, caplog):
    """Spans that the server rejects from an accepted request are counted, not sent again, and logged once."""
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = 2
    answer.partial_success.error_message = "too old"
    collector.otherwise = (200, {"content-type": "application/x-protobuf"}, answer.SerializeToString())
    exporter.send(make_tree(1))
    exporter.send(make_tree(2))
    assert exporter.rejected == 4
    assert [record.getMessage() for record in caplog.records if "too old" in record.getMessage()] == [
        f"{collector.url}/v1/traces rejected 2 spans: too old"
    ]


def test_large_batch_is_split(collector, exporter, monkeypatch):
    """No request exceeds the limit, and all spans arrive."""
    monkeypatch.setattr(otlp, "MAX_REQUEST_BYTES", 4096)
    spans = [span for trace in range(1, 40) for span in make_tree(trace)]
    exporter.send(spans)
    assert len(collector.spans) == len(spans)
    assert max(len(body) for _, _, body in collector.requests) < 4300


def test_trusted_certificate(tls_collector):
    """With the CA file, spans are sent over TLS."""
    OtlpExporter(endpoint(tls_collector, certificate=str(collectors.PEM))).send(make_tree())
    assert len(tls_collector.spans) == len(make_tree())


def test_client_certificate(tls_collector):
    """A client certificate with its key is accepted as configuration."""
    exporter = OtlpExporter(
        endpoint(tls_collector, certificate=str(collectors.PEM), client_certificate=str(collectors.PEM), client_key=str(collectors.PEM))
    )
    exporter.send(make_tree())
    assert len(tls_collector.spans) == len(make_tree())


def test_untrusted_certificate_is_retried(tls_collector):
    """A server with an untrusted certificate gets no spans; they are kept."""
    with pytest.raises(ExporterRetryError, match="TLS failed"):
        OtlpExporter(endpoint(tls_collector)).send(make_tree())
    assert tls_collector.spans == {}


def test_https_to_an_http_port_is_retried(collector):
    """HTTPS to a port that serves HTTP is reported as a TLS failure."""
    with pytest.raises(ExporterRetryError, match="TLS failed"):
        OtlpExporter(Endpoint(collector.url.replace("http:", "https:") + "/v1/traces", timeout=60.0)).send(make_tree())


def test_http_to_an_https_port_is_retried(tls_collector):
    """HTTP to a port that serves HTTPS keeps the spans."""
    with pytest.raises(ExporterRetryError):
        OtlpExporter(Endpoint(tls_collector.url.replace("https:", "http:") + "/v1/traces", timeout=60.0)).send(make_tree())


def test_missing_certificate_file_is_retried(tls_collector, tmp_path):
    """A missing file may be mounted later."""
    with pytest.raises(ExporterRetryError, match="nothing was sent"):
        OtlpExporter(endpoint(tls_collector, certificate=str(tmp_path / "missing.pem"))).send(make_tree())


def test_no_secrets_in_messages(collector, caplog):
    """Logs, exceptions and reprs contain no header, URL password or query, even if the server sends them back."""
    caplog.set_level(logging.DEBUG)
    url = collector.url.replace("//", "//user:hunter2@") + "/v1/traces?token=tok-secret"
    exporter = OtlpExporter(Endpoint(url, headers={"authorization": KEY}, timeout=0.3))
    delivery = ExporterWorker(exporter)
    errors = []
    for answer in (401, (400, {"content-type": "text/plain"}, f"bad {KEY} {KEY[7:]}".encode()), "stall", "cut"):
        collector.answers.extend([answer, answer])
        delivery.last_error = None
        delivery.deliver(make_tree()[:1])
        errors.append(delivery.last_error)
    assert len(errors) == 4
    assert all(errors)
    everything = "\n".join(
        [
            *map(str, errors),
            repr(exporter),
            repr(exporter.endpoint),
            *(record.getMessage() for record in caplog.records if record.name == "ckpt_observe"),
        ]
    )
    assert [secret for secret in ("sk-very", "hunter2", "tok-secret") if secret in everything] == []


def test_own_requests_are_not_traced(exporter, monkeypatch):
    """While a batch is sent, OpenTelemetry's suppression key is set; afterwards it is not."""

    class Spy:
        def send(self, body):
            self.during = get_value(_SUPPRESS_INSTRUMENTATION_KEY)
            return b""

        def close(self): ...

    spy = Spy()
    monkeypatch.setattr(otlp, "open_transport", lambda _: spy)
    exporter.send(make_tree())
    assert (spy.during, get_value(_SUPPRESS_INSTRUMENTATION_KEY)) == (True, None)


def test_netrc_does_not_replace_our_key(collector, tmp_path, monkeypatch):
    """An entry in ~/.netrc for the same host is ignored."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password else\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    OtlpExporter(endpoint(collector)).send(make_tree())
    assert collector.requests[0][1]["authorization"] == KEY
