"""The exit codes of all commands: one table for the commands, their help and the documentation."""

from __future__ import annotations

from typing import Final

from ckpt_observe.errors import (
    AmbiguousTraceError,
    CheckpointNotFoundError,
    CkptObserveError,
    ConfigError,
    InvalidNameError,
    LocationError,
    TraceNotFoundError,
)

OK: Final = 0
ERROR: Final = 1
USAGE: Final = 2
PROBLEMS: Final = 3
NOT_FOUND: Final = 4
INTERRUPTED: Final = 130

MEANINGS: Final = {
    OK: "success",
    ERROR: "failure",
    USAGE: "wrong usage or setting",
    PROBLEMS: "problems or differences found",
    NOT_FOUND: "not found",
    INTERRUPTED: "stopped by Ctrl-C (128 + SIGINT, as in a shell)",
}
"""A code that is not in this table is a failure, too. `run` returns the code of the program instead."""

_CODES: Final[dict[type[CkptObserveError], int]] = {
    AmbiguousTraceError: USAGE,
    CheckpointNotFoundError: NOT_FOUND,
    TraceNotFoundError: NOT_FOUND,
    ConfigError: USAGE,
    InvalidNameError: USAGE,
    LocationError: USAGE,
}


def describe_codes(*codes: int) -> str:
    """Return the sentence about exit codes for the help of a command. Without arguments, it lists those of all commands."""
    listed = codes or [code for code in MEANINGS if code != INTERRUPTED]
    return f"Exit codes: {', '.join(f'{code} {MEANINGS[code]}' for code in listed)}."


def code_of(error: CkptObserveError) -> int:
    """Return the exit code for an error that ends a command."""
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), ERROR)
