"""Observes libraries that store any object or array in a file: joblib and NumPy.

They write datasets and caches as well as checkpoints, so a program asks for them: `CKPT_OBSERVE_LIBRARIES=default,+joblib,+numpy`. Inside
an operation of another library, a file is a phase of that operation. joblib's own cache (`joblib.Memory`) and the files through which it
passes arrays to worker processes do not go through `joblib.dump` and are not observed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

from ckpt_observe.instrument.checkpoint_file import CheckpointFile, file_attributes
from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.library_call import Arguments, LibraryCall, LibraryOperation
from ckpt_observe.instrument.phase_calls import SummedPhase
from ckpt_observe.instrument.targets import Target
from ckpt_observe.instrument.tensors import describe_tensors
from ckpt_observe.record.error_lookup import ErrorCodes
from ckpt_observe.semconv import attributes as names

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


def _describe_joblib(_module: Any, arguments: Arguments) -> dict[str, Any]:
    return {names.SYSTEM: SYSTEM, names.FORMAT: "pickle", **file_attributes(arguments["filename"])}


def _joblib_row(operation: str, error_codes: ErrorCodes) -> LibraryCall:
    return LibraryCall(
        SYSTEM,
        operation,
        _describe_joblib,
        before_end=CheckpointFile.record,
        inside="phase",
        error_codes=error_codes,
        prepare=CheckpointFile.prepare("filename"),
    )


TARGETS: Final = (
    Target("joblib", "dump", _joblib_row("save", _SAVE_ERRORS)),
    Target("joblib", "load", _joblib_row("load", _LOAD_ERRORS)),
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


# NumPy

NUMPY: Final = "numpy"


def _explain_array_error(error: ValueError) -> str | None:
    """By its message: the file ends too early, or it contains objects."""
    message = str(error)
    if message.startswith(("EOF: ", "Failed to read all data")):
        return "integrity.truncated"
    if message.startswith("we only support format version"):
        return "compatibility.newer_version"
    if message.startswith("Object arrays cannot be"):
        return "serialization.unsupported_type"
    return "serialization.malformed" if "pickled" in message else None  # neither an array nor, perhaps, a pickle


_ARRAY_ERRORS: Final[ErrorCodes] = {"builtins.ValueError": _explain_array_error, "builtins.EOFError": "integrity.truncated"}


def _array_row(operation: str, suffix: str = "") -> LibraryCall:
    """Return the row of a function. A save appends the suffix to a path without it."""

    def find_file(arguments: Arguments) -> Any:
        file = arguments["file"]
        is_complete = not suffix or not isinstance(file, str | os.PathLike) or os.fspath(file).endswith(suffix)
        return file if is_complete else os.fspath(file) + suffix

    def describe(_module: Any, arguments: Arguments) -> dict[str, Any]:
        return {names.SYSTEM: NUMPY, names.FORMAT: suffix.removeprefix(".") or None, **file_attributes(find_file(arguments))}

    def prepare(operation: LibraryOperation, _module: Any, arguments: Arguments) -> None:
        operation.details = CheckpointFile(find_file(arguments))
        operation.set(describe_tensors({name: value for name, value in arguments.items() if name != "file"}))

    def record_result(operation: LibraryOperation, result: Any) -> None:
        if result is not None:
            operation.set(describe_tensors(result))

    return LibraryCall(NUMPY, operation, describe, record_result, CheckpointFile.record, None, "phase", _ARRAY_ERRORS, prepare)


ARRAY_TARGETS: Final = (
    Target("numpy", "save", _array_row("save", ".npy")),
    Target("numpy", "savez", _array_row("save", ".npz")),
    Target("numpy", "savez_compressed", _array_row("save", ".npz")),
    Target("numpy", "load", _array_row("load")),
)


class NumPyInstrumentor(Instrumentor):
    """Observes `numpy.save`, `savez`, `savez_compressed` and `numpy.load`. An `.npz` file is loaded lazily: its arrays are read later."""

    name = NUMPY
    library = "numpy"
    package = "numpy"
    supported = "numpy>=2.4,<3"

    def targets(self) -> Sequence[Target]:
        return ARRAY_TARGETS
