"""A server that fails with 500: everything is kept and sent again; a span that alone causes it is set aside on disk."""

from __future__ import annotations

import pytest

from ckpt_observe.delivery import set_aside
from ckpt_observe.delivery.delivery import Delivery
from ckpt_observe.delivery.exporter_worker import STUCK_AFTER, ExporterWorker
from ckpt_observe.delivery.set_aside import SetAside
from ckpt_observe.errors import ExporterRetryError, ExporterServerError
from ckpt_observe.journal.journal import Journal
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import metrics
from ckpt_observe.testing.spans import make_span
from tests.delivery.conftest import FakeExporter, record_operation, until


class FailingServer(FakeExporter):
    """Fails on the ids in `poison`, or on everything if that is None."""

    poison = ()

    def send(self, spans):
        if self.poison is None or any(span.attributes.get(names.ID) in self.poison for span in spans):
            self.batch_sizes.append(len(spans))
            raise ExporterServerError("500")
        super().send(spans)


@pytest.fixture
def exporter():
    return FailingServer()


@pytest.fixture
def store(tmp_path):
    return SetAside(str(tmp_path))


def make_spans(count):
    return [make_span(number, "checkpoint.save", attributes={names.ID: str(number)}) for number in range(1, count + 1)]


def deliver(worker, spans, store, attempts=200):
    """Deliver, without waiting between attempts. Return the number of attempts."""
    for number in range(1, attempts + 1):
        if worker.deliver(spans, store):
            return number
    pytest.fail("never delivered")


@pytest.mark.parametrize(
    "poison", [{"7"}, {"1", "2"}, {str(number) for number in range(1, 101, 7)}, {str(number) for number in range(1, 41)}]
)
def test_span_is_isolated_and_the_rest_delivered_once(exporter, store, poison):
    """Spans that fail while others are accepted are set aside and counted; every other span is sent successfully exactly once."""
    worker, exporter.poison = ExporterWorker(exporter), poison
    deliver(worker, make_spans(100), store)
    assert sorted(exporter.ids, key=int) == [str(number) for number in range(1, 101) if str(number) not in poison]
    assert (worker.delivered, worker.refused, worker.set_aside) == (100 - len(poison), 0, len(poison))
    assert store.count("fake") == len(poison)


@pytest.mark.parametrize("count", [2, 20, 500])
def test_outage_with_500_loses_nothing(exporter, store, count):
    """While a server fails on everything, nothing is dropped, and almost nothing set aside. Afterwards everything arrives once."""
    worker, exporter.poison = ExporterWorker(exporter), None
    for _ in range(4):
        assert not worker.deliver(make_spans(count), store)
    assert (worker.refused, store.count()) == (0, 0)
    is_finished = any(worker.deliver(make_spans(count), store) for _ in range(40))
    exporter.poison = ()
    assert is_finished or worker.deliver(make_spans(count), store)
    worker.retry_set_aside(SetAside(store._path.removesuffix("/" + set_aside.SET_ASIDE)))
    assert sorted(map(int, exporter.ids)) == list(range(1, count + 1))


def test_lone_span_does_not_block_forever(exporter, store):
    """If nothing else is left to send, a span that keeps failing is set aside, so that later ones are tried."""
    worker, exporter.poison = ExporterWorker(exporter), {"1"}
    assert deliver(worker, make_spans(1), store) == STUCK_AFTER
    assert store.count("fake") == 1


def test_accepted_part_is_not_sent_again(exporter):
    """If a half is accepted before the server goes down, only the other half is sent later."""
    worker, exporter.bad = ExporterWorker(exporter), {"1"}
    send = exporter.send

    def down_after_three(batch):
        if len(exporter.ids) >= 3:
            raise ExporterRetryError("down")
        send(batch)

    exporter.send = down_after_three
    assert not worker.deliver(make_spans(8))
    exporter.send = send
    assert worker.deliver(make_spans(9))  # it has grown meanwhile
    assert sorted(exporter.ids, key=int) == [str(number) for number in range(2, 10)]
    assert (worker.delivered, worker.refused) == (8, 1)


def test_full_disk_keeps_the_span(exporter, store, monkeypatch):
    """A span that cannot be set aside is not lost."""
    worker, exporter.poison = ExporterWorker(exporter), {"1"}

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(set_aside.files, "replace_file", fail)
        for _ in range(10):
            assert not worker.deliver(make_spans(4), store)
    assert "cannot be set aside" in worker.last_error
    deliver(worker, make_spans(4), store)
    assert (sorted(exporter.ids), store.count()) == (["2", "3", "4"], 1)


def test_limit(exporter, store, monkeypatch):
    """Beyond the limit, failing spans are refused and counted as such."""
    monkeypatch.setattr(set_aside, "MAX_SPANS", 1)
    worker, exporter.poison = ExporterWorker(exporter), {"1", "2"}
    deliver(worker, make_spans(4), store)
    assert (worker.delivered, worker.refused, worker.set_aside) == (2, 1, 1)


def test_next_attempts(tmp_path, monkeypatch):
    """A span that was set aside is tried after a minute, then less often. Another process tries it at once."""
    now = 1000.0
    monkeypatch.setattr(set_aside.time, "monotonic", lambda: now)
    store, (span,) = SetAside(str(tmp_path)), make_spans(1)
    assert store.add("fake", span)
    assert store.add("fake", span), "twice is once"
    for pause in (60.0, 60.0, 120.0, 240.0):
        assert store.due("fake") == []
        now += pause
        assert store.due("fake") == [span]
        store.settle("fake", [span], [span])
    assert SetAside(str(tmp_path)).due("fake") == [span]
    store.settle("fake", [span], [])
    assert SetAside(str(tmp_path)).count() == 0


@pytest.mark.parametrize("content", [b"\xff\xfe", b"{", b"[]", b'{"fake": [1]}', b"[" * 100_000])
def test_damaged_file(tmp_path, content):
    """A damaged file is kept under another name."""
    (tmp_path / set_aside.SET_ASIDE).write_bytes(content)
    assert SetAside(str(tmp_path)).count() == 0
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [content]


def test_unreadable_file_is_kept(tmp_path, monkeypatch):
    """While the file cannot be read, for lack of descriptors, its journal counts as undelivered."""
    (span,) = make_spans(1)
    SetAside(str(tmp_path)).add("fake", span)

    def fail(*_):
        raise OSError(24, "Too many open files")

    store = SetAside(str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(set_aside.files, "read_json", fail)
        assert (store.count(), store.due("fake")) == (1, [])
    assert store.due("fake") == [span]


def test_next_process_delivers_it(start_delivery, state, exporter, monkeypatch):
    """A span that is set aside outlives its process: the journal stays, and the next process sends the span when the server works."""
    monkeypatch.setattr("ckpt_observe.delivery.exporter_worker.FIRST_PAUSE", 0.01)
    exporter.poison = {"bad"}
    journal, delivery = start_delivery(exporter)
    for key in ("a", "bad", "b"):
        record_operation(journal, key)
    until(lambda: sorted(exporter.ids) == ["a", "b"] and delivery.workers[0].set_aside == 1)
    assert delivery.health()[metrics.SET_ASIDE_SPANS.name, ("fake",)] == 1
    assert not delivery.flush(1)
    assert not delivery.close(1)
    fixed = FailingServer()
    later = Delivery(state, [fixed])
    later.start()
    until(lambda: fixed.ids == ["bad"])
    later.adoption.maintain()
    assert list((state / "journals").iterdir()) == []
    later.close(5)


def test_failing_journal_does_not_block_another(exporter, state, tmp_path, monkeypatch):
    """If the server fails on the records of one process, those of others are delivered."""
    monkeypatch.setattr("ckpt_observe.delivery.exporter_worker.FIRST_PAUSE", 0.01)
    for number in range(2):
        journal = Journal(state, tmp_path / "pages", ["fake"], {})
        record_operation(journal, str(number))
        journal.pool.collect()
        journal.release()
    exporter.poison = {"0"}
    delivery = Delivery(state, [exporter])
    delivery.start()
    until(lambda: exporter.ids == ["1"])
    delivery.close(0.1)
