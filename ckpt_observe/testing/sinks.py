"""What every sink must do, as tests to inherit.

class TestMySink(SinkContract):
    @pytest.fixture
    def sink(self): ...

    def received(self, sink): ...
    def break_medium(self, sink): ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import pytest

from ckpt_observe.errors import SinkRefusedError, SinkRetryError
from ckpt_observe.span import Event, Link, Span
from ckpt_observe.testing.spans import START_UNIX_NANO, make_span, make_tree


class Sink(Protocol):
    """A place where spans go."""

    name: str

    def send(self, spans: Sequence[Span]) -> None: ...

    def close(self) -> None: ...


class SinkContract:
    """The promises of a sink. One whose medium keeps every copy says so: `test_repeat_leaves_one_copy = None`."""

    secrets: ClassVar[tuple[str, ...]] = ()
    """What the `sink` fixture was given that nobody may see."""

    @pytest.fixture
    def sink(self) -> Any:
        """A new sink over an empty medium."""
        raise NotImplementedError

    def received(self, sink: Sink) -> list[Span]:
        """Every span that the medium has, in any order; read past the sink."""
        raise NotImplementedError

    def break_medium(self, sink: Sink) -> None:
        """Makes the medium fail from now on."""
        raise NotImplementedError

    def test_sent_batch_is_had(self, sink: Sink) -> None:
        """When `send` returns, the medium has every span of the batch, whole."""
        spans = make_tree(1, operations=("save", "restore"))
        sink.send(spans)
        assert _by_id(self.received(sink)) == _by_id(spans)

    def test_batches_add_up(self, sink: Sink) -> None:
        """A second batch leaves the first where it is."""
        first, second = make_tree(1), make_tree(2)
        sink.send(first)
        sink.send(second)
        assert _by_id(self.received(sink)) == _by_id([*first, *second])

    def test_repeat_leaves_one_copy(self, sink: Sink) -> None:
        """The same batch again, as after a lost answer, changes nothing."""
        spans = make_tree(1)
        sink.send(spans)
        sink.send(spans)
        assert _by_id(self.received(sink)) == _by_id(spans)

    def test_empty_batch_is_fine(self, sink: Sink) -> None:
        """Nothing to send is sent."""
        sink.send([])
        sink.send(make_tree(1))
        sink.send([])
        assert len(self.received(sink)) == len(make_tree(1))

    def test_closing_twice_is_harmless(self, sink: Sink) -> None:
        """`close` may be called again, and loses nothing that was accepted."""
        sink.send(make_tree(1))
        sink.close()
        sink.close()
        assert len(self.received(sink)) == len(make_tree(1))

    def test_closing_unused_is_harmless(self, sink: Sink) -> None:
        """A sink that never sent can be closed, and has left nothing."""
        sink.close()
        assert self.received(sink) == []

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
    def test_attribute_round_trips(self, sink: Sink, value: Any) -> None:
        """Every type of attribute comes back as it was, with its type."""
        sink.send([make_span(1, "checkpoint.save", attributes={"own.value": value})])
        [span] = self.received(sink)
        assert (span.attributes["own.value"], type(span.attributes["own.value"])) == (value, type(value))

    def test_events_links_and_resource_round_trip(self, sink: Sink) -> None:
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
        sink.send([span])
        assert self.received(sink) == [span]

    def test_broken_medium_is_a_sink_error(self, sink: Sink) -> None:
        """A medium that fails makes `send` say retry or refused, and nothing else."""
        self.break_medium(sink)
        with pytest.raises((SinkRetryError, SinkRefusedError)) as caught:
            sink.send(make_tree(1))
        assert str(caught.value)

    def test_repr_shows_no_secret(self, sink: Sink) -> None:
        """A sink can be logged."""
        assert [secret for secret in self.secrets if secret in repr(sink)] == []


def _by_id(spans: Sequence[Span]) -> list[Span]:
    return sorted(spans, key=lambda span: (span.trace_id, span.span_id))
