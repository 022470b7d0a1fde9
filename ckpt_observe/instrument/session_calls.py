"""Rows for libraries whose operations are sessions or checkpoints of agents, and what their tables have in common.

A call within an operation of the same library is part of it: `super()`, a session that encrypts and hands on to another one, a storage
that lists its checkpoints to find the latest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Raw

from ckpt_observe.instrument.database_drivers import CURSOR_PHASES
from ckpt_observe.instrument.library_call import Arguments, Describe, LibraryCall, LibraryOperation, current_library_operation
from ckpt_observe.instrument.phase_calls import SummedPhase, text_size
from ckpt_observe.instrument.saver_attributes import attributes_of_class, store_of_class
from ckpt_observe.record.error_lookup import ErrorCodes
from ckpt_observe.semconv import attributes as names

LOCK_PHASES: Final = {operation: (wait, work, work) for operation, (wait, work, _commit) in CURSOR_PHASES.items()}
"""Phases of a lock that is held during the whole work, including the commit."""
_MAX_SESSIONS: Final = 8
"""Sessions within each other that are asked for their store. One that has every attribute, such as a mock, would never end."""


def outermost_call(
    system: str,
    operation: str,
    describe: Describe,
    record_result: Callable[[LibraryOperation, Any], object] | None = None,
    error_codes: ErrorCodes | None = None,
) -> LibraryCall:
    """Return the row of a call that is an operation, unless it is within another operation of the library."""

    def describe_outermost(instance: Any, arguments: Arguments) -> Mapping[str, Any] | None:
        return None if current_library_operation(system) is not None else describe(instance, arguments)

    def shared(instance: Any) -> Raw:
        kind: Any = type(instance)
        return attributes_of_class(system, kind, _store(instance))

    return LibraryCall(system, operation, describe_outermost, record_result, _record_damaged, shared, error_codes=error_codes or {})


def _store(instance: Any) -> str:
    """Return the kind of store that an object uses. A session that encrypts uses that of another session."""
    for _ in range(_MAX_SESSIONS):
        if (inner := getattr(instance, "underlying_session", None)) is None:
            break
        instance = inner
    engine = getattr(instance, "_engine", None) or getattr(instance, "db_engine", None)  # of SQLAlchemy
    dialect = getattr(getattr(engine, "dialect", None), "name", None)
    if isinstance(dialect, str):
        return dialect
    kind: Any = type(instance)
    return "file" if hasattr(instance, "storage_path") else store_of_class(kind)


def serialize_phase(system: str) -> SummedPhase:
    """Return the row of a function that turns its argument into text."""
    return SummedPhase(system, "serialize", lambda _operation, _args, _kwargs, result: (None, text_size(result)))


def deserialize_phase(system: str) -> SummedPhase:
    """Return the row of a function that decodes text. What it cannot decode counts as damaged if the operation succeeds."""
    return SummedPhase(
        system, "deserialize", lambda _operation, args, _kwargs, _result: (text_size(args[0]), None), record_error=_remember_damaged
    )


def _remember_damaged(operation: LibraryOperation, args: tuple[Any, ...], _kwargs: dict[str, Any], _error: Exception) -> None:
    if operation.details is None:
        operation.details = set()
    operation.details.add(hash(args[0]))  # once, even if a limited read decodes it again in a larger window


def _record_damaged(operation: LibraryOperation, error: BaseException | None) -> None:
    if error is None and operation.details:
        operation.set_trusted({names.DAMAGED_COUNT: len(operation.details)})


def path_of(store: Any, attribute: str) -> str | None:
    """Return the file or directory that an attribute of a store names."""
    path = getattr(store, attribute, None)
    return os.fspath(path) if isinstance(path, str | os.PathLike) and path != ":memory:" else None


def record_count(operation: LibraryOperation, items: Any) -> None:
    """Record how many items a call returned."""
    operation.set_trusted({names.COUNT: len(items), names.EXISTS: False if operation.name == "load" and not items else None})
