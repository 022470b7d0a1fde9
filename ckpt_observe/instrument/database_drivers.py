"""Phases of database drivers. All libraries share one row per driver, because a callable is patched once."""

from __future__ import annotations

from typing import Any, Final

from ckpt_observe.instrument.library_call import LibraryOperation
from ckpt_observe.instrument.phase_calls import SummedPhase
from ckpt_observe.instrument.targets import Target, Versions

_WRITE: Final = ("wait", "write", "commit")
_READ: Final = ("wait", "read", "read")
CURSOR_PHASES: Final = {
    "save": _WRITE, "append": _WRITE, "delete": _WRITE, "prune": _WRITE, "copy": _WRITE, "load": _READ, "list": _READ,
}  # fmt: skip
"""By operation: the phases of waiting for a cursor, of using it and of leaving it, which commits."""


def _aiosqlite_phase(operation: LibraryOperation, args: tuple[Any, ...]) -> str | None:
    """Return the phase of a call of SQLite in aiosqlite's thread: its first argument is the method of the connection or cursor."""
    if getattr(args[0] if args else None, "__name__", "") == "commit":
        return "commit"
    phases = CURSOR_PHASES.get(operation.name)
    return phases[1] if phases else None


def _column_exists(error: BaseException) -> bool:
    """Return whether SQLite refused to add a column that is there: it has no `ADD COLUMN IF NOT EXISTS`, so savers try it."""
    return type(error).__name__ == "OperationalError" and str(error).startswith("duplicate column name")


AIOSQLITE: Final = Target(
    "aiosqlite.core", "Connection._execute", SummedPhase("", _aiosqlite_phase, is_expected=_column_exists), required=False,
    why="what an asynchronous library waits for", versions=Versions("aiosqlite"),
)  # fmt: skip
