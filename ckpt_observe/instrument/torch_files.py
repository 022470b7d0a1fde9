"""Observes `torch.save` and `torch.load`.

A save has the phases `serialize` (pickling), `write` (records of the zip file) and `finalize` (its directory). torch pickles and writes in
one function, so that function gets a stand-in for the file writer. Inside an operation of another library a file is a phase of it, and
inside a distributed checkpoint, which calls `torch.save` once per tensor, it is nothing.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from ckpt_observe.instrument.checkpoint_file import CheckpointFile, file_attributes
from ckpt_observe.instrument.file_state import set_state
from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.library_call import Arguments, LibraryCall, LibraryOperation, current_library_operation
from ckpt_observe.instrument.phase_calls import SummedPhase
from ckpt_observe.instrument.targets import Target
from ckpt_observe.instrument.tensors import find_step
from ckpt_observe.instrument.wrappers import Args, Kwargs
from ckpt_observe.record.error_lookup import ErrorCodes
from ckpt_observe.record.guard import record_fault
from ckpt_observe.semconv import attributes as names
from ckpt_observe.support.errnos import ERROR_CODES_BY_ERRNO

SYSTEM: Final = "torch"
DISTRIBUTED: Final = "torch.dcp"
"""The system of distributed checkpoints."""


def _describe(_module: Any, arguments: Arguments) -> dict[str, Any] | None:
    if current_library_operation(DISTRIBUTED) is not None:
        return None
    return {names.SYSTEM: SYSTEM, names.FORMAT: "torch", **file_attributes(arguments["f"])}


class _SavedFile(CheckpointFile):
    """The file of a save."""

    __slots__ = ("record_bytes",)

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.record_bytes = 0
        """Bytes of the pickle and of the tensors."""


def _prepare_save(operation: LibraryOperation, _module: Any, arguments: Arguments) -> None:
    operation.details = _SavedFile(arguments["f"])
    _set_contents(operation, arguments["obj"])


def _set_contents(operation: LibraryOperation, state: Any) -> None:
    set_state(operation, state)
    operation.set_trusted({names.STEP: find_step(state)})


def _end_save(operation: LibraryOperation, error: BaseException | None) -> None:
    file: _SavedFile = operation.details
    CheckpointFile.record(operation, error)
    if error is None:
        operation.set_trusted({names.SIZE_SERIALIZED: file.record_bytes or None})
    elif is_failed_write(error) and not isinstance(error.__context__, OSError):  # torch does not say why it could not write
        operation.failure_code = "storage.no_space" if file.is_on_full_disk() else "storage.io"


class _RecordWriter:
    """Stands in for torch's writer of zip files in the function that pickles and writes: until the first record, it pickles."""

    def __init__(self, writer: Any, operation: LibraryOperation) -> None:
        self._writer, self._operation = writer, operation
        self._pickling = operation.total("serialize")
        self._is_pickling = True
        self._start = self._pickling.begin(operation)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def write_record(self, name: str, data: Any, size: int) -> Any:
        """Write a record as a call of the phase `write`."""
        self.end_pickling()
        start = self._begin_write()
        try:
            result = self._writer.write_record(name, data, size)
        except BaseException as error:
            self._end_write(start, name, size, error)
            raise
        self._end_write(start, name, size)
        return result

    def _begin_write(self) -> int | None:
        """Start a call of the phase `write`. Return when; None if that failed."""
        try:
            return self._operation.total("write").begin(self._operation)
        except Exception as fault:
            record_fault(fault)
        return None

    def _end_write(self, start: int | None, name: str, size: int, error: BaseException | None = None) -> None:
        if start is None:
            return
        try:
            total = self._operation.total("write")
            total.end(self._operation, start, error)
            total.bytes_in += size
            self._operation.details.record_bytes += size
            if name == "data.pkl":
                self._pickling.bytes_out += size
        except Exception as fault:
            record_fault(fault)

    def end_pickling(self, error: BaseException | None = None) -> None:
        """End the phase `serialize`, if it has not ended."""
        if not self._is_pickling:
            return
        self._is_pickling = False
        try:
            self._pickling.end(self._operation, self._start, error)
        except Exception as fault:
            record_fault(fault)


def _wrap_save_function(wrapped: Callable[..., Any], _module: Any, args: Args, kwargs: Kwargs) -> Any:
    """Wrap `_save(obj, zip_file, ...)`."""
    writer: _RecordWriter | None = None
    try:
        operation = current_library_operation(SYSTEM)
        if operation is not None and operation.name == "save" and len(args) > 1:
            writer = _RecordWriter(args[1], operation)
    except Exception as error:
        record_fault(error)
    if writer is None:
        return wrapped(*args, **kwargs)
    try:
        result = wrapped(args[0], writer, *args[2:], **kwargs)
    except BaseException as error:
        writer.end_pickling(error)
        raise
    writer.end_pickling()
    return result


# Errors

_MESSAGES: Final = (
    ("Parent directory", "not_found.path"),
    ("view the same data as different types", "serialization.unsupported_type"),
    ("Attempting to deserialize object on", "configuration.unsupported"),
    ("don't know how to restore data location", "configuration.unsupported"),
    ("can't allocate memory", "memory.exhausted"),
    ("out of memory", "memory.exhausted"),
)
_READ_MESSAGES: Final = (
    ("failed finding central directory", "integrity.truncated"),
    ("maximum supported version", "compatibility.newer_version"),
    ("CRC-32", "integrity.checksum_mismatch"),
    ("PytorchStreamReader failed", "integrity.malformed"),
    ("enforce fail at inline_container.cc", "integrity.malformed"),
    ('Expected hasRecord("version")', "integrity.malformed"),
    ("Invalid magic number", "integrity.malformed"),
    ("Invalid protocol version", "integrity.malformed"),
    ("does not match expected size", "integrity.size_mismatch"),
    ("Trying to resize storage", "integrity.malformed"),
    ("setStorage: ", "integrity.malformed"),
)
_FAILED_WRITES: Final = ("unexpected pos", "file write failed", "PytorchStreamWriter failed writing", "iostream error")
_REFUSED_TYPES: Final = ("was not an allowed global", "Unsupported global", "Unsupported class", "is blocked")
_STRERRORS: Final = {os.strerror(number): code for number, code in ERROR_CODES_BY_ERRNO.items()}


def is_failed_write(error: BaseException) -> bool:
    """Return whether torch could not write a file. Its message does not say why."""
    return any(text in str(error) for text in _FAILED_WRITES)


def _explain_failed_save(error: RuntimeError) -> str | None:
    message = str(error)
    if "strerror: " in message:
        return _STRERRORS.get(message.partition("strerror: ")[2].strip(), "storage.cannot_open")
    return next((code for text, code in _MESSAGES if text in message), None)


def _explain_failed_load(error: RuntimeError) -> str | None:
    message = str(error)
    return next((code for text, code in (*_MESSAGES, *_READ_MESSAGES) if text in message), None)


def _explain_unpickling_error(error: Exception) -> str:
    message = str(error)
    if "truncated" in message or "Ran out of input" in message:
        return "integrity.truncated"
    return "serialization.unsupported_type" if any(text in message for text in _REFUSED_TYPES) else "serialization.malformed"


def _explain_read_error(error: OSError) -> str | None:
    """A read at an offset beyond the end of the file: its directory was found, but not where it says."""
    return "integrity.truncated" if error.errno == errno.EINVAL else None


SAVE_ERRORS: Final[ErrorCodes] = {"builtins.RuntimeError": _explain_failed_save}
LOAD_ERRORS: Final[ErrorCodes] = {
    "builtins.RuntimeError": _explain_failed_load,
    "_pickle.UnpicklingError": _explain_unpickling_error,
    "builtins.OSError": _explain_read_error,
    "builtins.EOFError": "integrity.truncated",
    "builtins.ModuleNotFoundError": "compatibility.changed_program",
}

_SAVE: Final = LibraryCall(SYSTEM, "save", _describe, before_end=_end_save, inside="phase", error_codes=SAVE_ERRORS, prepare=_prepare_save)
_LOAD: Final = LibraryCall(
    SYSTEM,
    "load",
    _describe,
    _set_contents,
    CheckpointFile.record,
    inside="phase",
    error_codes=LOAD_ERRORS,
    prepare=CheckpointFile.prepare("f"),
)
_PRIVATE: Final = "private; without it, the phase is missing"

# All rows wait for torch itself: a row that is patched when torch.serialization is imported would be copied into torch by that import.
TARGETS: Final = (
    Target("torch", "serialization.save", _SAVE),
    Target("torch", "save", _SAVE, why="the same function"),
    Target("torch", "serialization.load", _LOAD),
    Target("torch", "load", _LOAD, why="the same function"),
    Target("torch", "serialization._save", _wrap_save_function, required=False, why="phases `serialize` and `write`"),
    Target("torch", "serialization._legacy_save", SummedPhase(SYSTEM, "write"), required=False, why=_PRIVATE),
    Target("torch", "serialization._open_zipfile_writer_file.__exit__", SummedPhase(SYSTEM, "finalize"), required=False, why=_PRIVATE),
    Target("torch", "serialization._open_zipfile_writer_buffer.__exit__", SummedPhase(SYSTEM, "finalize"), required=False, why=_PRIVATE),
    Target("torch", "serialization._open_zipfile_reader.__init__", SummedPhase(SYSTEM, "read"), required=False, why=_PRIVATE),
    Target("torch", "serialization._load", SummedPhase(SYSTEM, "deserialize"), required=False, why=_PRIVATE),
    Target("torch", "serialization._legacy_load", SummedPhase(SYSTEM, "deserialize"), required=False, why=_PRIVATE),
)


class TorchInstrumentor(Instrumentor):
    """Observes `torch.save` and `torch.load`: phases, bytes, number and types of tensors, the largest ones, and bytes per top-level key.

    A `torch.load` is a `load`, not a `restore`, because most of them read pretrained weights. It links to the save of the same file.
    """

    name = SYSTEM
    library = "torch"
    package = "torch"
    supported = "torch>=2.15,<3"

    def targets(self) -> Sequence[Target]:
        return TARGETS
