"""OpenTelemetry's attributes of an exception."""

from __future__ import annotations

import traceback
from typing import Any, Final

from ckpt_observe.record import redact
from ckpt_observe.semconv import spans

_FRAMES: Final = 20
_STACK_LIMIT: Final = 2400
"""Characters; with the message it fits one line of the journal."""


def described(error: BaseException, *, stack: bool, message: bool = True) -> dict[str, Any]:
    """Type, message without secrets, and stack without source lines: reading files is not for the host's thread."""
    found = {
        spans.EXCEPTION_TYPE: f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins."),
        spans.EXCEPTION_MESSAGE: _message(error) if message else "(not told)",
    }
    if stack:
        frames = traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__), lookup_lines=False, limit=-_FRAMES)
        found[spans.EXCEPTION_STACKTRACE] = "\n".join(f"{each.filename}:{each.lineno} in {each.name}" for each in frames)[-_STACK_LIMIT:]
    return found


def _message(error: BaseException) -> str:
    try:
        return redact.text(str(error))
    except Exception:  # an exception that cannot say what it is
        return f"<{type(error).__name__}>"
