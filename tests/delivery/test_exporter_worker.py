"""Delivery to one exporter: retries with back-off, refused spans, and bugs of the exporter."""

from __future__ import annotations

import logging

import pytest

from ckpt_observe.delivery import exporter_worker as workers
from ckpt_observe.delivery.exporter_worker import FIRST_PAUSE, LONGEST_PAUSE, ExporterWorker
from ckpt_observe.endpoints import Endpoint
from ckpt_observe.errors import ExporterRetryError
from ckpt_observe.exporters.otlp import OtlpExporter
from ckpt_observe.semconv import attributes as names
from ckpt_observe.testing.spans import make_span
from tests.delivery.conftest import FakeExporter


class Clock:
    now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    fake = Clock()
    monkeypatch.setattr(workers, "time", fake)
    monkeypatch.setattr(workers, "_jitter", lambda low, high: 1.0)
    return fake


@pytest.fixture
def exporter():
    return FakeExporter()


def spans(count):
    return [make_span(number, "checkpoint.save", attributes={names.ID: str(number)}) for number in range(1, count + 1)]


def test_back_off(exporter, clock):
    """Each failure doubles the pause up to a maximum; a success resets it."""
    worker, pauses = ExporterWorker(exporter), []
    exporter.down = True
    for _ in range(10):
        assert worker.deliver(spans(1)) is False
        pauses.append(worker._next_attempt - clock.now)
        assert not worker.ready()
        clock.now = worker._next_attempt
        assert worker.ready()
    assert pauses[:4] == [FIRST_PAUSE * 2**number for number in range(4)]
    assert pauses[-1] == LONGEST_PAUSE
    exporter.down = False
    assert worker.deliver(spans(1))
    assert worker.ready()
    assert (worker.retries, worker.delivered, worker.last_error) == (10, 1, None)


def test_retry_after(exporter, clock):
    """Retry-After overrides our own pause; `retry_now` overrides both."""
    worker = ExporterWorker(exporter)
    exporter.broken = ExporterRetryError("busy", after=30)
    worker.deliver(spans(1))
    assert worker._next_attempt - clock.now == 30
    worker.retry_now()
    assert worker.ready()


@pytest.mark.parametrize("message", ["the disk is full", "the disk is full."])
def test_message_of_an_outage(exporter, message):
    """The error and what happens next are two sentences, whether the error ends with a period or not."""
    worker = ExporterWorker(exporter)
    exporter.broken = ExporterRetryError(message)
    worker.deliver(spans(1))
    assert worker.last_error == f"the disk is full. {workers.RETRY_NOTICE}"


def test_refused_spans_are_isolated(exporter, caplog):
    """All spans of a refused batch are delivered except the bad ones, which are counted and logged."""
    worker = ExporterWorker(exporter)
    exporter.bad = {"7", "40"}
    assert worker.deliver(spans(100))
    assert (worker.delivered, worker.refused) == (98, 2)
    assert len(exporter.ids) == 98
    assert len(exporter.batch_sizes) < 40, "halved, not sent one by one"
    assert f"{7:016x}" in caplog.text


def test_counts_of_a_repeated_batch(exporter):
    """If one half is refused and the other fails, the batch is sent again, and each span is counted once."""
    worker = ExporterWorker(exporter)
    exporter.bad = {"1"}
    send, calls = exporter.send, []

    def send_then_down(batch):
        calls.append(len(batch))
        if len(calls) == 4:
            raise ExporterRetryError("down")
        send(batch)

    exporter.send = send_then_down
    assert worker.deliver(spans(4)) is False
    assert worker.deliver(spans(4))
    assert (worker.delivered, worker.refused) == (3, 1)


def test_exporter_that_raises(exporter, caplog):
    """A bug of the exporter is treated like an outage: retried, and logged once for each outage."""
    worker = ExporterWorker(exporter)
    exporter.broken = KeyError("bug")
    for _ in range(3):
        assert worker.deliver(spans(1)) is False
    assert worker.last_error.startswith("KeyError")
    exporter.broken = None
    assert worker.deliver(spans(1))
    exporter.broken = KeyError("again")
    worker.deliver(spans(1))
    assert len([entry for entry in caplog.records if entry.levelno == logging.WARNING]) == 2


def test_empty_batch(exporter):
    """An empty batch is not sent."""
    assert ExporterWorker(exporter).deliver([])
    assert exporter.batch_sizes == []


def test_identity():
    """Another address or another key is another backend. The identity reveals neither."""
    exporters = [
        OtlpExporter(Endpoint(url, headers={"k": key})) for url in ("http://a:1", "http://b:1") for key in ("secret-1", "secret-2")
    ]
    assert len({exporter.identity for exporter in exporters}) == 4
    assert exporters[0].identity == OtlpExporter(Endpoint("http://a:1", headers={"k": "secret-1"})).identity
    assert not any("secret" in exporter.identity or "a:1" in exporter.identity for exporter in exporters)
