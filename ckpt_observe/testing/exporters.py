"""The contract of every exporter, as a pytest class to inherit.

class TestMyExporter(ExporterContract):
    @pytest.fixture
    def exporter(self): ...

    def received(self, exporter): ...
    def break_backend(self, exporter): ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from ckpt_observe.errors import ExporterRefusedError, ExporterRetryError
from ckpt_observe.exporter import Exporter
from ckpt_observe.span import Span, SpanEvent, SpanLink
from ckpt_observe.testing.spans import START_UNIX_NANO, make_span, make_tree


class ExporterContract:
    """What delivery can expect of every exporter. If the backend keeps duplicates, set `test_repeat_leaves_one_copy = None`."""

    secrets: ClassVar[tuple[str, ...]] = ()
    """Secrets that the fixture passes to the exporter. They must not appear in its repr."""

    @pytest.fixture
    def exporter(self) -> Any:
        """Return a new exporter for an empty backend. Subclasses override this fixture and the next two methods."""
        raise NotImplementedError

    def received(self, exporter: Exporter) -> list[Span]:
        """Return every span that the backend has, in any order, without using the exporter."""
        raise NotImplementedError

    def break_backend(self, exporter: Exporter) -> None:
        """Make the backend fail from now on."""
        raise NotImplementedError

    def test_has_the_interface(self, exporter: Exporter) -> None:
        """It has every member of `Exporter`, and its identity starts with its name, so that exporters of other names do not share it."""
        assert isinstance(exporter, Exporter)
        assert exporter.identity.partition("@")[0] == exporter.name
        assert isinstance(exporter.durable, bool)

    def test_sent_batch_arrives(self, exporter: Exporter) -> None:
        """When `send` returns, the backend has every span of the batch, complete."""
        spans = make_tree(1, operations=("save", "restore"))
        exporter.send(spans)
        assert _by_id(self.received(exporter)) == _by_id(spans)

    def test_batches_add_up(self, exporter: Exporter) -> None:
        """A second batch does not replace the first."""
        first, second = make_tree(1), make_tree(2)
        exporter.send(first)
        exporter.send(second)
        assert _by_id(self.received(exporter)) == _by_id([*first, *second])

    def test_repeat_leaves_one_copy(self, exporter: Exporter) -> None:
        """Sending the same batch again, as after a lost response, changes nothing."""
        spans = make_tree(1)
        exporter.send(spans)
        exporter.send(spans)
        assert _by_id(self.received(exporter)) == _by_id(spans)

    def test_empty_batch_is_fine(self, exporter: Exporter) -> None:
        """An empty batch changes nothing."""
        exporter.send([])
        exporter.send(make_tree(1))
        exporter.send([])
        assert len(self.received(exporter)) == len(make_tree(1))

    def test_closing_twice_is_harmless(self, exporter: Exporter) -> None:
        """A second `close` does nothing, and loses nothing that was accepted."""
        exporter.send(make_tree(1))
        exporter.close()
        exporter.close()
        assert len(self.received(exporter)) == len(make_tree(1))

    def test_closing_unused_is_harmless(self, exporter: Exporter) -> None:
        """An exporter that never sent anything can be closed and leaves nothing behind."""
        exporter.close()
        assert self.received(exporter) == []

    @pytest.mark.parametrize(
        "value",
        [
            pytest.param("Zustand ✓ 状態 🧭\u0000\n\t\"'\\", id="unicode"),
            pytest.param("", id="empty"),
            pytest.param(-(2**53), id="int"),
            pytest.param(0.1, id="double"),
            pytest.param(False, id="boolean"),
            pytest.param(["a", "ä"], id="strings"),
            pytest.param([1, 2, 3], id="ints"),
            pytest.param([0.5, 1.5], id="doubles"),
            pytest.param([True, False], id="booleans"),
            pytest.param("x" * 100_000, id="big"),
        ],
    )
    def test_attribute_round_trips(self, exporter: Exporter, value: Any) -> None:
        """Attributes of every type arrive unchanged, with their type."""
        exporter.send([make_span(1, "checkpoint.save", attributes={"own.value": value})])
        [span] = self.received(exporter)
        assert (span.attributes["own.value"], type(span.attributes["own.value"])) == (value, type(value))

    def test_events_links_and_resource_round_trip(self, exporter: Exporter) -> None:
        """Every field of a span arrives."""
        span = make_span(
            1,
            "checkpoint.restore",
            parent=7,
            status="error",
            events=(SpanEvent("exception", START_UNIX_NANO, {"exception.message": "ö"}),),
            links=(SpanLink(f"{9:032x}", f"{8:016x}", {"own": 1}),),
            resource={"service.name": "dienst", "process.pid": 12},
        )
        exporter.send([span])
        assert self.received(exporter) == [span]

    def test_broken_backend_raises_an_exporter_error(self, exporter: Exporter) -> None:
        """If the backend fails, `send` raises ExporterRetryError or ExporterRefusedError, and nothing else."""
        self.break_backend(exporter)
        with pytest.raises((ExporterRetryError, ExporterRefusedError)) as caught:
            exporter.send(make_tree(1))
        assert str(caught.value)

    def test_repr_shows_no_secret(self, exporter: Exporter) -> None:
        """An exporter can be logged without leaking a secret."""
        assert [secret for secret in self.secrets if secret in repr(exporter)] == []


def _by_id(spans: Sequence[Span]) -> list[Span]:
    return sorted(spans, key=lambda span: (span.trace_id, span.span_id))
