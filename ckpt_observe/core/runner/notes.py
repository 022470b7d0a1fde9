"""What a checkpoint tells about its run besides the state: timings, resources, choices, renderings, configuration, errors.

All of it goes into the checkpoint's metadata, bounded, so that a person or a query can read it without loading the state.
Metadata are not encrypted with the payload: of a run whose checkpoints are, what is likely to quote the state (renderings, message and
stack of an error) is left out; put nothing secret into the rest.
"""

from __future__ import annotations

import resource
import sys
import time
import traceback
from typing import Any

import msgspec

from ckpt_observe.core.format import container
from ckpt_observe.errors import SerializationError

KEPT = 20
"""Entries of each kind: the last ones."""
LONGEST = 2000
"""Characters of a text; the middle of a longer one is left out."""

MOST = 256 * 1024
"""Bytes of one entry: all of them fit into a header."""

LONGEST_STACK = 100_000
"""Of a stack trace, which is worth nothing without its middle: deeper ones than any framework makes."""

_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


class Notes:
    """A run's own account of itself."""

    def __init__(self, configuration: dict[str, Any] | None = None, *, encrypted: bool = False) -> None:
        self._encrypted = encrypted
        self._facts: dict[str, Any] = {} if configuration is None else {"configuration": _sayable(configuration)}
        self._timings: dict[str, dict[str, float]] = {}

    def choice(self, what: str, chosen: Any, reason: str) -> None:
        """A decision, such as which model was asked, and why."""
        self._append("choices", {"what": _cut(what), "chosen": _cut(chosen) if isinstance(chosen, str) else chosen, "reason": _cut(reason)})

    def rendering(self, template: str, before: str, after: str) -> None:
        """A template before and after it was filled in."""
        if not self._encrypted:
            self._append("renderings", {"template": _cut(template), "before": _cut(before), "after": _cut(after)})

    def timed(self, name: str, seconds: float) -> None:
        """A step or node that took that long."""
        timing = self._timings.setdefault(name, {"count": 0, "seconds": 0.0, "last": 0.0})
        timing["count"] += 1
        timing["seconds"] += seconds
        timing["last"] = seconds

    def failed(self, error: BaseException) -> None:
        """The error that ended the run, with its stack. Whatever it is made of, it does not cost the run its checkpoint."""
        known = getattr(error, "error_class", None)
        told = {"class": _cut(known) if isinstance(known, str) else "unknown", "type": _cut(type(error).__qualname__)}
        if not self._encrypted:
            told["message"] = _cut(_message(error))
            told["stack"] = _cut("".join(traceback.format_exception(error)), LONGEST_STACK)
        self._facts["error"] = told

    def as_metadata(self) -> dict[str, Any]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        used = {"cpu_seconds": round(time.process_time(), 6), "memory_peak_bytes": usage.ru_maxrss * _RSS_UNIT}
        return {**self._facts, "timings": {name: dict(timing) for name, timing in self._timings.items()}, "resources": used}

    def _append(self, kind: str, entry: dict[str, Any]) -> None:
        self._facts[kind] = [*self._facts.get(kind, []), _sayable(entry)][-KEPT:]


def _sayable(fact: dict[str, Any]) -> dict[str, Any]:
    """A copy as metadata will hold it. It is refused where it is said: a save that is, may be the only one of the run."""
    try:
        encoded = msgspec.json.encode(fact)
        if len(encoded) > MOST:
            raise SerializationError(f"of a run up to {MOST} bytes are noted at once, not {len(encoded)}")
        copy: dict[str, Any] = msgspec.json.decode(encoded)
        if container.nesting_depth(copy) > container.MAX_DEPTH - 5:  # it is put a few levels deeper
            raise SerializationError(f"of a run {container.MAX_DEPTH - 5} levels of nesting are noted")
    except (TypeError, ValueError, RecursionError) as error:
        raise SerializationError(f"this cannot be noted of a run: {error}") from error
    return copy


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:  # the program's own class
        return f"<its text failed with {type(second).__qualname__}>"


def _cut(text: str, longest: int = LONGEST) -> str:
    """The text as it can be kept: not too long, and in UTF-8, which the name of a file need not be."""
    if len(text) > longest:
        half = longest // 2
        text = f"{text[:half]} … {len(text) - 2 * half} characters left out … {text[-half:]}"
    return text.encode("utf-8", "replace").decode()
