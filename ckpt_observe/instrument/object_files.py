"""Observes libraries that store any object in a file: joblib.

They write datasets and caches as well as checkpoints, so a program asks for them: `CKPT_OBSERVE_LIBRARIES=default,+joblib`. Inside an
operation of another library, a file is a phase of that operation. joblib's own cache (`joblib.Memory`) and the files through which it
passes arrays to worker processes do not go through `joblib.dump` and are not observed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.library_call import Arguments, LibraryCall, LibraryOperation
from ckpt_observe.instrument.phase_calls import SummedPhase
from ckpt_observe.instrument.targets import Target
from ckpt_observe.record.error_lookup import ErrorCodes
from ckpt_observe.semconv import attributes as names
from ckpt_observe.support.host_exceptions import ignore_errors

LOST_FILE: Final = "the file is incomplete, and what it contained before is lost"
"""joblib opens the file before it pickles, so an object that cannot be pickled costs the previous checkpoint."""


def _path(file: Any) -> str | None:
    """Return the path of a file that the library opens itself. The caller may still write to a file object."""
    return os.fspath(file) if isinstance(file, str | os.PathLike) else None


def _read_status(path: str | None) -> tuple[int, int] | None:
    """Return size and time of the last change of a file; None if it does not exist."""
    with ignore_errors(OSError, ValueError):
        status = os.stat(path or "")
        return status.st_size, status.st_mtime_ns
    return None


class _ObjectFile:
    """The file of an operation."""

    __slots__ = ("path", "status")

    def __init__(self, path: str | None) -> None:
        self.path, self.status = path, _read_status(path)

    @staticmethod
    def prepare(operation: LibraryOperation, _module: Any, arguments: Arguments) -> None:
        operation.details = _ObjectFile(_path(arguments["filename"]))

    @staticmethod
    def record(operation: LibraryOperation, error: BaseException | None) -> None:
        """Set the size of the file, or what a failed save did to it."""
        before, after = operation.details.status, _read_status(operation.details.path)
        if error is None and after is not None:
            operation.set({names.SIZE_STORED: after[0]})
        elif error is not None and operation.name == "save" and after != before:
            operation.set({names.ERROR_IMPACT: LOST_FILE})


# joblib

SYSTEM: Final = "joblib"


def _explain_value_error(error: ValueError) -> str | None:
    """By its message: the file ends too early, or an argument is wrong."""
    message = str(error)
    if message.startswith("EOF: "):
        return "integrity.truncated"
    is_argument = message.startswith(("Compress argument", "Non valid compress", "Second argument", "Native byte ordering"))
    return "configuration.invalid" if is_argument else None


def _explain_unpickling_error(error: Exception) -> str | None:
    """By its message: the file ends too early."""
    return "integrity.truncated" if "exhausted" in str(error) or "truncated" in str(error) else None


_SAVE_ERRORS: Final[ErrorCodes] = {
    "builtins.TypeError": "serialization.unsupported_type",
    "builtins.AttributeError": "serialization.unsupported_type",  # a local class, or an object whose state cannot be read
    "builtins.ValueError": _explain_value_error,
}
_LOAD_ERRORS: Final[ErrorCodes] = {
    "builtins.EOFError": "integrity.truncated",
    "builtins.ValueError": _explain_value_error,
    "_pickle.UnpicklingError": _explain_unpickling_error,
}


def _describe_file(_module: Any, arguments: Arguments) -> dict[str, Any]:
    file = arguments["filename"]
    location = _path(file) or getattr(file, "name", None)
    return {
        names.SYSTEM: SYSTEM,
        names.STORE: "file",
        names.FORMAT: "pickle",
        names.LOCATION: location if isinstance(location, str) else None,  # the name of a file object may be a descriptor
    }


def _file_row(operation: str, error_codes: ErrorCodes) -> LibraryCall:
    return LibraryCall(
        SYSTEM,
        operation,
        _describe_file,
        before_end=_ObjectFile.record,
        inside="phase",
        error_codes=error_codes,
        prepare=_ObjectFile.prepare,
    )


TARGETS: Final = (
    Target("joblib", "dump", _file_row("save", _SAVE_ERRORS)),
    Target("joblib", "load", _file_row("load", _LOAD_ERRORS)),
    Target("joblib.numpy_pickle", "_unpickle", SummedPhase(SYSTEM, "deserialize"), required=False, why="reads and unpickles the file"),
)


class JoblibInstrumentor(Instrumentor):
    """Observes `joblib.dump` and `joblib.load`."""

    name = SYSTEM
    library = "joblib"
    package = "joblib"
    supported = "joblib>=1.2,<2"

    def targets(self) -> Sequence[Target]:
        return TARGETS
