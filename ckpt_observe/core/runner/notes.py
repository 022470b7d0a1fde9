"""Notes about a run: timings, resources, choices, renderings, configuration, errors.

They are stored in the metadata of the run's checkpoints, with size limits, so that people and queries can read them without loading the
state. Metadata is never encrypted. If the checkpoints of a run are encrypted, notes that may quote the state (renderings, message and
stack of an error) are omitted. Do not put secrets into the other notes.
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
from ckpt_observe.support.host_exceptions import raise_host_exception

MAX_ENTRIES = 20
"""Of choices and of renderings, only this many are stored: the last ones."""
MAX_TEXT = 2000
"""Characters. The middle of a longer text is omitted."""

MAX_ENTRY = 256 * 1024
"""Bytes. A larger entry raises SerializationError, so that all entries fit into a header."""

MAX_STACK = 100_000
"""Characters. The middle of a longer stack trace is omitted, but no framework produces one: without its middle it is useless."""

_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


class Notes:
    """Collects the notes of one run."""

    def __init__(self, configuration: dict[str, Any] | None = None, *, encrypted: bool = False) -> None:
        self._encrypted = encrypted
        self._notes: dict[str, Any] = {} if configuration is None else {"configuration": _copy(configuration)}
        self._timings: dict[str, dict[str, float]] = {}

    def choice(self, what: str, chosen: Any, reason: str) -> None:
        """Record a decision, such as which model was used, and why."""
        value = _shorten(chosen) if isinstance(chosen, str) else chosen
        self._append("choices", {"what": _shorten(what), "chosen": value, "reason": _shorten(reason)})

    def rendering(self, template: str, before: str, after: str) -> None:
        """Record a template before and after it was filled in. Does nothing if the checkpoints are encrypted."""
        if not self._encrypted:
            self._append("renderings", {"template": _shorten(template), "before": _shorten(before), "after": _shorten(after)})

    def record_time(self, name: str, seconds: float) -> None:
        """Record how long a step or node took."""
        timing = self._timings.setdefault(name, {"count": 0, "seconds": 0.0, "last": 0.0})
        timing["count"] += 1
        timing["seconds"] += seconds
        timing["last"] = seconds

    def record_error(self, error: BaseException) -> None:
        """Record the error that ended the run; message and stack only if checkpoints are not encrypted. Works with a raising `str()`."""
        error_class = getattr(error, "error_class", None)
        entry = {"class": _shorten(error_class) if isinstance(error_class, str) else "unknown", "type": _shorten(type(error).__qualname__)}
        if not self._encrypted:
            entry["message"] = _shorten(_message(error))
            entry["stack"] = _shorten("".join(traceback.format_exception(error)), MAX_STACK)
        self._notes["error"] = entry

    def as_metadata(self) -> dict[str, Any]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        resources = {"cpu_seconds": round(time.process_time(), 6), "memory_peak_bytes": usage.ru_maxrss * _RSS_UNIT}
        return {**self._notes, "timings": {name: dict(timing) for name, timing in self._timings.items()}, "resources": resources}

    def _append(self, kind: str, entry: dict[str, Any]) -> None:
        self._notes[kind] = [*self._notes.get(kind, []), _copy(entry)][-MAX_ENTRIES:]


def _copy(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a copy as it will be stored. SerializationError if it is invalid: later a save would fail, perhaps the only one of the run."""
    try:
        encoded = msgspec.json.encode(entry)
        if len(encoded) > MAX_ENTRY:
            raise SerializationError(f"a note may have at most {MAX_ENTRY} bytes, not {len(encoded)}; shorten it")
        copy: dict[str, Any] = msgspec.json.decode(encoded)
        if container.nesting_depth(copy) > container.MAX_DEPTH - 5:  # it is nested a few levels deeper in the header
            raise SerializationError(f"a note may be nested at most {container.MAX_DEPTH - 5} levels deep; flatten it")
    except (TypeError, ValueError, RecursionError) as error:
        raise SerializationError(f"a note cannot hold this value: {error}; use plain JSON types") from error
    return copy


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:  # __str__ of a user class
        raise_host_exception(second)
        return f"<str() raised {type(second).__qualname__}>"


def _shorten(text: str, limit: int = MAX_TEXT) -> str:
    """Return the text within the limit and as valid UTF-8, which a file name need not be."""
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]} … {len(text) - 2 * half} characters omitted … {text[-half:]}"
    return text.encode("utf-8", "replace").decode()
