"""What operations and phases share: each *is* the current OpenTelemetry span while it runs.

So spans of other instrumentations nest beneath it, and `trace.get_current_span().set_attribute(...)` in the host reaches it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach

from ckpt_observe.record import redact
from ckpt_observe.record.guard import fault

_SAMPLED: Final = trace.TraceFlags(trace.TraceFlags.SAMPLED)
_set_item: Final = dict.__setitem__  # a Context refuses to be changed; this one is not anybody's yet


class CurrentSpan(trace.Span):
    """Made current by `make_current`, no longer so after `suspend`."""

    __slots__ = ("_attributes", "_token", "name")

    name: str
    _attributes: dict[str, Any] | None
    _token: Any

    def ids(self) -> tuple[str, str]:
        """Trace and span id in hex."""
        raise NotImplementedError

    def make_current(self, here: Context, *keys: str) -> None:
        context = Context(here)
        for key in keys:
            _set_item(context, key, self)
        self._token = attach(context)

    def suspend(self) -> None:
        """No longer current, though not ended: between two steps of a generator, or when the rest happens elsewhere."""
        token = self._token
        if token is not None:
            self._token = None
            detach(token)

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes: names of the registry, or your own. Values must be small; secrets are taken out."""
        try:
            if not attributes.keys() <= redact.known_keys:
                attributes = redact.attributes(attributes)
            self.note(attributes)
        except Exception as error:
            fault(error)

    def note(self, attributes: Mapping[str, Any]) -> None:
        """`set` for attributes that are ours: names of the registry only."""
        if self._attributes is None:
            self._attributes = dict(attributes)
        else:
            self._attributes.update(attributes)

    def get_span_context(self) -> trace.SpanContext:
        trace_id, span_id = self.ids()
        return trace.SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=_SAMPLED)

    def set_attribute(self, key: str, value: Any) -> None:
        self.set({key: value})

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        self.set(attributes)

    def update_name(self, name: str) -> None:
        """Ignored: the registry names our spans."""

    def is_recording(self) -> bool:
        return True

    def set_status(self, status: Any, description: str | None = None) -> None:
        """Ignored: the outcome is the status."""
