"""Converts an exception to span attributes: our error class and code, whether a retry can help, and OpenTelemetry's own attributes.

The code comes from the most specific of three sources: the exception itself (our own errors carry one), the table of errno values, the
table of types. Types are listed by name, so that libraries need not be installed.
"""

from __future__ import annotations

import traceback
from typing import Any, Final, NamedTuple

from ckpt_observe.record import redact
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import spans
from ckpt_observe.semconv.values import ERROR_CODES
from ckpt_observe.support.errnos import ERROR_CODES_BY_ERRNO

_MAX_FRAMES: Final = 20
_MAX_STACK: Final = 2400
"""Characters of a stack that are recorded. Together with the message, they fit into one line of the journal."""

ERROR_CODES_BY_TYPE: Final = {
    "asyncio.exceptions.CancelledError": "cancelled.requested",
    "concurrent.futures._base.CancelledError": "cancelled.requested",
    "builtins.KeyboardInterrupt": "cancelled.requested",
    "builtins.SystemExit": "cancelled.requested",
    "builtins.GeneratorExit": "cancelled.requested",
    "builtins.TimeoutError": "timeout.deadline",
    "builtins.ConnectionError": "unavailable.connection",
    "builtins.PermissionError": "storage.permission",
    "builtins.FileNotFoundError": "not_found.path",
    "builtins.FileExistsError": "conflict.exists",
    "builtins.MemoryError": "memory.exhausted",
    "builtins.UnicodeError": "serialization.malformed",
    "builtins.RecursionError": "serialization.unsupported_type",
    "json.decoder.JSONDecodeError": "serialization.malformed",
    "msgspec.DecodeError": "serialization.malformed",
    "msgspec.ValidationError": "serialization.malformed",
    "_pickle.PicklingError": "serialization.unsupported_type",
    "pickle.PicklingError": "serialization.unsupported_type",
    "_pickle.UnpicklingError": "serialization.malformed",
    "pickle.UnpicklingError": "serialization.malformed",
    "zlib.error": "compression.malformed",
    "gzip.BadGzipFile": "compression.malformed",
    "_lzma.LZMAError": "compression.malformed",
    "compression.zstd.ZstdError": "compression.malformed",
    "backports.zstd.ZstdError": "compression.malformed",
    "builtins.OSError": "storage.io",
    "builtins.ImportError": "configuration.missing_extra",
}
"""Error codes by type. A type stands for its subclasses too; the nearest in the method resolution order wins."""


class Failure(NamedTuple):
    """The classification of an exception."""

    outcome: str
    error_type: str
    error_class: str
    code: str
    retryable: bool
    recovery: str | None
    impact: str | None

    def attributes(self, phase: str | None) -> dict[str, Any]:
        """Return the attributes of the failed span. `phase` is the phase that failed, if any."""
        attributes = {
            names.OUTCOME: self.outcome,
            names.ERROR_TYPE: self.error_type,
            names.ERROR_CLASS: self.error_class,
            names.ERROR_CODE: self.code,
            names.ERROR_RETRYABLE: self.retryable,
            names.ERROR_PHASE: phase,
            names.ERROR_RECOVERY: self.recovery,
            names.ERROR_IMPACT: self.impact,
        }
        return {name: value for name, value in attributes.items() if value is not None}


def classify(error: BaseException) -> Failure:
    """Classify an exception. Never raises."""
    code = _read_attribute(error, "code")
    if not isinstance(code, str) or code not in ERROR_CODES:
        code = _look_up_code(error)
    row = ERROR_CODES[code]
    retryable = _read_attribute(error, "retryable")
    return Failure(
        outcome="cancelled" if row.error_class == "cancelled" else "error",
        error_type=redact.name(type(error).__qualname__),
        error_class=row.error_class,
        code=code,
        retryable=retryable if isinstance(retryable, bool) else row.retryable,
        recovery=_read_text(error, "recovery"),
        impact=_read_text(error, "impact"),
    )


def _look_up_code(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno in ERROR_CODES_BY_ERRNO:
        return ERROR_CODES_BY_ERRNO[error.errno]
    for base in type(error).__mro__:
        code = ERROR_CODES_BY_TYPE.get(f"{base.__module__}.{base.__qualname__}")
        if code is not None:
            return code
    return "unknown.exception"


def _read_attribute(error: BaseException, name: str) -> Any:
    try:
        return getattr(error, name, None)
    except Exception:  # raised by a property of the host program's exception
        return None


def _read_text(error: BaseException, name: str) -> str | None:
    value = _read_attribute(error, name)
    return redact.name(value) if isinstance(value, str) else None


def exception_attributes(error: BaseException, *, stack: bool, message: bool = True) -> dict[str, Any]:
    """Return OpenTelemetry's attributes of an exception, with a redacted message.

    `stack` adds the traceback, without source lines: the host program's thread must not read files. If `message` is False, the message is
    replaced with `(not recorded)`.
    """
    attributes = {
        spans.EXCEPTION_TYPE: redact.name(f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")),
        spans.EXCEPTION_MESSAGE: _redacted_message(error) if message else "(not recorded)",
    }
    if stack:
        frames = traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__), lookup_lines=False, limit=-_MAX_FRAMES)
        lines = "\n".join(f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames)
        attributes[spans.EXCEPTION_STACKTRACE] = redact.text(lines, 4 * _MAX_STACK)[-_MAX_STACK:]
    return attributes


def _redacted_message(error: BaseException) -> str:
    try:
        return redact.text(str(error))
    except Exception:  # raised by its `__str__`
        return f"<{type(error).__name__}>"
