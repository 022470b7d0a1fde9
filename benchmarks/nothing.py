"""A checkpoint library that does nothing, in four phases, so that a benchmark measures only the cost of observing it.

`NothingInstrumentor` patches it as ckpt_observe patches any library; in `ByHand`, spans are written with the OpenTelemetry SDK.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from msgspec import Raw

from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.targets import Target
from ckpt_observe.instrument.wrappers import ObservedCall
from ckpt_observe.record import trace_context
from ckpt_observe.record.encoding import encode_attributes
from ckpt_observe.record.guard import record_fault
from ckpt_observe.record.operation import Operation
from ckpt_observe.record.phase import phase_wrapper
from ckpt_observe.semconv import attributes as names

STATE, PACKED = bytes(2048), bytes(800)
_numbers = itertools.count()
this = sys.modules[__name__]


def serialize(state: Any) -> bytes:  # noqa: ARG001
    return STATE


def compress(data: bytes) -> bytes:  # noqa: ARG001
    return PACKED


def write(data: bytes) -> None: ...


def validate(data: bytes) -> None: ...


class Library:
    kind, location, format, codec = "nothing", "nothing://", "nothing", "nothing"

    def save(self, task: str, state: Any, *, step: int) -> tuple[int, int]:
        data = this.serialize(state)
        packed = this.compress(data)
        this.write(packed)
        this.validate(packed)
        return len(data), len(packed)


def begin_attributes(library: Library, task: str, step: int) -> dict[str, Any]:
    """Return the attributes that are available when a save begins."""
    return {
        names.SYSTEM: "nothing",
        names.STORE: library.kind,
        names.LOCATION: library.location,
        names.FORMAT: library.format,
        names.CODEC: library.codec,
        names.TASK_ID: task,
        names.STEP: step,
    }


def end_attributes(sizes: tuple[int, int]) -> dict[str, Any]:
    """Return the attributes that are available when a save ends."""
    return {
        names.ID: f"step-{next(_numbers)}",  # each checkpoint has its own, as the index of saves expects
        names.SIZE_SERIALIZED: sizes[0],
        names.SIZE_STORED: sizes[1],
        names.RATIO: 2.56,
        names.DIGEST: "sha256:0123456789abcdef",
        names.STATE_TYPE: "dict",
        names.STATE_KEYS: 1,
    }


def _begin(library: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation | None:
    if not trace_context.may_record():
        return None
    return Operation("save", {names.TASK_ID: args[0], names.STEP: kwargs["step"]}, _library_attributes(library.kind, library.location))


@lru_cache
def _library_attributes(*_cache_key: str) -> Raw:
    """Encode once what is the same for every operation of one library object, as instrumentors do."""
    attributes = begin_attributes(Library(), "", 0)
    return encode_attributes({name: value for name, value in attributes.items() if name not in (names.TASK_ID, names.STEP)})


_IN, _OUT = names.PHASE_BYTES_IN, names.PHASE_BYTES_OUT


class NothingInstrumentor(Instrumentor):
    name = "nothing"
    library = __name__

    def targets(self) -> Sequence[Target]:
        return TARGETS


TARGETS = (
    Target(
        __name__, "Library.save", ObservedCall(_begin, record_fault, lambda operation, sizes: operation.set_trusted(end_attributes(sizes)))
    ),
    Target(__name__, "serialize", phase_wrapper("serialize", lambda _, result: (None, len(result)))),
    Target(__name__, "compress", phase_wrapper("compress", lambda args, result: (len(args[0]), len(result)))),
    Target(__name__, "write", phase_wrapper("write", lambda args, _: (len(args[0]), None))),
    Target(__name__, "validate", phase_wrapper("validate", lambda args, _: (len(args[0]), None))),
)


class ByHand(Library):
    """The same library with spans written by hand, as its author would do."""

    def __init__(self, tracer: Any) -> None:
        self.span = tracer.start_as_current_span

    def save(self, task: str, state: Any, *, step: int) -> tuple[int, int]:
        with self.span("checkpoint.save", attributes={names.OPERATION: "save", **begin_attributes(self, task, step)}) as save:
            with self.span("checkpoint.serialize", attributes={names.PHASE: "serialize"}) as span:
                data = this.serialize(state)
                span.set_attribute(_OUT, len(data))
            with self.span("checkpoint.compress", attributes={names.PHASE: "compress", _IN: len(data)}) as span:
                packed = this.compress(data)
                span.set_attribute(_OUT, len(packed))
            with self.span("checkpoint.write", attributes={names.PHASE: "write", _IN: len(packed)}):
                this.write(packed)
            with self.span("checkpoint.validate", attributes={names.PHASE: "validate", _IN: len(packed)}):
                this.validate(packed)
            save.set_attributes(end_attributes((len(data), len(packed))))
        return len(data), len(packed)
