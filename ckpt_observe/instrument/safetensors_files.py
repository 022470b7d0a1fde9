"""Observes files of safetensors: `save_file` and `load_file` for torch and NumPy.

`serialize_file` writes the file in one call of Rust code. It is looked up in its module at each call, so a save is observed even if the
program imported `save_file` by name before it was patched.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from ckpt_observe.instrument.checkpoint_file import CheckpointFile, file_attributes
from ckpt_observe.instrument.file_state import set_state
from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.library_call import Arguments, LibraryCall, LibraryOperation
from ckpt_observe.instrument.phase_calls import OperationOrPhase, SummedPhase
from ckpt_observe.instrument.targets import Target
from ckpt_observe.record.error_lookup import ErrorCodes
from ckpt_observe.semconv import attributes as names
from ckpt_observe.support.errnos import ERROR_CODES_BY_ERRNO

SYSTEM: Final = "safetensors"
_FRAMEWORKS: Final = {"safetensors.torch": "_flatten_as_ptr", "safetensors.numpy": "_flatten"}
"""The modules that save tensors, and their functions that prepare tensors for writing."""


def _describe(_module: Any, arguments: Arguments) -> dict[str, Any]:
    return {names.SYSTEM: SYSTEM, names.FORMAT: SYSTEM, **file_attributes(arguments["filename"])}


def _prepare_save(operation: LibraryOperation, _module: Any, arguments: Arguments) -> None:
    operation.details = CheckpointFile(arguments["filename"])
    set_state(operation, arguments.get("tensors", arguments.get("tensor_dict")))


_UNKNOWN_DTYPE: Final = re.compile(r"unknown variant `[A-Z]+\d[A-Z0-9_]*`")
"""Newer versions add types of tensors."""
_TRUNCATED: Final = ("header too small", "invalid header length", "file not fully covered")


def _explain_os_error(error: Exception) -> str | None:
    """By the number in the message: exceptions of Rust code have no `errno`."""
    match = re.search(r"\(os error (\d+)\)", str(error))
    return ERROR_CODES_BY_ERRNO.get(int(match[1]), "storage.io") if match else None


def _explain_safetensor_error(error: Exception) -> str | None:
    message = str(error)
    if any(text in message for text in _TRUNCATED):
        return "integrity.truncated"
    if _UNKNOWN_DTYPE.search(message):
        return "compatibility.newer_version"
    return _explain_os_error(error) or ("integrity.malformed" if "deserializing" in message else "serialization.unsupported_type")


_ERRORS: Final[ErrorCodes] = {
    "builtins.SafetensorError": _explain_safetensor_error,
    "safetensors._safetensors_rust.SafetensorError": _explain_safetensor_error,
    "builtins.OSError": _explain_os_error,
}
_SAVE_ERRORS: Final[ErrorCodes] = {
    **_ERRORS,
    "builtins.RuntimeError": lambda error: "serialization.unsupported_type" if "share memory" in str(error) else None,
    "builtins.ValueError": "serialization.unsupported_type",
}
_SAVE: Final = LibraryCall(
    SYSTEM, "save", _describe, before_end=CheckpointFile.record, inside="phase", error_codes=_SAVE_ERRORS, prepare=_prepare_save
)
_LOAD: Final = LibraryCall(
    SYSTEM,
    "load",
    _describe,
    set_state,
    CheckpointFile.record,
    inside="phase",
    error_codes=_ERRORS,
    prepare=CheckpointFile.prepare("filename"),
)
_WRITE: Final = OperationOrPhase(_SAVE, SummedPhase(SYSTEM, "write"))

TARGETS: Final = tuple(
    target
    for module, prepare in _FRAMEWORKS.items()
    for target in (
        Target(module, "save_file", _SAVE),
        Target(module, "load_file", _LOAD),
        Target(
            module, "serialize_file", _WRITE, required=False, why="a save by a `save_file` that was imported before; else phase `write`"
        ),
        Target(module, prepare, SummedPhase(SYSTEM, "serialize"), required=False, why="phase `serialize`"),
    )
)


class SafetensorsInstrumentor(Instrumentor):
    """Observes `save_file` and `load_file` of safetensors for torch and NumPy: bytes, number and types of tensors, the largest ones."""

    name = SYSTEM
    library = "safetensors"
    package = "safetensors"
    supported = "safetensors>=0.8,<1"

    def targets(self) -> Sequence[Target]:
        return TARGETS
