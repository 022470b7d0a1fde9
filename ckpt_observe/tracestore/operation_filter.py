"""Conditions for operations and traces."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import Span

SERVICE: Final = "service.name"
ATTRIBUTES: Final = {
    "outcome": names.OUTCOME,
    "operation": names.OPERATION,
    "task_name": names.TASK_NAME,
    "task_id": names.TASK_ID,
    "session_id": names.SESSION_ID,
    "error_class": names.ERROR_CLASS,
    "error_code": names.ERROR_CODE,
    "system": names.SYSTEM,
    "checkpoint_id": names.ID,
}
"""Fields of the filter that are compared with an attribute of the operation."""


class OperationFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects operations that have all of these values, or traces that contain such an operation. None matches everything.

    Tasks and spans of other libraries match too, if no field asks for an attribute that they do not have.
    """

    since_unix_nano: int | None = None
    """Ended at this time or later; running operations match."""
    until_unix_nano: int | None = None
    """Ended before this time."""
    operation: str | None = None
    """`save`, `load`, ..."""
    outcome: str | None = None
    error_class: str | None = None
    error_code: str | None = None
    task_name: str | None = None
    task_id: str | None = None
    session_id: str | None = None
    system: str | None = None
    """The checkpoint library, such as `langgraph`."""
    checkpoint_id: str | None = None
    service: str | None = None
    """`service.name` of the program."""
    min_bytes: int | None = None
    """At least this size in the store; if that is unknown, serialized."""
    max_bytes: int | None = None

    def attributes(self) -> dict[str, str]:
        """Return the attributes that an operation must have."""
        values = {attribute: getattr(self, field) for field, attribute in ATTRIBUTES.items()}
        return {attribute: value for attribute, value in values.items() if value is not None}

    def matches(self, span: Span) -> bool:
        """Return whether an operation, task or other span has all values."""
        if any(str(span.attributes.get(attribute)) != value for attribute, value in self.attributes().items()):
            return False
        if self.service is not None and str(span.resource.get(SERVICE)) != self.service:
            return False
        if self.since_unix_nano is not None and span.end_unix_nano < self.since_unix_nano:
            return False
        if self.until_unix_nano is not None and span.end_unix_nano >= self.until_unix_nano:
            return False
        if self.min_bytes is None and self.max_bytes is None:
            return True
        size = stored_bytes(span.attributes)
        return size is not None and (self.min_bytes or 0) <= size and (self.max_bytes is None or size <= self.max_bytes)


ALL: Final = OperationFilter()
"""Matches everything."""


def stored_bytes(attributes: dict[str, Any]) -> int | None:
    """Return the size of an operation's checkpoint in the store; if that is unknown, the serialized size; else None."""
    for name in (names.SIZE_STORED, names.SIZE_SERIALIZED):
        size = attributes.get(name)
        if isinstance(size, int):
            return size
    return None
