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
    """An exporter that a test controls: `down` says retry, `bad` are ids that it refuses, `hang` an event that it waits for."""

    def __init__(self, name="fake"):
        self.name = name
        self.had, self.sizes = [], []
        self.down = self.hang = self.broken = None
        self.bad = ()
        self.closed = 0
        self.entered = threading.Event()

    def send(self, spans):
        self.entered.set()
        self.sizes.append(len(spans))
        if self.hang is not None:
            self.hang.wait(30)
        if self.broken:
            raise self.broken
        if self.down:
            raise ExporterRetryError("down")
        if any(span.attributes.get(names.ID) in self.bad for span in spans):
            raise ExporterRefusedError("bad span")
        self.had += [span.attributes[names.ID] for span in spans]

    def close(self):
        self.closed += 1


def until(condition, seconds=20.0):
    """Waits for a condition, and fails when it never comes."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "never happened"
        time.sleep(0.005)


def remove(directory):
    """As by hand, again and again: what is written there meanwhile makes one removal fail."""
    while os.path.exists(directory):
        shutil.rmtree(directory, ignore_errors=True)


NOW = 1_700_000_000_000_000_000


def operation(journal, key, size=0):
    """One operation of the host, from begin to end."""
    page = journal.take()
    span = f"{hash(key) & 0xFFFFFFFFFFFFFFFF:016x}"
    page.append(
        encode_line((events.BEGIN, span, NOW, events.OPERATION, "save", "0" * 31 + "1", "", {names.ID: key, "filler": "x" * size}, None))
    )
    page.finish(encode_line((events.END, span, NOW + 1, None, [], 0)))


@pytest.fixture
def world(state, tmp_path):
    """Journals and delivers, all closed at the end: `world(exporter, ...)` gives a journal and its running delivery."""
    made = []

    def make(*exporters, own=True, start=True):
        journal = (
            Journal(state, tmp_path / "pages", [exporter.name for exporter in exporters if exporter.durable], {"service.name": "t"})
            if own
            else None
        )
        delivery = Delivery(state, exporters, journal)
        if start:
            delivery.start()
        made.append(delivery)
        return journal, delivery

    yield make
    for delivery in made:
        delivery.close(2)
