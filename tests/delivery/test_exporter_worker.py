"""One sink: retry with back-off, refusal of the one bad span, faults of the sink itself."""

from __future__ import annotations

import logging

import pytest

from ckpt_observe.delivery import delivery as deliveries
from ckpt_observe.delivery.exporter_worker import FIRST_PAUSE, LONGEST_PAUSE, Delivery
from ckpt_observe.errors import SinkRetryError
from ckpt_observe.semconv import attributes as names
from ckpt_observe.testing.spans import make_span
from tests.delivery.conftest import FakeSink


class Clock:
    now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(deliveries, "time", made)
    monkeypatch.setattr(deliveries, "_jitter", lambda low, high: 1.0)
    return made


@pytest.fixture
def sink():
    return FakeSink()


def spans(count):
    return [make_span(number, "checkpoint.save", attributes={names.ID: str(number)}) for number in range(1, count + 1)]


def test_pauses_grow_and_end(sink, clock):
    """Each failure doubles the pause, up to the longest; a success ends it."""
    delivery, pauses = Delivery(sink), []
    sink.down = True
    for _ in range(10):
        assert delivery.deliver(spans(1)) is False
        pauses.append(delivery._not_before - clock.now)
        assert not delivery.ready()
        clock.now = delivery._not_before
        assert delivery.ready()
    assert pauses[:4] == [FIRST_PAUSE * 2**number for number in range(4)]
    assert pauses[-1] == LONGEST_PAUSE
    sink.down = False
    assert delivery.deliver(spans(1))
    assert delivery.ready()
    assert (delivery.retries, delivery.delivered, delivery.trouble) == (10, 1, None)


def test_pause_that_the_server_asks_for(sink, clock):
    """Retry-After goes before our own pause; `hurry` before both."""
    delivery = Delivery(sink)
    sink.broken = SinkRetryError("busy", after=30)
    delivery.deliver(spans(1))
    assert delivery._not_before - clock.now == 30
    delivery.hurry()
    assert delivery.ready()


def test_refused_span_stands_alone(sink, caplog):
    """Of a refused batch all are delivered but the bad ones, which are counted and named."""
    delivery = Delivery(sink)
    sink.bad = {"7", "40"}
    assert delivery.deliver(spans(100))
    assert (delivery.delivered, delivery.refused) == (98, 2)
    assert len(sink.had) == 98
    assert len(sink.sizes) < 40, "halved, not one by one"
    assert f"{7:016x}" in caplog.text


def test_counts_when_a_batch_is_sent_again(sink):
    """Refused in one half, down in the other: the batch is sent again, and each span is counted once."""
    delivery = Delivery(sink)
    sink.bad = {"1"}
    send, calls = sink.send, []

    def send_then_down(batch):
        calls.append(len(batch))
        if len(calls) == 4:
            raise SinkRetryError("down")
        send(batch)

    sink.send = send_then_down
    assert delivery.deliver(spans(4)) is False
    assert delivery.deliver(spans(4))
    assert (delivery.delivered, delivery.refused) == (3, 1)


def test_sink_that_raises(sink, caplog):
    """A fault of the sink is treated as passing, and told once for each outage."""
    delivery = Delivery(sink)
    sink.broken = KeyError("bug")
    for _ in range(3):
        assert delivery.deliver(spans(1)) is False
    assert delivery.trouble.startswith("KeyError")
    sink.broken = None
    assert delivery.deliver(spans(1))
    sink.broken = KeyError("again")
    delivery.deliver(spans(1))
    assert len([entry for entry in caplog.records if entry.levelno == logging.WARNING]) == 2


def test_empty_batch(sink):
    """Nothing to send is not sent."""
    assert Delivery(sink).deliver([])
    assert sink.sizes == []
