"""The file of an operation, for libraries that store a checkpoint as one file: its path, its size, and what a failed save did to it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from ckpt_observe.instrument.library_call import Arguments, LibraryOperation
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events
from ckpt_observe.support.host_exceptions import ignore_errors
from ckpt_observe.tensor_summary import TensorSummary

LOST_FILE: Final = "the file is incomplete, and what it contained before is lost"
"""Libraries that open the file before they serialize: an object that cannot be serialized costs the previous checkpoint."""
_LEAST_FREE: Final = 1 << 20
"""A file system with fewer free bytes is full."""


def path_of(file: Any) -> str | None:
    """Return the path of a file that the library opens itself. The caller may still write to a file object."""
    return os.fsdecode(file) if isinstance(file, str | bytes | os.PathLike) else None


def file_attributes(file: Any) -> dict[str, Any]:
    """Return where the checkpoint is. A path is also its id: a load in another process finds its save by it."""
    path = path_of(file)
    location = path or getattr(file, "name", None)
    return {
        names.STORE: "file",
        names.LOCATION: location if isinstance(location, str) else None,  # the name of a file object may be a descriptor
        names.ID: os.path.abspath(path) if path else None,
    }


class CheckpointFile:
    """The file of an operation."""

    __slots__ = ("path", "status", "tensors")

    def __init__(self, file: Any) -> None:
        self.path = path_of(file)
        self.status = _read_status(self.path)
        self.tensors: TensorSummary | None = None
        """What is compared when the file is loaded."""

    @staticmethod
    def prepare(parameter: str) -> Callable[[LibraryOperation, Any, Arguments], None]:
        """Return a function for `LibraryCall.prepare`. `parameter` is the parameter of the call that has the file."""

        def prepare(operation: LibraryOperation, _instance: Any, arguments: Arguments) -> None:
            operation.details = CheckpointFile(arguments[parameter])

        return prepare

    @staticmethod
    def record(operation: LibraryOperation, error: BaseException | None) -> None:
        """Set the size of the file, or what a failed save did to it. For `LibraryCall.before_end`."""
        file: CheckpointFile = operation.details
        status = _read_status(file.path)
        if error is None and status is not None:
            operation.set_trusted({names.SIZE_STORED: status[0]})
            for part in file.tensors.pack() if file.tensors is not None else ():
                operation.write((events.TENSORS, operation.span_id, operation.now(), part))
        elif error is not None and operation.name == "save" and file.has_changed():
            operation.set({names.ERROR_IMPACT: LOST_FILE})

    def has_changed(self) -> bool:
        """Return whether the file was written, created or removed since the operation began."""
        return _read_status(self.path) != self.status

    def is_on_full_disk(self) -> bool:
        """Return whether the file system of the file is full."""
        with ignore_errors(OSError, ValueError):
            file_system = os.statvfs(os.path.dirname(os.path.abspath(self.path or os.devnull)))
            return self.path is not None and file_system.f_bavail * file_system.f_frsize < _LEAST_FREE
        return False


def _read_status(path: str | None) -> tuple[int, int] | None:
    """Return size and time of the last change of a file; None if it does not exist."""
    with ignore_errors(OSError, ValueError):
        status = os.stat(path or "")
        return status.st_size, status.st_mtime_ns
    return None
