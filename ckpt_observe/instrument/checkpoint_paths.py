"""What the tables of training libraries share: checkpoints that are directories or files.

The absolute path of a checkpoint is its id, because it is the only thing that a run and the run that continues it have in common. The files
of a directory stand for the keys of the state: they tell what takes the space.
"""

from __future__ import annotations

import os
import re
from json import JSONDecodeError
from typing import Any

from ckpt_observe.instrument.library_call import LibraryOperation
from ckpt_observe.instrument.saver_attributes import altered_keys, size_attributes
from ckpt_observe.semconv import attributes as names
from ckpt_observe.support.host_exceptions import ignore_errors


def describe_checkpoint(system: str, path: Any, location: Any = None) -> dict[str, Any]:
    """Return the attributes of a checkpoint at a path. Without a `location`, the directory that contains it is the store."""
    text = absolute_path(path)
    parent = None if text is None else text.rpartition("/")[0] or "/"
    store = "file" if text is None or "://" not in text else text.partition("://")[0]
    return {names.SYSTEM: system, names.STORE: store, names.ID: text, names.LOCATION: absolute_path(location) or parent}


def absolute_path(path: Any) -> str | None:
    """Return a path as an absolute one, and a URL as it is; None for anything else, such as a file object."""
    if not isinstance(path, str | os.PathLike):
        return None
    text = os.fspath(path)
    if isinstance(text, bytes):
        text = os.fsdecode(text)
    return text.rstrip("/") if "://" in text else os.path.abspath(text)


def file_sizes(path: str) -> dict[str, int]:
    """Return the sizes of the files of a checkpoint, by their path in its directory. A file is its own only part."""
    if os.path.isfile(path):
        return {os.path.basename(path): os.path.getsize(path)}
    sizes: dict[str, int] = {}
    for directory, _, filenames in os.walk(path):
        for filename in filenames:
            file = os.path.join(directory, filename)
            with ignore_errors(OSError):  # removed meanwhile
                sizes[os.path.relpath(file, path)] = os.path.getsize(file)
    return sizes


class CheckpointDetails:
    """What an instrumentor remembers about the checkpoint of an operation until it ends."""

    __slots__ = ("altered", "altered_types", "compares_keys", "expected_files", "is_writer")

    def __init__(self, *, is_writer: bool = True, expected_files: tuple[str, ...] = (), compares_keys: bool = False) -> None:
        self.is_writer = is_writer
        """Whether this process writes the files. In distributed training, one process does, or each writes its part."""
        self.expected_files = expected_files
        """How the names of files begin that a complete checkpoint has."""
        self.compares_keys = compares_keys
        """Whether keys that a model does not find, or does not know, are altered ones. Some libraries leave out keys on purpose."""
        self.altered: set[str] = set()
        """Keys of the state, or files of the checkpoint, that are missing or differ from what the program expects."""
        self.altered_types: set[str] = set()
        """Data types of parameters as saved and as the program has them."""

    @staticmethod
    def record(operation: LibraryOperation, error: BaseException | None) -> None:
        """Set the size of a checkpoint on a local file system, the largest files of a save, and what came back altered."""
        details: CheckpointDetails = operation.details or CheckpointDetails()
        path = operation.attribute(names.ID)
        if error is not None or path is None or "://" in path or not details.is_writer:
            return
        sizes = file_sizes(path)
        altered = details.altered | {name for name in details.expected_files if not any(file.startswith(name) for file in sizes)}
        largest = size_attributes(sizes) if operation.name == "save" and len(sizes) > 1 else {}
        operation.set({names.SIZE_STORED: sum(sizes.values()) or None, names.ALTERED_KEYS: altered_keys(altered), **largest})


def explain_json_error(error: JSONDecodeError) -> str:
    """By its position: the file ends too early, or its text is not JSON."""
    is_at_end = not error.doc.strip() or (error.pos > 0 and re.fullmatch(r"\s*[\w.+-]*\s*", error.doc[error.pos :]) is not None)
    is_truncated = is_at_end or error.msg.startswith("Unterminated")
    return "integrity.truncated" if is_truncated else "serialization.malformed"


def explain_missing_file(error: FileNotFoundError) -> str:
    """`integrity.incomplete` if the directory of the file exists, because the library chooses its name; else `not_found.path`."""
    directory = os.path.dirname(os.fspath(error.filename or ""))
    return "integrity.incomplete" if directory and os.path.isdir(directory) else "not_found.path"
