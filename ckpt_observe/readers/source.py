"""Untrusted files, read in bounded pieces. Every reader reads through this module, so that no file can exceed the limits."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal, NoReturn

import msgspec

from ckpt_observe.errors import CapacityError, CheckpointNotFoundError, DamagedFileError, IntegrityError, LocationError
from ckpt_observe.support import files
from ckpt_observe.support.advice import add_advice
from ckpt_observe.support.errnos import to_checkpoint_error, translate_os_errors
from ckpt_observe.support.host_exceptions import raise_host_exception


def _limit(meaning: str) -> msgspec.Meta:
    return msgspec.Meta(description=meaning)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader may use. A file that needs more is refused with an error that names the limit."""

    structure_size: Annotated[
        int,
        _limit("bytes of structure that are read: headers, directories, pickles in zip files, JSON. Array data is not read"),
    ] = 256 * 1024 * 1024
    decompressed_size: Annotated[int, _limit("bytes to which a compressed pickle may grow; it is decompressed in small pieces")] = (
        4 * 1024**3
    )
    steps: Annotated[int, _limit("opcodes of a pickle (about 70,000 chunks of DCP), values of Orbax's JSON, files of a directory")] = (
        5_000_000
    )
    entries: Annotated[int, _limit("files in a zip file, tensors of a `.safetensors` file, values of other JSON")] = 500_000
    depth: Annotated[int, _limit("levels of nesting that are shown of a pickle")] = 100
    seconds: Annotated[
        float, _limit("time for a database or a pickle. Channels of a SQLite database that were not measured by then are other bytes")
    ] = 60.0


def exceeds(what: str, limit: str, value: float) -> CapacityError:
    """Return the error for a file that needs more than a limit allows."""
    text = f"{what} exceeds the limit of {value:,}. If you trust this file, {how_to_raise(limit)}"
    return CapacityError(text, code="storage.too_large")


def how_to_raise(limit: str) -> str:
    """Return how to read a file with a larger limit. Commands have no option for it."""
    return f"read it in Python: ckpt_observe.readers.read(path, limits=Limits({limit}=...))"


def malformed(location: str, reason: str) -> IntegrityError:
    """Return the error for bytes that are not what the format says."""
    text = f"{location} is damaged, or was not written by the library of its format: {reason}"
    return IntegrityError(add_advice(text, "integrity.malformed"), code="integrity.malformed")


def truncated(location: str, reason: str) -> IntegrityError:
    """Return the error for a file that ends too early."""
    return IntegrityError(add_advice(f"{location} is incomplete: {reason}", "integrity.truncated"), code="integrity.truncated")


def missing(path: str) -> CheckpointNotFoundError:
    """Return the error for a path that does not exist."""
    return CheckpointNotFoundError(add_advice(f"{path} does not exist", "not_found.path"), code="not_found.path")


def check_json(location: str, data: bytes, limits: Limits, limit: Literal["entries", "steps"] = "entries") -> None:
    """Raise CapacityError if JSON has too many values: each takes up to 30 times its bytes in memory."""
    largest: int = getattr(limits, limit)
    if sum(map(data.count, (b",", b"[", b"{"))) > largest:
        raise exceeds(f"the number of values in {location}", limit, largest)


class SourceFile:
    """A regular file, open for reading."""

    def __init__(self, path: str, file: int, limits: Limits) -> None:
        self.path = path
        self.limits = limits
        self.file = file
        status = os.fstat(file)
        self.size = status.st_size
        self._budget = limits.structure_size

    def read(self, start: int, size: int) -> bytes:
        """Return exactly `size` bytes. IntegrityError if the file ends before, CapacityError if that is too much in total."""
        if start < 0 or size < 0 or start + size > self.size:
            raise truncated(self.path, f"bytes {start} to {start + size} are needed, and it has {self.size}")
        self._budget -= size
        if self._budget < 0:
            raise exceeds(f"the structure of {self.path}", "structure_size", self.limits.structure_size)
        with translate_os_errors(f"reading {self.path}"):
            data = bytes(files.read_range(self.file, start, size))
        if len(data) != size:
            raise truncated(self.path, "it became shorter while it was read")
        return data

    def start(self, size: int) -> bytes:
        """Return up to `size` bytes from the start."""
        return self.read(0, min(size, self.size))


@contextmanager
def open_source(path: str, limits: Limits) -> Iterator[SourceFile]:
    """Open a regular file. A symbolic link to one is followed, because people link `latest.pt`; other kinds of files are refused."""
    try:
        file = files.open_regular(os.path.realpath(path, strict=True))
    except DamagedFileError:
        _raise_not_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        raise missing(path) from None
    except (OSError, ValueError) as error:
        raise_host_exception(error)
        _raise_unreadable(path, error)
    try:
        yield SourceFile(path, file, limits)
    finally:
        os.close(file)


def file_kind(path: str) -> str:
    """Return `file` or `directory`. LocationError for anything else, CheckpointNotFoundError if the path does not exist."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise missing(path) from None
    except (OSError, ValueError) as error:
        raise_host_exception(error)
        _raise_unreadable(path, error)
    if stat.S_ISREG(mode):
        return "file"
    return "directory" if stat.S_ISDIR(mode) else _raise_not_regular(path)


def _raise_not_regular(path: str) -> NoReturn:
    raise LocationError(f"{path} is neither a regular file nor a directory; name the file or directory of a checkpoint") from None


def _raise_unreadable(path: str, error: Exception) -> NoReturn:
    if not isinstance(error, OSError):  # a null byte in the path
        raise LocationError(f"{path!r} is not a valid path: {error}") from error
    raise to_checkpoint_error(error, f"opening {path}") from error
