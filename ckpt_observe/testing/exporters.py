"""What every exporter must do, as tests to inherit.

class TestMyExporter(ExporterContract):
    @pytest.fixture
    def exporter(self): ...

    def received(self, exporter): ...
    def break_medium(self, exporter): ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from ckpt_observe.errors import ExporterRefusedError, ExporterRetryError
from ckpt_observe.exporter import Exporter
from ckpt_observe.span import Event, Link, Span
from ckpt_observe.testing.spans import START_UNIX_NANO, make_span, make_tree


class ExporterContract:
    """The promises of an exporter. One whose medium keeps every copy says so: `test_repeat_leaves_one_copy = None`."""

    secrets: ClassVar[tuple[str, ...]] = ()
    """What the `exporter` fixture was given that nobody may see."""

    @pytest.fixture
    def exporter(self) -> Any:
        """A new exporter over an empty medium."""
        raise NotImplementedError

    def received(self, exporter: Exporter) -> list[Span]:
        """Every span that the medium has, in any order; read past the exporter."""
        raise NotImplementedError

    def break_medium(self, exporter: Exporter) -> None:
        """Makes the medium fail from now on."""
        raise NotImplementedError

    def test_has_the_interface(self, exporter: Exporter) -> None:
        """It has every member of `Exporter`, and an identity that no other name shares."""
        assert isinstance(exporter, Exporter)
        assert exporter.identity.partition("@")[0] == exporter.name
        assert isinstance(exporter.durable, bool)

    def test_sent_batch_is_had(self, exporter: Exporter) -> None:
        """When `send` returns, the medium has every span of the batch, whole."""
        spans = make_tree(1, operations=("save", "restore"))
        exporter.send(spans)
        assert _by_id(self.received(exporter)) == _by_id(spans)

    def test_batches_add_up(self, exporter: Exporter) -> None:
        """A second batch leaves the first where it is."""
        first, second = make_tree(1), make_tree(2)
        exporter.send(first)
        exporter.send(second)
        assert _by_id(self.received(exporter)) == _by_id([*first, *second])

    def test_repeat_leaves_one_copy(self, exporter: Exporter) -> None:
        """The same batch again, as after a lost answer, changes nothing."""
        spans = make_tree(1)
        exporter.send(spans)
        exporter.send(spans)
        assert _by_id(self.received(exporter)) == _by_id(spans)

    def test_empty_batch_is_fine(self, exporter: Exporter) -> None:
        """Nothing to send is sent."""
        exporter.send([])
        exporter.send(make_tree(1))
        exporter.send([])
        assert len(self.received(exporter)) == len(make_tree(1))

    def test_closing_twice_is_harmless(self, exporter: Exporter) -> None:
        """`close` may be called again, and loses nothing that was accepted."""
        exporter.send(make_tree(1))
        exporter.close()
        exporter.close()
        assert len(self.received(exporter)) == len(make_tree(1))

    def test_closing_unused_is_harmless(self, exporter: Exporter) -> None:
        """An exporter that never sent can be closed, and has left nothing."""
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
        """Every type of attribute comes back as it was, with its type."""
        exporter.send([make_span(1, "checkpoint.save", attributes={"own.value": value})])
        [span] = self.received(exporter)
        assert (span.attributes["own.value"], type(span.attributes["own.value"])) == (value, type(value))

    def test_events_links_and_resource_round_trip(self, exporter: Exporter) -> None:
        """Nothing of a span is left behind."""
        span = make_span(
            1,
            "checkpoint.restore",
            parent=7,
            status="error",
            events=(Event("exception", START_UNIX_NANO, {"exception.message": "ö"}),),
            links=(Link(f"{9:032x}", f"{8:016x}", {"own": 1}),),
            resource={"service.name": "dienst", "process.pid": 12},
        )
        exporter.send([span])
        assert self.received(exporter) == [span]

    def test_broken_backend_raises_an_exporter_error(self, exporter: Exporter) -> None:
        """A medium that fails makes `send` say retry or refused, and nothing else."""
        self.break_medium(exporter)
        with pytest.raises((ExporterRetryError, ExporterRefusedError)) as caught:
            exporter.send(make_tree(1))
        assert str(caught.value)

    def test_repr_shows_no_secret(self, exporter: Exporter) -> None:
        """An exporter can be logged."""
        assert [secret for secret in self.secrets if secret in repr(exporter)] == []


def _by_id(spans: Sequence[Span]) -> list[Span]:
    return sorted(spans, key=lambda span: (span.trace_id, span.span_id))
