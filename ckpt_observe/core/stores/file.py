"""Checkpoints as files: `<root>/<task>/<id>.ckpt`, one file each, readable with `head -1`.

When `put` returns, file and directories are synced. A name appears only with its whole content: the bytes go to a
temporary file in the same directory, are synced, and are then linked under their name, which fails if it is taken.
Safe between threads and processes. Files are 0600 and directories 0700: a state is nobody else's business.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar
from urllib.parse import unquote, urlsplit

from ckpt_observe.core import container
from ckpt_observe.core.blob import Blob, Buffer
from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos
from ckpt_observe.core.names import from_file_name, to_file_name
from ckpt_observe.core.stores import durable, oserrors
from ckpt_observe.core.stores.base import Promise, Store, newest_first
from ckpt_observe.errors import CheckpointError, CheckpointNotFoundError, ConfigError, ConflictError

_SUFFIX = ".ckpt"
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_DIRECTORY = _READ | os.O_DIRECTORY
_HEADER_GUESS = 16 * 1024


class FileStore(Store):
    """A directory of checkpoints."""

    kind = "file"
    promise: ClassVar[Promise] = Promise(durable="machine", shared="processes")

    def __init__(self, url: str) -> None:
        self._root = _path(url)
        super().__init__(f"file://{self._root}")

    def put(self, info: CheckpointInfo, blob: Blob) -> None:
        doing = f"saving checkpoint {info.id!r} of {info.task!r} in {self._root}"
        with oserrors.translated(doing), self._directory(info.task, make=True) as directory:
            try:
                durable.write_new(directory, to_file_name(info.id) + _SUFFIX, blob)
            except FileExistsError as error:
                raise ConflictError(f"{info.task!r} has a checkpoint {info.id!r} already") from error

    def get(self, task: str, id: str) -> Buffer:
        with self._opened(task, id) as file:
            return durable.read_all(file)

    def info(self, task: str, id: str) -> CheckpointInfo:
        with self._opened(task, id) as file:
            return _header(file)

    def size(self, task: str, id: str) -> int:
        with self._opened(task, id) as file:
            return os.fstat(file).st_size

    def delete(self, task: str, id: str) -> None:
        with self._found(task, id, "deleting"), self._directory(task) as directory:
            os.unlink(to_file_name(id) + _SUFFIX, dir_fd=directory)
            os.fsync(directory)

    def list(self, task: str) -> CheckpointInfos:
        found: CheckpointInfos = []
        with oserrors.translated(f"listing checkpoints of {task!r} in {self._root}"):
            try:
                with self._directory(task) as directory:
                    names = [name for name in os.listdir(directory) if name.endswith(_SUFFIX)]
                    found = [info for name in names if (info := _peek(directory, name)) is not None]
            except FileNotFoundError:
                pass
        found.sort(key=newest_first, reverse=True)
        return found

    def tasks(self) -> tuple[str, ...]:
        with oserrors.translated(f"listing tasks in {self._root}"):
            try:
                names = os.listdir(self._root)
            except FileNotFoundError:
                return ()
            return tuple(sorted(task for name in names if (task := self._task_of(name)) is not None))

    def _task_of(self, name: str) -> str | None:
        """The task a directory belongs to, if it holds any checkpoint."""
        try:
            directory = os.open(os.path.join(self._root, name), _DIRECTORY)
        except (NotADirectoryError, FileNotFoundError):
            return None
        try:
            held = [entry for entry in os.listdir(directory) if entry.endswith(_SUFFIX)]
            if held and (task := from_file_name(name)) is not None:
                return task
            return next((info.task for entry in held if (info := _peek(directory, entry)) is not None), None)
        finally:
            os.close(directory)

    @contextmanager
    def _opened(self, task: str, id: str) -> Iterator[int]:
        with self._found(task, id, "reading"), self._directory(task) as directory:
            file = os.open(to_file_name(id) + _SUFFIX, _READ, dir_fd=directory)
            try:
                yield file
            finally:
                os.close(file)

    @contextmanager
    def _found(self, task: str, id: str, doing: str) -> Iterator[None]:
        with oserrors.translated(f"{doing} checkpoint {id!r} of {task!r} in {self._root}"):
            try:
                yield
            except FileNotFoundError as error:
                raise CheckpointNotFoundError(f"{task!r} has no checkpoint {id!r} in {self._root}") from error

    @contextmanager
    def _directory(self, task: str, *, make: bool = False) -> Iterator[int]:
        path = os.path.join(self._root, to_file_name(task))
        try:
            directory = os.open(path, _DIRECTORY)
        except FileNotFoundError:
            if not make:
                raise
            durable.make_directory(path)
            directory = os.open(path, _DIRECTORY)
        try:
            yield directory
        finally:
            os.close(directory)


def _path(url: str) -> str:
    if "://" not in url:
        return os.path.abspath(url)
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise ConfigError(f"a file store is file:///path or a plain path, not {url!r}")
    return os.path.abspath(unquote(parts.path))


def _header(file: int) -> CheckpointInfo:
    start = os.read(file, _HEADER_GUESS)
    while b"\n" not in start and len(start) < container.MAX_HEADER and (more := os.read(file, len(start))):
        start += more
    return container.read_header(start)


def _peek(directory: int, name: str) -> CheckpointInfo | None:
    """The header of a file, or None if it is damaged or was removed meanwhile."""
    try:
        file = os.open(name, _READ, dir_fd=directory)
    except FileNotFoundError:
        return None
    try:
        return _header(file)
    except CheckpointError:
        return None
    finally:
        os.close(file)
