"""Checkpoints as files: `<root>/<task>/<id>.ckpt`, one file each. `head -1` shows the header.

When `put` returns, the file and its directories are synced. A file appears only with its complete content: the bytes are written to an
unnamed or temporary file and synced, then it is linked under its name, which fails if the name exists. Safe between threads and processes.
Files have mode 0600 and directories 0700, because a state may be confidential.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import unquote

from ckpt_observe.core.format.blob import Blob, Buffer
from ckpt_observe.core.format.names import from_file_name, id_from_file_name, id_to_file_name, to_file_name
from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos
from ckpt_observe.core.stores.header_cache import OPEN_FLAGS, FileHeaderCache, read_file_header
from ckpt_observe.core.stores.store import Capabilities, Store, already_exists, copy_metadata, creation_order, not_found
from ckpt_observe.core.stores.urls import path_to_url
from ckpt_observe.errors import CheckpointError, ConfigError
from ckpt_observe.support import files, new_files
from ckpt_observe.support.errnos import to_checkpoint_error, translate_os_errors
from ckpt_observe.support.host_exceptions import raise_host_exception

QUARANTINE_SUFFIX = ".bad"
_CLOCK_TOLERANCE = 0.02
"""Seconds that a file's timestamp may lag behind the clock. In doubt, a damaged file counts as newer."""
_DIRECTORY = OPEN_FLAGS | os.O_DIRECTORY
_MAX_PREPARED = 1024
"""Tasks whose directory is remembered as prepared. A server may see any number; a forgotten one is only prepared again."""


class FileStore(Store):
    """A directory of checkpoints."""

    kind = "file"
    capabilities = Capabilities(durability="machine", writers="processes", reads_ranges=True)

    suffix = ".ckpt"
    """Of new files."""

    def __init__(self, url: str) -> None:
        self._root = _path(url)
        self._headers = FileHeaderCache(self._read_header)
        self._prepared: set[str] = set()
        super().__init__(path_to_url("file", self._root))

    def put(self, info: CheckpointInfo, blob: Blob) -> None:
        self._write(info.task, [(info, blob)])

    def put_many(self, batch: Sequence[tuple[CheckpointInfo, Blob]]) -> None:
        for task in dict.fromkeys(info.task for info, _ in batch):
            self._write(task, [(info, blob) for info, blob in batch if info.task == task])

    def get(self, task: str, id: str) -> Buffer:
        try:  # without the helpers below, for speed: every save and load calls this
            file = os.open(f"{self._root}/{to_file_name(task)}/{self._file_name(task, id)}", OPEN_FLAGS)
            try:
                return files.read_whole(file)
            finally:
                os.close(file)
        except OSError as error:
            raise_host_exception(error)
            raise self._error(error, task, id, "reading") from error

    def get_range(self, task: str, id: str, start: int, size: int) -> Buffer:
        with self._open(task, id) as file:
            return files.read_range(file, start, size)

    def info(self, task: str, id: str) -> CheckpointInfo:
        with self._translate_errors(task, id, "reading"), self._open_directory(task) as directory:
            return self._read_header(directory, self._file_name(task, id))

    def size(self, task: str, id: str) -> int:
        with self._open(task, id) as file:
            return os.fstat(file).st_size

    def delete(self, task: str, id: str) -> None:
        with self._translate_errors(task, id, "deleting"), self._open_directory(task) as directory:
            os.unlink(self._file_name(task, id), dir_fd=directory)
            os.fsync(directory)

    def discard(self, task: str, id: str) -> None:
        with self._translate_errors(task, id, "deleting"):
            os.unlink(f"{self._root}/{to_file_name(task)}/{self._file_name(task, id)}")

    def quarantine(self, task: str, id: str) -> None:
        with self._translate_errors(task, id, "moving"), self._open_directory(task) as directory:
            # A random part, because the id can be used, and quarantined, again.
            quarantined = f"{id_to_file_name(id)}.{secrets.token_hex(4)}{QUARANTINE_SUFFIX}"
            files.move(self._file_name(task, id), quarantined, directory=directory)
            os.fsync(directory)

    def list(self, task: str) -> CheckpointInfos:
        with self._scan(task) as (directory, entries):
            infos = [copy_metadata(info) for entry in entries if (info := self._headers.get_file(directory, entry)) is not None]
        infos.sort(key=creation_order, reverse=True)
        return infos

    def ids(self, task: str) -> tuple[str, ...]:
        """An id that is too long for a file name is only in the header; if that is damaged, the file name is returned instead."""
        with self._scan(task) as (directory, entries):
            names = [(id_from_file_name(self._stem(entry.name)), entry) for entry in entries]
            return tuple(getattr(self._headers.get_file(directory, entry), "id", id) if "~" in entry.name else id for id, entry in names)

    def newest(self, task: str) -> str | None:
        """For a file with an unreadable header, its time of modification counts."""
        times: list[tuple[float, str]] = []
        with self._scan(task) as (directory, entries):
            for entry in entries:
                info = self._headers.get_file(directory, entry)
                if info is not None:
                    times.append((info.created.timestamp(), info.id))
                elif os.path.lexists(entry.path):
                    modified = entry.stat(follow_symlinks=False).st_mtime + _CLOCK_TOLERANCE
                    times.append((modified, id_from_file_name(self._stem(entry.name))))
        return max(times)[1] if times else None

    def tasks(self) -> tuple[str, ...]:
        with translate_os_errors(f"listing tasks in {self._root}"):
            try:
                names = [entry.name for entry in os.scandir(self._root) if entry.is_dir(follow_symlinks=False)]
            except FileNotFoundError:
                return ()
            return tuple(sorted(task for name in names if (task := self._task_of(name)) is not None))

    def _file_name(self, _task: str, id: str) -> str:
        """Return the name of a checkpoint's file. Overridden by stores whose files have different suffixes."""
        return id_to_file_name(id) + self.suffix

    def _stem(self, name: str) -> str:
        """Return the name of a checkpoint's file without its suffix; the same name if it is not a checkpoint's file."""
        return name.removesuffix(self.suffix)

    def _encode(self, info: CheckpointInfo, blob: Blob) -> Blob:
        """Return the content of the file. Overridden by stores with another file format."""
        return blob

    def _read_header(self, directory: int, name: str) -> CheckpointInfo:
        return read_file_header(directory, name)

    def _task_of(self, name: str) -> str | None:
        """Return the task of a directory, or None if it has no checkpoint."""
        with self._scan(name, is_encoded=True) as (directory, entries):
            if entries and (task := from_file_name(name)) is not None:
                return task
            return next((info.task for entry in entries if (info := self._headers.get_file(directory, entry)) is not None), None)

    def _write(self, task: str, batch: Sequence[tuple[CheckpointInfo, Blob]]) -> None:
        with translate_os_errors(f"saving a checkpoint of {task!r} in {self._root}"):
            contents = [(id_to_file_name(info.id) + self.suffix, self._encode(info, blob)) for info, blob in batch]
            if task not in self._prepared:
                self._prepare(task)
            try:
                with self._open_directory(task, create=True) as directory:
                    new_files.create_files(directory, contents)
            except FileExistsError as error:
                existing = next((info.id for info, _ in batch if id_to_file_name(info.id) + self.suffix == error.filename2), batch[0][0].id)
                raise already_exists(task, existing) from error

    def _prepare(self, task: str) -> None:
        """Sync the directory and remove abandoned files before the first write: the process that created it may have been killed."""
        files.make_directory(os.path.join(self._root, to_file_name(task)))  # syncs the parent even if the directory exists
        with self._open_directory(task) as directory:
            new_files.remove_abandoned(directory)
        if len(self._prepared) >= _MAX_PREPARED:
            self._prepared.clear()
        self._prepared.add(task)

    @contextmanager
    def _open(self, task: str, id: str) -> Iterator[int]:
        with self._translate_errors(task, id, "reading"), self._open_directory(task) as directory:
            file = os.open(self._file_name(task, id), OPEN_FLAGS, dir_fd=directory)
            try:
                yield file
            finally:
                os.close(file)

    @contextmanager
    def _translate_errors(self, task: str, id: str, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise_host_exception(error)
            raise self._error(error, task, id, action) from error

    def _error(self, error: OSError, task: str, id: str, action: str) -> CheckpointError:
        if isinstance(error, FileNotFoundError):
            return not_found(task, id, self._root)
        return to_checkpoint_error(error, f"{action} checkpoint {id!r} of {task!r} in {self._root}")

    @contextmanager
    def _scan(self, task: str, *, is_encoded: bool = False) -> Iterator[tuple[int, Sequence[os.DirEntry[str]]]]:
        """Yield the descriptor of a task's directory and its checkpoint files; -1 and no files if the directory does not exist.

        With `is_encoded`, `task` is already the name of the directory.
        """
        with translate_os_errors(f"listing checkpoints of {task!r} in {self._root}"):
            path = os.path.join(self._root, task if is_encoded else to_file_name(task))
            try:
                candidates = [entry for entry in os.scandir(path) if self._stem(entry.name) != entry.name]
                entries = [entry for entry in candidates if entry.is_file(follow_symlinks=False)]  # no links, pipes or directories
                directory = os.open(path, _DIRECTORY)
            except FileNotFoundError:
                yield -1, ()
                return
            self._headers.remove_deleted(path, [entry.name for entry in entries])
            try:
                yield directory, entries
            finally:
                os.close(directory)

    @contextmanager
    def _open_directory(self, task: str, *, create: bool = False) -> Iterator[int]:
        path = os.path.join(self._root, to_file_name(task))
        try:
            directory = os.open(path, _DIRECTORY)
        except FileNotFoundError:
            if not create:
                raise
            files.make_directory(path)
            directory = os.open(path, _DIRECTORY)
        try:
            yield directory
        finally:
            os.close(directory)


def _path(url: str) -> str:
    if "://" not in url:
        return os.path.abspath(url)
    host, slash, path = url.partition("://")[2].partition("/")
    if host not in ("", "localhost") or not slash:
        raise ConfigError(f"a file store needs a URL with three slashes, such as file:///path, or a plain path, not {url!r}")
    if "?" in path or "#" in path:
        raise ConfigError(f"the file URL {url!r} contains ? or #; write them as %3F and %23, or use a plain path")
    return os.path.abspath(unquote(f"/{path}"))
