"""Converts an exception to span attributes: our error class and code, whether a retry can help, and OpenTelemetry's own attributes.

`error_lookup` finds the code. An exception that is control flow gives the outcome `ok` or `skipped` and no error.
"""

from __future__ import annotations

import traceback
from collections import deque
from typing import Any, Final, NamedTuple

from ckpt_observe.record import redact
from ckpt_observe.record.error_lookup import NO_FAILURE, UNKNOWN, ErrorCodes, Explanation, explain, qualified_name, read_attribute
from ckpt_observe.record.error_messages import read_message
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import spans
from ckpt_observe.semconv.values import ERROR_CODES
from ckpt_observe.support.host_exceptions import raise_host_exception

_MAX_FRAMES: Final = 20
_MAX_STACK: Final = 2400
"""Characters of a stack that are recorded. Together with the message, they fit into one line of the journal."""
_NO_CODES: Final[ErrorCodes] = {}


class Failure(NamedTuple):
    """The classification of an exception. `code` and what follows from it are None if the exception is control flow."""

    outcome: str
    error_type: str
    cause: str | None = None
    error_class: str | None = None
    code: str | None = None
    retryable: bool | None = None
    recovery: str | None = None
    impact: str | None = None

    def attributes(self, phase: str | None) -> dict[str, Any]:
        """Return the attributes of the span that the exception ended. `phase` is the phase that failed, if any."""
        if self.code is None:
            return {names.OUTCOME: self.outcome, names.CONTROL_FLOW: self.error_type}
        attributes = {
            names.OUTCOME: self.outcome,
            names.ERROR_TYPE: self.error_type,
            names.ERROR_CAUSE: self.cause,
            names.ERROR_CLASS: self.error_class,
            names.ERROR_CODE: self.code,
            names.ERROR_RETRYABLE: self.retryable,
            names.ERROR_PHASE: phase,
            names.ERROR_RECOVERY: self.recovery,
            names.ERROR_IMPACT: self.impact,
        }
        return {name: value for name, value in attributes.items() if value is not None}


def classify(error: BaseException, phase: str | None = None, codes: ErrorCodes = _NO_CODES) -> Failure:
    """Classify an exception that ended an operation or phase. Never raises.

    `phase` is the phase that failed. `codes` is the table of the observed library: it has precedence over the general tables.
    """
    error_type = redact.name(read_attribute(type(error), "__qualname__"))
    try:
        code, source = explain(error, phase, codes)
    except Exception as caught:  # such as RecursionError: the host program's stack may be almost full
        raise_host_exception(caught)
        code, source = Explanation(UNKNOWN, error)
    if code in NO_FAILURE:
        return Failure(code, error_type)
    row = ERROR_CODES[code]
    retryable = _read(error, source, "retryable", bool)
    recovery, impact = _read(error, source, "recovery", str), _read(error, source, "impact", str)
    return Failure(
        outcome="cancelled" if row.error_class == "cancelled" else "error",
        error_type=error_type,
        cause=None if source is error else type_name(source),
        error_class=row.error_class,
        code=code,
        retryable=row.retryable if retryable is None else retryable,
        recovery=recovery and redact.name(recovery),
        impact=impact and redact.name(impact),
    )


def _read(error: BaseException, source: BaseException, name: str, kind: type) -> Any:
    """Return an attribute of the raised exception or else of the one that explains it; None if neither has one of this type."""
    value = read_attribute(error, name)
    if not isinstance(value, kind) and source is not error:
        value = read_attribute(source, name)
    return value if isinstance(value, kind) else None


def type_name(error: BaseException) -> str:
    """Return the qualified name of an exception's type, as it is recorded."""
    return redact.name(qualified_name(type(error)).removeprefix("builtins."))


def exception_attributes(error: BaseException, *, stack: bool, message: bool = True) -> dict[str, Any]:
    """Return OpenTelemetry's attributes of an exception, with a redacted message.

    `stack` adds the traceback, without source lines: the host program's thread must not read files. If `message` is False, the message is
    replaced with `(not recorded)`.
    """
    attributes = {
        spans.EXCEPTION_TYPE: type_name(error),
        spans.EXCEPTION_MESSAGE: _redacted_message(error) if message else "(not recorded)",
    }
    if stack:
        # Not with `traceback.StackSummary`, which calls `os.stat` for each file and catches every OSError, such as a timeout of the host.
        frames = deque(traceback.walk_tb(error.__traceback__), _MAX_FRAMES)
        lines = "\n".join(f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}" for frame, line in frames)
        attributes[spans.EXCEPTION_STACKTRACE] = redact.text(lines, 4 * _MAX_STACK)[-_MAX_STACK:]
    return attributes


def _redacted_message(error: BaseException) -> str:
    try:
        return redact.text(read_message(error))
    except Exception as caught:  # raised by its `__str__`
        raise_host_exception(caught)
        return f"<{type(error).__name__}>"
