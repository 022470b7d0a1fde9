"""From an exception to a class of the closed set, a code, and whether trying again can help.

Three sources, the most specific first: what the exception says of itself (our own errors do), the table of errno, the table of types.
Types are named, not imported: the table knows libraries that are not installed.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.values import ERROR_CODES
from ckpt_observe.support.errnos import ERROR_CODES_BY_ERRNO


class Classified(NamedTuple):
    """What is known of a failure."""

    outcome: str
    error_type: str
    error_class: str
    code: str
    retryable: bool
    recovery: str | None
    impact: str | None

    def attributes(self, phase: str | None) -> dict[str, Any]:
        found = {
            names.OUTCOME: self.outcome,
            names.ERROR_TYPE: self.error_type,
            names.ERROR_CLASS: self.error_class,
            names.ERROR_CODE: self.code,
            names.ERROR_RETRYABLE: self.retryable,
            names.ERROR_PHASE: phase,
            names.ERROR_RECOVERY: self.recovery,
            names.ERROR_IMPACT: self.impact,
        }
        return {name: value for name, value in found.items() if value is not None}


BY_TYPE: Final = {
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
"""A type stands for its subclasses too; the nearest in the method resolution order wins."""


def classify(error: BaseException) -> Classified:
    """What is known of this failure. Never raises."""
    code = _said(error, "code")
    if not isinstance(code, str) or code not in ERROR_CODES:
        code = _by_tables(error)
    row = ERROR_CODES[code]
    retryable = _said(error, "retryable")
    return Classified(
        outcome="cancelled" if row.error_class == "cancelled" else "error",
        error_type=type(error).__qualname__,
        error_class=row.error_class,
        code=code,
        retryable=retryable if isinstance(retryable, bool) else row.retryable,
        recovery=_sentence(error, "recovery"),
        impact=_sentence(error, "impact"),
    )


def _by_tables(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno in ERROR_CODES_BY_ERRNO:
        return ERROR_CODES_BY_ERRNO[error.errno]
    for kind in type(error).__mro__:
        code = BY_TYPE.get(f"{kind.__module__}.{kind.__qualname__}")
        if code is not None:
            return code
    return "unknown.exception"


def _said(error: BaseException, name: str) -> Any:
    try:
        return getattr(error, name, None)
    except Exception:  # a property of somebody's exception
        return None


def _sentence(error: BaseException, name: str) -> str | None:
    value = _said(error, name)
    return value if isinstance(value, str) else None
