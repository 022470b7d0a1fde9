"""The OTLP exporter over HTTP, and what each answer leads to."""

from __future__ import annotations

import logging
import socket
from contextlib import closing

import collectors
import pytest
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, get_value
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from ckpt_observe.delivery.exporter_worker import ExporterWorker
from ckpt_observe.endpoints import Endpoint
from ckpt_observe.errors import ExporterRefusedError, ExporterRetryError, ExporterUnclearError
from ckpt_observe.exporters import otlp
from ckpt_observe.exporters.otlp import OtlpExporter
from ckpt_observe.testing.exporters import ExporterContract
from ckpt_observe.testing.spans import make_span, make_tree

KEY = "Bearer sk-very-secret-0123456789"


def endpoint(collector, **fields):
    return Endpoint(collector.url + "/v1/traces", **{"timeout": 5.0, "headers": {"authorization": KEY}, **fields})


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


def test_making_a_exporter_opens_nothing(collector):
    """Neither making an exporter nor an empty batch connects."""
    OtlpExporter(endpoint(collector)).send([])
    assert collector.requests == []


@pytest.mark.parametrize("gzip", [True, False])
def test_request_is_otlp(collector, gzip):
    """Path, type, compression, headers and user agent are as the specification says."""
    OtlpExporter(endpoint(collector, gzip=gzip)).send(make_tree())
    [(path, headers, _)] = collector.requests
    assert path == "/v1/traces"
    assert headers["content-type"] == "application/x-protobuf"
    assert headers["authorization"] == KEY
    assert headers["user-agent"].startswith("ckpt_observe/")
    assert headers.get("content-encoding") == ("gzip" if gzip else None)


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504])
def test_busy_server_is_asked_again(collector, exporter, status):
    """What the specification calls retryable is retried, with the pause the server asks for."""
    collector.answers.append((status, {"retry-after": "7"}, b""))
    with pytest.raises(ExporterRetryError, match=str(status)) as caught:
        exporter.send(make_tree())
    assert caught.value.after == 7.0
    exporter.send(make_tree())
    assert len(collector.spans) == len(make_tree())


def test_retry_after_may_be_a_date_or_nonsense(collector, exporter):
    """A date in the past is now, nonsense is nothing said, and a century is an hour."""
    for text, expected in (("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("soon", None), ("99999999999", 3600.0)):
        collector.answers.append((503, {"retry-after": text}, b""))
        with pytest.raises(ExporterRetryError) as caught:
            exporter.send(make_tree())
        assert caught.value.after == expected


@pytest.mark.parametrize("status", [301, 302, 307, 308, 401, 403, 404, 405])
def test_wrong_destination_keeps_the_spans(collector, exporter, status):
    """A wrong key, path or address loses nothing, follows no redirect, and is served once it is put right."""
    collector.answers.append((status, {"location": collector.url + "/elsewhere"}, b""))
    with pytest.raises(ExporterRetryError, match=str(status)):
        exporter.send(make_tree())
    assert len(collector.requests) == 1
    exporter.send(make_tree())
    assert len(collector.spans) == len(make_tree())


@pytest.mark.parametrize("status", [400, 413, 422, 500, 501])
def test_refused_batch_is_refused(collector, exporter, status):
    """What may not be retried is refused, so that the delivery looks for the span that is at fault."""
    collector.answers.append(status)
    with pytest.raises(ExporterRefusedError, match=str(status)):
        exporter.send(make_tree())


@pytest.mark.parametrize("status", [400, 413, 500])
def test_server_that_refuses_everybody_loses_nothing(collector, exporter, status):
    """Where an empty request is refused too, it is not the span's fault: it is kept."""
    collector.otherwise = status
    delivery = ExporterWorker(exporter)
    assert not delivery.deliver(make_tree())
    assert (delivery.delivered, delivery.refused) == (0, 0)
    collector.otherwise = 200
    assert delivery.deliver(make_tree())
    assert len(collector.spans) == len(make_tree())


def test_poisoned_span_is_set_aside(collector, exporter):
    """One span that the server never takes costs that span, and no other."""
    spans = [span for trace in range(1, 30) for span in make_tree(trace)]
    poisoned = make_span(999, "checkpoint.save", trace=99)
    collector.poison = poisoned.span_id
    delivery = ExporterWorker(exporter)
    assert delivery.deliver([*spans[:40], poisoned, *spans[40:]])
    assert (delivery.delivered, delivery.refused) == (len(spans), 1)
    assert len(collector.spans) == len(spans)


def test_span_that_otlp_cannot_carry_is_set_aside(collector, exporter):
    """A value without a place in OTLP is refused alone; the rest goes."""
    delivery = ExporterWorker(exporter)
    assert delivery.deliver([*make_tree(), make_span(99, "x", attributes={"own": object()})])
    assert (delivery.delivered, delivery.refused) == (len(make_tree()), 1)


def test_black_hole_ends_at_the_deadline(collector):
    """A server that never answers is left, and the outcome called unclear."""
    collector.answers.append("stall")
    with (
        closing(OtlpExporter(endpoint(collector, timeout=0.3))) as exporter,
        pytest.raises(ExporterUnclearError, match="no complete answer"),
    ):
        exporter.send(make_tree())


@pytest.mark.parametrize("answer", ["cut", "half"])
def test_broken_answer_is_unclear_and_its_repeat_harmless(collector, exporter, answer):
    """An answer that breaks off is no answer; the repeat replaces what may have been taken."""
    collector.answers.append(answer)
    with pytest.raises(ExporterUnclearError):
        exporter.send(make_tree())
    exporter.send(make_tree())
    assert len(collector.spans) == len(make_tree())


def test_answer_without_end_is_read_in_part(collector, exporter):
    """An answer is read up to 64 KiB: a server cannot fill our memory."""
    collector.answers.append((200, {}, b"x" * (1 << 20)))
    exporter.send(make_tree())
    assert exporter.rejected == 0


def test_nobody_there_is_retry_and_surely_not_delivered():
    """A refused connection is not unclear: nothing went out."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound, but nobody listens
        exporter = OtlpExporter(Endpoint(f"http://127.0.0.1:{bound.getsockname()[1]}/v1/traces"))
        with pytest.raises(ExporterRetryError, match="cannot be reached: ConnectionRefusedError") as caught:
            exporter.send(make_tree())
    assert not isinstance(caught.value, ExporterUnclearError)


def test_partial_success_is_counted_and_not_repeated(collector, exporter, caplog):
    """Spans that the server took out of an accepted request are counted and said once."""
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


def test_large_batch_is_several_requests(collector, exporter, monkeypatch):
    """No request is larger than the limit, and all spans arrive."""
    monkeypatch.setattr(otlp, "MAX_REQUEST_BYTES", 4096)
    spans = [span for trace in range(1, 40) for span in make_tree(trace)]
    exporter.send(spans)
    assert len(collector.spans) == len(spans)
    assert max(len(body) for _, _, body in collector.requests) < 4300


def test_trusted_certificate(tls_collector):
    """With the authority's file, spans go over TLS."""
    OtlpExporter(endpoint(tls_collector, certificate=str(collectors.PEM))).send(make_tree())
    assert len(tls_collector.spans) == len(make_tree())


def test_client_certificate_is_shown(tls_collector):
    """A client certificate with its key is used; that it was asked for is the server's affair."""
    exporter = OtlpExporter(
        endpoint(tls_collector, certificate=str(collectors.PEM), client_certificate=str(collectors.PEM), client_key=str(collectors.PEM))
    )
    exporter.send(make_tree())
    assert len(tls_collector.spans) == len(make_tree())


def test_untrusted_certificate_is_retry(tls_collector):
    """A server that cannot prove who it is gets nothing, and the spans are kept."""
    with pytest.raises(ExporterRetryError, match="TLS failed"):
        OtlpExporter(endpoint(tls_collector)).send(make_tree())
    assert tls_collector.spans == {}


def test_tls_to_a_plain_port_is_retry(collector):
    """https where http is spoken is said as a failure of TLS."""
    with pytest.raises(ExporterRetryError, match="TLS failed"):
        OtlpExporter(Endpoint(collector.url.replace("http:", "https:") + "/v1/traces", timeout=1.0)).send(make_tree())


def test_plain_to_a_tls_port_is_retry(tls_collector):
    """http where https is spoken is no answer."""
    with pytest.raises(ExporterRetryError):
        OtlpExporter(Endpoint(tls_collector.url.replace("https:", "http:") + "/v1/traces", timeout=1.0)).send(make_tree())


def test_certificate_that_is_not_there_is_retry(tls_collector, tmp_path):
    """A file that is missing now may be mounted later."""
    with pytest.raises(ExporterRetryError, match="nothing was sent"):
        OtlpExporter(endpoint(tls_collector, certificate=str(tmp_path / "missing.pem"))).send(make_tree())


def test_secrets_are_in_no_message(collector, caplog):
    """Neither log, exception nor repr has a header, a password of the URL or its query, though the server sends them back."""
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
    """A ~/.netrc for the same host is somebody else's key."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password else\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    OtlpExporter(endpoint(collector)).send(make_tree())
    assert collector.requests[0][1]["authorization"] == KEY
