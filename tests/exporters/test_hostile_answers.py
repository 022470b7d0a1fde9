"""Answers of servers are hostile input: no exporter raises anything but its own errors, keeps the spans, and uses bounded memory."""

from __future__ import annotations

import gzip
import random
import tracemalloc

import grpc
import pytest
from collectors import GrpcCollector, HttpCollector
from laminar_server import LaminarServer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from ckpt_observe.endpoints import GRPC, Endpoint
from ckpt_observe.errors import ExporterError, ExporterRetryError
from ckpt_observe.exporters import laminar as laminar_exporter
from ckpt_observe.exporters.laminar import LaminarExporter
from ckpt_observe.exporters.otlp import OtlpExporter
from ckpt_observe.support.http_client import MAX_ANSWER_BYTES, HttpClient
from ckpt_observe.testing.spans import make_tree

SEED = random.SystemRandom().randrange(1 << 32)
KEY = "Bearer sk-very-secret-0123456789"


@pytest.fixture
def collector():
    with HttpCollector() as collector:
        yield collector


@pytest.fixture
def exporter(collector):
    exporter = OtlpExporter(Endpoint(f"{collector.url}/v1/traces", timeout=60.0, headers={"authorization": KEY}))
    yield exporter
    exporter.close()


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (302, {"location": "http://["}),
        (302, {"location": "http://a\x80b/"}),
        (301, {"location": "//[::"}),
        (308, {"location": "gopher://" + "x" * 5000}),
        (503, {"retry-after": "Mon, 01 Jan 2024 00:00:00 +99999999999999"}),
        (429, {"retry-after": "9" * 6000}),
        (503, {"retry-after": "\xb2"}),
        (200, {"content-encoding": "gzip"}),
        (500, {"content-encoding": "br, zstd, gzip", "content-type": "text/plain"}),
        (400, {"content-type": "text/plain; charset=\xff", "set-cookie": "a=\xff; expires=\x01; path=\x00"}),
    ],
    ids=str,
)
def test_hostile_headers(collector, exporter, status, headers):
    """A header that cannot be parsed is no reason for an error that delivery does not know."""
    collector.otherwise = (status, headers, b"\xff\x00 not what it says")
    with pytest.raises(ExporterError) as caught:
        exporter.send(make_tree())
    assert getattr(caught.value, "after", None) is None or 0 <= caught.value.after <= 3600
    assert "sk-very-secret" not in str(caught.value)


def test_body_of_a_redirect_is_not_read_to_its_end():
    """A redirect is not followed, so its body does not matter: at most 64 KiB of it are read."""
    with HttpCollector() as collector:
        collector.pages["/"] = (302, {"location": "/elsewhere"}, b"x" * (4 << 20))
        assert len(HttpClient(5.0).request("GET", f"{collector.url}/").body) == MAX_ANSWER_BYTES


@pytest.mark.parametrize("codings", ["gzip", "x-gzip", "gzip, gzip", "deflate", "zstd"])
def test_compression_bomb(codings):
    """An answer that claims to be compressed takes no more memory than any other."""
    bomb = gzip.compress(bytes(60 << 20), 9)
    with HttpCollector() as collector:
        collector.pages["/"] = (200, {"content-encoding": codings}, bomb)
        client = HttpClient(5.0)
        tracemalloc.start()
        try:
            body = client.request("GET", f"{collector.url}/").body
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert len(body) <= MAX_ANSWER_BYTES
    assert peak < 8 << 20


def test_compressed_answer_is_read():
    """A proxy may compress an answer although we did not ask for it."""
    with HttpCollector() as collector:
        collector.pages["/"] = (200, {"content-encoding": "gzip"}, gzip.compress(b"hello"))
        assert HttpClient(5.0).request("GET", f"{collector.url}/").body == b"hello"


HOSTILE_JSON = [
    b'{"data": [{"span_id": "\xff"}]}',
    b'{"other": ' + b"[" * 60_000,
    b"[" * 60_000,
    b'{"data": [{"span": "1"}]}',
    b'{"data": [{"span_id": 1}]}',
    b'{"data": null}',
    b'{"data": [{"span_id": "\\ud800"}]}',
    b"\x00",
    b"",
]


@pytest.mark.parametrize("answer", HOSTILE_JSON, ids=lambda answer: repr(answer[:30]))
def test_laminar_answers_a_query_with_anything(answer, monkeypatch):
    """While the server does not say which spans it has, they are kept and not sent a second time."""
    monkeypatch.setattr(laminar_exporter, "SETTLE_SECONDS", 0.0)
    with LaminarServer() as server:
        exporter = LaminarExporter(Endpoint(f"{server.url}/v1/traces", headers={"authorization": server.authorization}))
        server.answers.append("cut")
        with pytest.raises(ExporterRetryError):
            exporter.send(make_tree())
        server.query = lambda _text: (200, {"content-type": "application/json"}, answer)
        with pytest.raises(ExporterRetryError, match="unexpected format"):
            exporter.send(make_tree())
        del server.query
        exporter.send(make_tree())
        exporter.close()
        assert len(server.rows) == len(make_tree())


def test_partial_success_with_hostile_values(collector, exporter, caplog):
    """A negative number is not counted, and the text of the server is logged on one line and without our key."""
    for count in (-5, 3):
        answer = ExportTraceServiceResponse()
        answer.partial_success.rejected_spans = count
        answer.partial_success.error_message = f"two\nlines of {KEY} " + "x" * 1000
        collector.otherwise = (200, {}, answer.SerializeToString())
        exporter.send(make_tree())
    assert exporter.rejected == 3
    [record] = caplog.records
    assert "rejected 3 spans: two lines of" in record.getMessage()
    assert "sk-very-secret" not in record.getMessage()
    assert len(record.getMessage()) < 400


@pytest.mark.faults
def test_any_bytes_as_a_success(collector, exporter):
    """Whatever a server sends with status 200, the spans are delivered."""
    rng = random.Random(SEED)
    print("seed", SEED)
    valid = ExportTraceServiceResponse()
    valid.partial_success.error_message = "text"
    for _ in range(100):
        body = bytearray(valid.SerializeToString() * 3)
        for _ in range(rng.randrange(1, 6)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        collector.otherwise = (200, {}, bytes(body))
        exporter.send(make_tree())


@pytest.mark.parametrize(("delay", "expected"), [(1e9, 3600.0), (-7.0, 0.0)])
def test_delay_of_a_grpc_server_is_limited(delay, expected):
    """A server that asks for a pause of years, or of less than nothing, is asked again within the hour, as over HTTP."""
    with GrpcCollector() as collector:
        collector.answers.append((grpc.StatusCode.UNAVAILABLE, delay))
        exporter = OtlpExporter(Endpoint(collector.url, protocol=GRPC, timeout=60.0))
        with pytest.raises(ExporterRetryError) as caught:
            exporter.send(make_tree())
        exporter.close()
    assert caught.value.after == expected
