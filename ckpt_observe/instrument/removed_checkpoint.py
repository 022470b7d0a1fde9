"""The size of a checkpoint that a library removes."""

from __future__ import annotations

from typing import Any

from ckpt_observe.instrument.checkpoint_paths import file_sizes
from ckpt_observe.instrument.library_call import Arguments, LibraryOperation
from ckpt_observe.semconv import attributes as names


def remember_size(operation: LibraryOperation, _instance: Any, _arguments: Arguments) -> None:
    """Remember the size of a checkpoint that is about to be removed. For `LibraryCall.prepare`."""
    path = operation.attribute(names.ID)
    operation.details = sum(file_sizes(path).values()) if path is not None and "://" not in path else None


def record_freed(operation: LibraryOperation, error: BaseException | None) -> None:
    """Set the size of a checkpoint that was removed. For `LibraryCall.before_end`."""
    if error is None:
        operation.set({names.SIZE_FREED: operation.details})
