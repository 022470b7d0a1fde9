"""The OTLP exporter over gRPC, and the error for each status."""

from __future__ import annotations

import socket
from contextlib import closing

import collectors
import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from ckpt_observe.delivery.exporter_worker import ExporterWorker
from ckpt_observe.endpoints import GRPC, Endpoint
from ckpt_observe.errors import ExporterRefusedError, ExporterRetryError, ExporterServerError
from ckpt_observe.exporters.otlp import OtlpExporter
from ckpt_observe.testing.exporters import ExporterContract
from ckpt_observe.testing.spans import make_span, make_tree

CODE = grpc.StatusCode
KEY = "Bearer sk-very-secret-0123456789"


def make_exporter(collector, **fields):
    return OtlpExporter(Endpoint(collector.url, protocol=GRPC, **{"timeout": 60.0, "headers": {"authorization": KEY}, **fields}))


class TestOtlpExporterOverGrpc(ExporterContract):
    secrets = (KEY, "sk-very-secret-0123456789")

    @pytest.fixture
    def exporter(self, grpc_collector):
        grpc_collector.authorization = KEY
        exporter = make_exporter(grpc_collector)
        exporter.collector = grpc_collector
        yield exporter
        exporter.close()

    def received(self, exporter):
        return list(exporter.collector.spans.values())

    def break_backend(self, exporter):
        exporter.collector.otherwise = CODE.UNAVAILABLE


@pytest.fixture
def exporter(grpc_collector):
    exporter = make_exporter(grpc_collector)
    yield exporter
    exporter.close()


@pytest.mark.parametrize("gzip", [True, False])
def test_headers_are_sent_as_metadata(grpc_collector, gzip):
    """Headers and user agent arrive, with and without compression."""
    exporter = make_exporter(grpc_collector, gzip=gzip)
    exporter.send(make_tree())
    exporter.close()
    [(_, metadata, _)] = grpc_collector.requests
    assert metadata["authorization"] == KEY
    assert metadata["user-agent"].startswith("ckpt_observe/")
    assert len(grpc_collector.spans) == len(make_tree())


@pytest.mark.parametrize(
    "code", [CODE.CANCELLED, CODE.DEADLINE_EXCEEDED, CODE.ABORTED, CODE.OUT_OF_RANGE, CODE.UNAVAILABLE, CODE.DATA_LOSS]
)
def test_retryable_code_is_retried(grpc_collector, exporter, code):
    """Codes that the specification calls retryable are retried on the same channel."""
    grpc_collector.answers.append(code)
    with pytest.raises(ExporterRetryError, match=code.name):
        exporter.send(make_tree())
    exporter.send(make_tree())
    assert len(grpc_collector.spans) == len(make_tree())


@pytest.mark.parametrize("code", [CODE.UNAUTHENTICATED, CODE.PERMISSION_DENIED, CODE.UNIMPLEMENTED])
def test_wrong_setup_keeps_the_spans(grpc_collector, exporter, code):
    """A wrong key or a server without the service loses no spans."""
    grpc_collector.answers.append(code)
    with pytest.raises(ExporterRetryError, match=code.name):
        exporter.send(make_tree())


@pytest.mark.parametrize("code", [CODE.INVALID_ARGUMENT, CODE.FAILED_PRECONDITION, CODE.RESOURCE_EXHAUSTED])
def test_other_codes_are_refused(grpc_collector, exporter, code):
    """Other codes are refused, also RESOURCE_EXHAUSTED without a delay: the request may be too large."""
    grpc_collector.answers.append(code)
    with pytest.raises(ExporterRefusedError, match=code.name):
        exporter.send(make_tree())


@pytest.mark.parametrize("code", [CODE.INTERNAL, CODE.UNKNOWN])
def test_failing_server_is_retried(grpc_collector, exporter, code):
    """An internal error of the server does not drop spans."""
    grpc_collector.answers.append(code)
    with pytest.raises(ExporterServerError, match=code.name):
        exporter.send(make_tree())


@pytest.mark.parametrize("code", [CODE.RESOURCE_EXHAUSTED, CODE.UNAVAILABLE])
def test_retry_delay_of_the_server(grpc_collector, exporter, code):
    """The delay that the server asks for is in the error."""
    grpc_collector.answers.append((code, 2.5))
    with pytest.raises(ExporterRetryError) as caught:
        exporter.send(make_tree())
    assert caught.value.after == 2.5


def test_span_that_is_always_refused_is_dropped(grpc_collector, exporter):
    """If the server never accepts one span, only that span is lost."""
    poisoned = make_span(999, "checkpoint.save", trace=99)
    grpc_collector.poison = poisoned.span_id
    delivery = ExporterWorker(exporter)
    assert delivery.deliver([*make_tree(1), poisoned, *make_tree(2)])
    assert (delivery.delivered, delivery.refused) == (2 * len(make_tree()), 1)


def test_server_that_refuses_everything_loses_nothing(grpc_collector, exporter):
    """If an empty request is refused, too, the span is kept."""
    grpc_collector.otherwise = CODE.INVALID_ARGUMENT
    delivery = ExporterWorker(exporter)
    assert not delivery.deliver(make_tree())
    assert delivery.refused == 0


def test_server_that_never_answers(grpc_collector):
    """The request ends at its deadline and is retried."""
    grpc_collector.answers.append("stall")
    with closing(make_exporter(grpc_collector, timeout=0.5)) as exporter, pytest.raises(ExporterRetryError, match="DEADLINE_EXCEEDED"):
        exporter.send(make_tree())


def test_refused_connection_is_retried():
    """If no server listens, the batch is retried."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        exporter = OtlpExporter(Endpoint(f"http://127.0.0.1:{bound.getsockname()[1]}", protocol=GRPC, timeout=60.0))
        with pytest.raises(ExporterRetryError, match="UNAVAILABLE"):
            exporter.send(make_tree())
        exporter.close()


def test_http_server_is_retried(collector):
    """gRPC to a server that supports only HTTP/1 keeps the spans."""
    with pytest.raises(ExporterRetryError):
        make_exporter(collector).send(make_tree())


def test_partial_success_is_counted(grpc_collector, exporter):
    """Spans that the server rejects from an accepted request are counted."""
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = 2
    grpc_collector.answers.append(answer)
    exporter.send(make_tree())
    assert exporter.rejected == 2


def test_tls():
    """With the CA file, spans are sent over TLS; without it, they are kept."""
    with collectors.GrpcCollector(tls=True) as collector:
        trusting = make_exporter(collector, certificate=str(collectors.PEM))
        trusting.send(make_tree())
        trusting.close()
        wary = make_exporter(collector)
        with pytest.raises(ExporterRetryError):
            wary.send(make_tree())
        wary.close()
        assert len(collector.spans) == len(make_tree())


def test_missing_certificate_file_is_retried(grpc_collector, tmp_path):
    """A missing file may be mounted later."""
    grpc_collector.url = grpc_collector.url.replace("http:", "https:")
    with pytest.raises(ExporterRetryError, match=r"cannot read .*missing\.pem: .*CERTIFICATE"):
        make_exporter(grpc_collector, certificate=str(tmp_path / "missing.pem")).send(make_tree())


def test_no_secrets_in_messages(grpc_collector, exporter):
    """The server's message is quoted without our key, even if the server sends it back."""
    grpc_collector.answers.append(CODE.INVALID_ARGUMENT)
    with pytest.raises(ExporterRefusedError) as caught:
        exporter.send(make_tree())
    assert "said the server to [redacted]" in str(caught.value)
