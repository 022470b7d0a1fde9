from __future__ import annotations

import os
import shutil
import threading
import time

import pytest

from ckpt_observe.delivery.delivery import Delivery
from ckpt_observe.errors import ExporterRefusedError, ExporterRetryError
from ckpt_observe.exporter import Exporter
from ckpt_observe.journal.journal import Journal
from ckpt_observe.record.encoding import encode_line
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events


class FakeExporter(Exporter):
    """An exporter that a test controls.

    `down`: raise ExporterRetryError. `bad`: checkpoint ids that are refused. `hang`: an event to wait for. `broken`: an exception to raise.
    """

    def __init__(self, name="fake"):
        self.name = name
        self.ids, self.batch_sizes = [], []
        self.down = self.hang = self.broken = None
        self.bad = ()
        self.close_count = 0
        self.send_started = threading.Event()

    def send(self, spans):
        self.send_started.set()
        self.batch_sizes.append(len(spans))
        if self.hang is not None:
            self.hang.wait(30)
        if self.broken:
            raise self.broken
        if self.down:
            raise ExporterRetryError("down")
        if any(span.attributes.get(names.ID) in self.bad for span in spans):
            raise ExporterRefusedError("bad span")
        self.ids += [span.attributes[names.ID] for span in spans]

    def close(self):
        self.close_count += 1


def until(condition, seconds=90.0):
    """Wait for a condition. Fail on timeout, which costs nothing if all is well: on a busy machine, a program takes half a minute to start."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition was never met"
        time.sleep(0.005)


def remove(directory):
    """Remove a directory by hand. Repeated, because a file that is written meanwhile makes a removal fail."""
    while os.path.exists(directory):
        shutil.rmtree(directory, ignore_errors=True)


NOW = 1_700_000_000_000_000_000


def record_operation(journal, key, size=0):
    """Record one finished operation."""
    page = journal.take()
    span = f"{hash(key) & 0xFFFFFFFFFFFFFFFF:016x}"
    page.append(
        encode_line((events.BEGIN, span, NOW, events.OPERATION, "save", "0" * 31 + "1", "", {names.ID: key, "filler": "x" * size}, None))
    )
    page.finish(encode_line((events.END, span, NOW + 1, None, [], 0)))


@pytest.fixture
def start_delivery(state, tmp_path):
    """`start(exporter, ...)` returns a journal and its running delivery. All are closed at the end."""
    deliveries = []

    def start(*exporters, with_journal=True, with_threads=True):
        journal = (
            Journal(state, tmp_path / "pages", [exporter.name for exporter in exporters if exporter.durable], {"service.name": "t"})
            if with_journal
            else None
        )
        delivery = Delivery(state, exporters, journal)
        if with_threads:
            delivery.start()
        deliveries.append(delivery)
        return journal, delivery

    yield start
    for delivery in deliveries:
        delivery.close(2)
